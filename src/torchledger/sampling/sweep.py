"""Sweep files: the native form, expanded to a plan.

dtypes: [bf16, fp16]
seed: 0
order: shuffle
sweeps:
  - operator: linear
    group: train
    draws: 200                                  # points to draw; without it, every combination
    parameters:
      m: {from: 16, to: 16384, draw: log}       # log-uniform; multiple_of rounds
      k: {from: 64, to: 8192, factor: 2}        # 64, 128, ... 8192
      n: [1024, 4096]
    where: ["m * k <= 2**26"]
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from torchledger.errors import SampleError
from torchledger.operators import Operator, find_operator, load_operators
from torchledger.operators.collectives import Beside
from torchledger.operators.declaration import dtype_name
from torchledger.sampling.collectives import CollectivePoint
from torchledger.sampling.constraints import compile_constraint, compile_expression
from torchledger.sampling.points import Plan, Point, unique_points
from torchledger.store.yaml_file import Location, YamlFile, read_yaml, validate
from torchledger.work.element_sizes import ELEMENT_SIZES

LARGEST_PLAN = 2_000_000
"""More points than this are a slip of the pen: at 60 a second they take nine hours."""

LARGEST_RANGE = 100_000
"""Values of one range: more are a slip of the pen, too."""

_TRIES_PER_DRAW = 200
_MOST_TRIES = 1_000_000  # some ten seconds
_LARGEST_SIZE = 2**53  # what a float counts exactly


Whole = Annotated[int, Field(ge=-_LARGEST_SIZE, le=_LARGEST_SIZE)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Steps(_Strict):
    """Numbers from one to another: by a step, by a factor, or drawn."""

    start: Whole = Field(alias="from")
    end: Whole = Field(alias="to")
    step: Whole | None = None
    factor: float | None = None
    draw: Literal["log", "uniform"] | None = None
    multiple_of: Whole = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _meaningful(self) -> Steps:
        if self.end < self.start:
            raise ValueError(f"to ({self.end}) is below from ({self.start})")
        if sum(way is not None for way in (self.step, self.factor, self.draw)) != 1:
            raise ValueError("needs one of step, factor and draw")
        if self.step is not None and self.step <= 0:
            raise ValueError(f"step {self.step} never reaches {self.end}")
        if self.factor is not None and (self.factor <= 1 or self.start < 1):
            raise ValueError(f"multiplying {self.start} by {self.factor} never reaches {self.end}")
        if self._length() > LARGEST_RANGE:
            raise ValueError(f"has some {self._length():,.0f} values, more than {LARGEST_RANGE:,}: take larger steps")
        if self.draw == "log" and self.start < 1:
            raise ValueError("a log-uniform draw starts at 1 or more")
        return self

    def _length(self) -> float:
        """About how many values there are, without making them."""
        if self.step is not None:
            return (self.end - self.start) / self.step + 1
        if self.factor is not None:
            return math.log(self.end / self.start) / math.log(self.factor) + 1
        return 0.0

    def listed(self) -> list[int]:
        """All values; a drawn range has none of its own."""
        if self.draw is not None:
            return []
        values, value = [], float(self.start)
        while value <= self.end:
            values.append(round(value))
            value = value + self.step if self.step is not None else value * (self.factor or 2)
        return list(dict.fromkeys(values))

    def at(self, share: float) -> int:
        """The value at a share (0 to 1) of the range."""
        if self.draw is None:
            values = self.listed()
            return values[min(int(share * len(values)), len(values) - 1)]
        if self.draw == "log":
            value = math.exp(math.log(self.start) + share * (math.log(self.end + 1) - math.log(self.start)))
        else:
            value = self.start + share * (self.end + 1 - self.start)
        whole = int(value)
        if self.multiple_of > 1:
            whole = max(round(whole / self.multiple_of), 1) * self.multiple_of
        return min(max(whole, self.start), self.end)


def _form(value: Any) -> str:
    if isinstance(value, list):
        return "list"
    return "range" if isinstance(value, (dict, Steps)) else "number"


Values = Annotated[
    Annotated[Whole, Tag("number")]
    | Annotated[list[Whole], Field(min_length=1), Tag("list")]
    | Annotated[Steps, Tag("range")],
    Discriminator(_form),
]


class OperatorSweep(_Strict):
    """One operator's part of a sweep."""

    operator: str
    parameters: dict[str, Values]
    group: str | None = None
    dtypes: list[str] | None = None
    draws: int | None = Field(default=None, ge=1, le=LARGEST_PLAN)
    sampler: Literal["random", "latin-hypercube"] = "latin-hypercube"
    where: list[str] = []
    derived: dict[str, str] = {}
    """Parameters computed from the others: ``{padding: kernel // 2}``."""


class CollectiveSweep(_Strict):
    """One collective over message sizes in bytes, for groups of so many ranks (all of them if none is named), alone or
    beside other work."""

    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "p2p"]
    bytes: Values
    dtypes: list[str] | None = None
    groups: list[Whole] = []
    beside: Beside | list[Beside] = "nothing"


