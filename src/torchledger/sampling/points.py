"""What is asked of a device: points, and the plan they make."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.operators import find_operator
from torchledger.sampling.journal import write_durably
from torchledger.store.codec import FieldError, convert, parse

PLAN_FILE = "plan.jsonl"

_NEXT_STEP = "Run `torchledger sample` on the sweep again."


@dataclass(frozen=True)
class Point:
    """One operator at one shape and dtype: all its directions are measured together."""

    operator: str
    parameters: Mapping[str, Any]
    dtype: str
    group: str | None = None


@dataclass(frozen=True)
class Plan:
    """Points in the order in which they are measured, and how.

    ``warmup`` untimed and ``active`` timed iterations per direction; ``operator_files`` are the user's own operators,
    which a worker must load first. ``targets`` say, of operators that are functions, which of their calls are each
    direction's.
    """

    points: tuple[Point, ...]
    warmup: int = 2
    active: int = 10
    operator_files: tuple[str, ...] = ()
    notes: Mapping[str, str] = field(default_factory=dict)
    targets: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)

    @property
    def protocol(self) -> str:
        """The way of measuring, as it enters a point's id."""
        return f"warm-{self.warmup}+{self.active}"

    def shard(self, part: int, parts: int) -> list[Point]:
        """The points of one part of several, counted from 1: every ``parts``-th one."""
        check_part(part, parts)
        return [point for index, point in enumerate(self.points) if index % parts == part - 1]


def check_part(part: int, parts: int) -> None:
    """Raise ``SampleError`` unless 1 <= part <= parts."""
    if parts < 1 or not 1 <= part <= parts:
        raise SampleError(f"--part {part} of --parts {parts} does not exist: parts are counted from 1 to --parts.")


def point_id(operator: str, parameters: Mapping[str, Any], dtype: str, device: str, protocol: str) -> str:
    """The name of one question: equal for equal questions, whatever the order of the parameters.

    Both directions of a shape share it. ``protocol`` says how it is measured (``"warm-2+10"``), so that another way of
    measuring is another point.
    """
    shape = ",".join(f"{name}={parameters[name]}" for name in sorted(parameters))
    text = "|".join((operator, shape, dtype, device, protocol))
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def unique_points(points: Sequence[Point]) -> tuple[Point, ...]:
    """The points with defaults filled in, each question once, in order of first appearance."""
    seen: dict[tuple[Any, ...], Point] = {}
    for point in points:
        operator = find_operator(point.operator)
        parameters = dict(operator.resolve(point.parameters))
        whole = Point(operator.key, parameters, point.dtype, point.group)
        seen.setdefault((operator.key, tuple(sorted(parameters.items())), point.dtype), whole)
    return tuple(seen.values())


def save_plan(plan: Plan, folder: Path) -> None:
    """Write the plan into a data folder, whole or not at all."""
    header = {
        "warmup": plan.warmup,
        "active": plan.active,
        "operator_files": list(plan.operator_files),
        "notes": dict(plan.notes),
        **({"targets": plan.targets} if plan.targets else {}),
    }
    lines = [json.dumps(header)]
    lines += [json.dumps([p.operator, dict(p.parameters), p.dtype, p.group]) for p in plan.points]
    write_durably(folder / PLAN_FILE, ("\n".join(lines) + "\n").encode())


def load_plan(folder: str | os.PathLike[str]) -> Plan:
    """The plan of a data folder; raises ``SampleError`` if there is none or it is damaged."""
    path = Path(folder) / PLAN_FILE
    try:
        with path.open(encoding="utf-8") as file:
            lines = _json_lines(path, file)
            header = next(lines)
            plan: Plan = _checked(path, 1, Plan, header | {"points": ()} if isinstance(header, dict) else header)
            points = tuple(Point(*_checked(path, n, _PointLine, fields)) for n, fields in enumerate(lines, start=2))
    except FileNotFoundError:
        raise SampleError(f"{path} does not exist: {folder} is no folder of samples.") from None
    except (OSError, ValueError, RecursionError, StopIteration) as error:
        raise SampleError(f"{path} is damaged ({error}). {_NEXT_STEP}") from error
    return replace(plan, points=points)


_PointLine = tuple[str, Mapping[str, int | float | str | bool], str, str | None]


def _checked(path: Path, number: int, kind: Any, plain: Any) -> Any:
    try:
        return convert(kind, plain)
    except FieldError as error:
        raise SampleError(f"{path} is damaged: line {number}, {error}. {_NEXT_STEP}") from error


def _json_lines(path: Path, file: Any) -> Iterator[Any]:
    for number, line in enumerate(file, start=1):
        try:
            yield parse(line)
        except FieldError as error:
            raise SampleError(f"{path} is damaged: line {number}: {error}. {_NEXT_STEP}") from error