class SweepFile(_Strict):
    """A native sweep file: operators, or collectives (which run under torchrun), not both."""

    sweeps: list[OperatorSweep] = []
    collectives: list[CollectiveSweep] = []
    dtypes: list[str] = ["bf16"]
    warmup: Whole = Field(default=2, ge=0)
    active: Whole = Field(default=10, ge=1)
    seed: Whole = 0
    order: Literal["given", "shuffle"] = "given"
    budget: str | None = None
    until_error: str | None = None
    operators: list[str] = []

    @model_validator(mode="after")
    def _one_kind(self) -> SweepFile:
        if bool(self.sweeps) == bool(self.collectives):
            raise ValueError("needs sweeps or collectives, one of the two")
        return self


def load_collectives(path: str | Path, *, world: int, dtypes: tuple[str, ...] = ()) -> list[CollectivePoint] | None:
    """The points of a file of collectives for a launch of ``world`` ranks; ``None`` for a file of operators.

    Message sizes are rounded up to whole equal shares. Raises ``YamlError`` as ``load_sweep`` does.
    """
    file = read_yaml(Path(path))
    if "collectives" not in file.content:
        return None
    sweep = validate(SweepFile, file)
    points: list[CollectivePoint] = []
    for index, part in enumerate(sweep.collectives):
        where: Location = ("collectives", index)
        sizes = part.bytes.listed() if isinstance(part.bytes, Steps) else part.bytes
        sizes = [sizes] if isinstance(sizes, int) else sizes
        if not sizes or min(sizes) < 1:
            raise file.error((*where, "bytes"), "needs positive sizes, listed or by step or factor")
        besides: list[Beside] = [part.beside] if isinstance(part.beside, str) else part.beside
        texts = dtypes or tuple(part.dtypes or sweep.dtypes)
        for dtype in dict.fromkeys(_dtype(file, text, (*where, "dtypes")) for text in texts):
            for group in dict.fromkeys(part.groups or [world]):
                if len(points) > LARGEST_PLAN:
                    raise file.error(where, f"more than {LARGEST_PLAN:,} points; give fewer sizes or groups")
                if group < 2:
                    raise file.error((*where, "groups"), f"{group} is no group: two ranks at the least")
                for size in sizes:
                    numel = -(-size // (ELEMENT_SIZES[dtype] * group)) * group
                    points += [CollectivePoint(part.collective, numel, dtype, group, each) for each in besides]
    return list(dict.fromkeys(points))


def load_sweep(path: str | Path, *, operator_files: tuple[str, ...] = (), dtypes: tuple[str, ...] = ()) -> Plan:
    """The plan of a native sweep file; ``dtypes`` replace the file's.

    ``operator_files`` (whole paths) are Python with operators of the user's own, and are run; what the file lists under
    ``operators`` must be among them.

    Raises ``YamlError`` with file, line and key of everything that is wrong with it, before any device is touched.
    """
    path = Path(path)
    file = read_yaml(path)
    sweep = validate(SweepFile, file)
    for index, name in enumerate(sweep.operators):
        if str((path.parent / name).resolve()) not in operator_files:
            raise file.error(
                ("operators", index),
                f"{name} is Python that would be run, and a file alone cannot ask for that: read it, then pass "
                f"--operators {path.parent / name}",
            )
    files = list(operator_files)
    for name in files:
        load_operators(name)
    points: list[Point] = []
    for index, part in enumerate(sweep.sweeps):
        where: Location = ("sweeps", index)
        operator = _operator(file, part, where)
        chosen = dtypes or tuple(part.dtypes or sweep.dtypes)
        location = (*where, "dtypes") if part.dtypes else ("dtypes",)
        names = list(dict.fromkeys(_dtype(file, text, location) for text in chosen))
        shapes = list(_shapes(file, part, operator, where, sweep.seed + index))
        if not shapes:
            raise file.error((*where, "where"), "no shape meets these conditions and the operator's own")
        # What an operator does not offer is left out where the file speaks of all its operators at once.
        usable = [name for name in names if name in operator.dtypes]
        if not usable:
            raise file.error(
                location, f"{operator.name} runs in {', '.join(operator.dtypes)}, not in {', '.join(names)}"
            )
        points += [Point(operator.key, shape, dtype, part.group) for dtype in usable for shape in shapes]
        if len(points) > LARGEST_PLAN:
            raise file.error(where, f"more than {LARGEST_PLAN:,} points; give draws, or fewer values")
    whole = list(unique_points(points))
    if sweep.order == "shuffle":
        random.Random(sweep.seed).shuffle(whole)
    notes = {"sweep": path.name}
    if sweep.budget:
        parse_duration(file, sweep.budget, ("budget",))
        notes["budget"] = sweep.budget
    if sweep.until_error:
        notes["until_error"] = sweep.until_error
    return Plan(tuple(whole), sweep.warmup, sweep.active, tuple(files), notes)


_DURATION = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|sec|min|m|h)?\s*$")
_UNITS = {None: 1.0, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def duration_s(text: str) -> float:
    """Seconds of ``"90"``, ``"90s"``, ``"10min"``, ``"1.5h"``; raises ``ValueError`` for anything else."""
    match = _DURATION.match(text)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f"{text!r} is no duration; write 90s, 10min or 1.5h")
    return float(match[1]) * _UNITS[match[2]]


def parse_duration(file: YamlFile, text: str, location: Location) -> float:
    """``duration_s`` of a value in a file."""
    try:
        return duration_s(text)
    except ValueError as error:
        raise file.error(location, str(error)) from error


def _operator(file: YamlFile, part: OperatorSweep, where: Location) -> Operator:
    try:
        operator = find_operator(part.operator)
    except SampleError as error:
        raise file.error((*where, "operator"), str(error)) from error
    if operator.needs_peers:
        raise file.error((*where, "operator"), f"{operator.name} needs several ranks: name it under `collectives:`")
    known = [*operator.parameters, *operator.defaults]
    for key, names in (("parameters", part.parameters), ("derived", part.derived)):
        for name in names:
            if name not in known:
                raise file.error((*where, key, name), f"{operator.name} has no parameter {name!r}; it has {known}")
    try:
        operator.resolve(dict.fromkeys([*part.parameters, *part.derived], 1))
    except ValueError as error:
        raise file.error((*where, "parameters"), str(error)) from error
    return operator


def _dtype(file: YamlFile, text: str, location: Location) -> str:
    try:
        return dtype_name(text)
    except ValueError as error:
        raise file.error(location, str(error)) from error


def _shapes(
    file: YamlFile, part: OperatorSweep, operator: Operator, where: Location, seed: int
) -> Iterator[dict[str, int]]:
    """The shapes of one operator's part that meet its conditions, each once."""
    values: dict[str, list[int] | Steps] = {
        name: [value] if isinstance(value, int) else value for name, value in part.parameters.items()
    }
    drawn = [name for name, value in values.items() if isinstance(value, Steps) and value.draw]
    if drawn and part.draws is None:
        raise file.error((*where, "parameters", drawn[0]), "is drawn, so the sweep needs draws: how many points")
    names = {*operator.parameters, *operator.defaults}
    conditions = []
    for index, text in enumerate(part.where):
        try:
            conditions.append(compile_constraint(text, names))
        except ValueError as error:
            raise file.error((*where, "where", index), str(error)) from error

    derived = {}
    for name, text in part.derived.items():
        try:
            derived[name] = compile_expression(text, set(part.parameters))
        except ValueError as error:
            raise file.error((*where, "derived", name), str(error)) from error

    def complete(shape: dict[str, int]) -> dict[str, int] | None:
        """The shape with what is derived, or ``None`` if it meets not all conditions."""
        try:
            whole = shape | {name: compute(shape) for name, compute in derived.items()}
            p = operator.resolve(whole)
            fits = operator.check(p) is None and all(condition(p) for condition in conditions)
        except ValueError as error:
            raise file.error((*where, "where"), str(error)) from error
        return whole if fits else None

    if part.draws is None:
        lists = [value.listed() if isinstance(value, Steps) else value for value in values.values()]
        count = math.prod(len(numbers) for numbers in lists)
        if count > LARGEST_PLAN:
            raise file.error(where, f"{count:,} combinations are more than {LARGEST_PLAN:,}; give draws instead")
        for combination in itertools.product(*lists):
            if shape := complete(dict(zip(values, combination, strict=True))):
                yield shape
        return
    yield from _draw(values, part.draws, part.sampler, complete, random.Random(seed))


def _draw(
    values: Mapping[str, list[int] | Steps],
    count: int,
    sampler: str,
    complete: Callable[[dict[str, int]], dict[str, int] | None],
    source: random.Random,
) -> Iterator[dict[str, int]]:
    """``count`` different shapes that fit, or as many as were found."""
    found: set[tuple[int, ...]] = set()
    for _ in range(max(1, min(_TRIES_PER_DRAW, _MOST_TRIES // count))):
        if len(found) >= count:
            return
        for shares in _shares(len(values), count, sampler, source):
            pairs = zip(values.items(), shares, strict=True)
            drawn = {name: _pick(value, share) for (name, value), share in pairs}
            key = tuple(drawn.values())
            if key not in found and (shape := complete(drawn)):
                found.add(key)
                yield shape
                if len(found) >= count:
                    return


def _pick(value: list[int] | Steps, share: float) -> int:
    if isinstance(value, Steps):
        return value.at(share)
    return value[min(int(share * len(value)), len(value) - 1)]


def _shares(dimensions: int, count: int, sampler: str, source: random.Random) -> Iterator[tuple[float, ...]]:
    """Points of the unit cube; a Latin hypercube has one in each of ``count`` slices of each dimension."""
    if sampler == "random":
        for _ in range(count):
            yield tuple(source.random() for _ in range(dimensions))
        return
    columns = []
    for _ in range(dimensions):
        slices = list(range(count))
        source.shuffle(slices)
        columns.append([(index + source.random()) / count for index in slices])
    yield from zip(*columns, strict=True)
