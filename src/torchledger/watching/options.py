"""What to watch, which launches, and where the results go."""

from __future__ import annotations

import dataclasses
import fnmatch
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchledger.claims import claim
from torchledger.errors import UsageError
from torchledger.nouns import Launch
from torchledger.printable import ended
from torchledger.work.graph_names import direction_of

Level = Literal["off", "save", "stats", "names"]

PRINTER_VARIABLE = "AOT_INDUCTOR_DEBUG_INTERMEDIATE_VALUE_PRINTER"
FILTER_VARIABLE = "AOT_INDUCTOR_FILTERED_KERNELS_TO_PRINT"
_LEVEL_OF_VARIABLE: dict[str, Level] = {"0": "off", "1": "save", "2": "stats", "3": "names"}

QUESTIONS = ("nan", "inf", "overflow")


@dataclass(frozen=True)
class ValueOptions:
    """What to watch.

    ``level``: ``"stats"`` (statistics of every tensor of every launch), ``"save"`` (those, and the tensors as
    safetensors), ``"names"`` (the names of launches as they start and end) or ``"off"`` (nothing but the questions
    below). ``find`` is ``"nan"``, ``"inf"``, ``"overflow"`` or ``"module:function"``, a predicate from a tensor to
    booleans; ``beyond`` is the dtype whose range ``"overflow"`` means (``None``: the tensor's own). ``against_eager``
    replays every launch eagerly and in float64; ``tolerance`` is the relative error that it may have (``None``: by
    dtype).

    Filters hold patterns (``*`` and ``?``; a bare word also matches as a part); an empty filter takes everything.
    ``calls`` selects calls of a graph: ``"0"``, ``"2-4"``, ``"0,7-"``. ``folder`` gets saved tensors, at most
    ``budget_bytes`` of them: one file a ``"launch"``, or one a ``"tensor"`` (``files``). With statistics, tensors of up
    to ``elements`` elements are kept whole.
    """

    level: Level = "stats"
    find: str | None = None
    beyond: str | None = None
    against_eager: bool = False
    tolerance: float | None = None
    kernel: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    module: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    graph: tuple[str, ...] = ()
    calls: str | None = None
    folder: str | None = None
    budget_bytes: int = 1_000_000_000
    files: Literal["launch", "tensor"] = "launch"
    elements: int = 64
    prints: bool = True

    def __post_init__(self) -> None:
        if self.level not in ("off", "save", "stats", "names"):
            raise UsageError(f"there is no level {self.level!r}. Take one of: off, save, stats, names.")
        if self.files not in ("launch", "tensor"):
            raise UsageError(f"there is no {self.files!r} to save in one file. Take launch or tensor.")
        if self.find is not None and self.find not in QUESTIONS and ":" not in self.find:
            raise UsageError(
                f"cannot find {self.find!r}. Ask for nan, inf, overflow, or name a predicate as module:function."
            )
        if self.beyond is not None and self.beyond not in _FLOAT_RANGES:
            raise UsageError(f"{self.beyond!r} is no float type. Take one of: {', '.join(_FLOAT_RANGES)}.")
        if self.beyond is not None and self.find != "overflow":
            raise UsageError("--beyond (in Python beyond=) is the range that --find overflow means: ask for that, too.")
        if self.tolerance is not None and not self.against_eager:
            raise UsageError("--tolerance (in Python tolerance=) is of --against eager: ask for that, too.")
        parse_calls(self.calls)

    @property
    def is_filtered(self) -> bool:
        """True if some launches are left out."""
        return any((self.kernel, self.category, self.module, self.source, self.graph))

    @property
    @claim
    def watches(self) -> bool:
        """False if there is nothing to do at all: generated code is then left untouched."""
        return self.level != "off" or self.find is not None or self.against_eager

    def as_plain(self) -> dict[str, object]:
        """As JSON takes it, for another process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> ValueOptions:
        """What ``as_plain`` gave, back."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
        }
        return cls(**fields)

    def takes(self, launch: Launch) -> bool:
        """True if a launch passes every filter."""
        source = [f"{line.file}:{line.line}" for line in launch.sources]
        return (
            _matches(self.graph, [launch.graph, direction_of(launch.graph)])
            and _matches(self.category, [launch.category])
            and _matches(self.kernel, [launch.kernel_name, launch.call or "", launch.launch_id])
            and _matches(self.module, list(launch.modules))
            and _matches(self.source, source)
        )

    @claim
    def takes_call(self, index: int) -> bool:
        """True if the ``index``-th call of a graph (from 0) is selected."""
        ranges = parse_calls(self.calls)
        return not ranges or any(low <= index and (high is None or index <= high) for low, high in ranges)


_FLOAT_RANGES = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38,
                 "float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}  # fmt: skip


def from_environment(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The options that Inductor's own variables for its printer of intermediate values ask for."""
    environment = os.environ if environment is None else environment
    found: dict[str, Any] = {}
    level = _LEVEL_OF_VARIABLE.get(environment.get(PRINTER_VARIABLE, "").strip())
    if level is not None:
        found["level"] = level
    names = [name.strip() for name in environment.get(FILTER_VARIABLE, "").split(",") if name.strip()]
    if names:
        found["kernel"] = tuple(names)
    return found


def parse_calls(text: str | None) -> list[tuple[int, int | None]]:
    """Ranges of call numbers.

    >>> parse_calls("0,2-4,7-")
    [(0, 0), (2, 4), (7, None)]
    """
    ranges: list[tuple[int, int | None]] = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        low, dash, high = part.strip().partition("-")
        try:
            ranges.append((int(low), int(high) if high else None if dash else int(low)))
        except ValueError:
            raise UsageError(f"{text!r} are no call numbers. Write them as 0, 2-4 or 0,7-.") from None
    return ranges


def load_predicate(options: ValueOptions) -> Callable[[Any], Any] | None:
    """The function that marks bad elements, where the question is not answered by counting NaN and Inf.

    Raises ``UsageError`` if a named predicate cannot be imported.
    """
    if options.find == "overflow" and options.beyond is not None:
        limit = _FLOAT_RANGES[options.beyond]
        return lambda tensor: (tensor.abs() > limit) if tensor.is_floating_point() else False
    if options.find is None or options.find in QUESTIONS:
        return None
    module, _, name = options.find.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the predicate {options.find} cannot be loaded: {ended(str(error))} Name it as module:function."
        ) from error
    if not callable(found):
        raise UsageError(f"{options.find} is no function.")
    predicate: Callable[[Any], Any] = found
    return predicate


def _matches(patterns: tuple[str, ...], values: list[str]) -> bool:
    if not patterns:
        return True
    for pattern in patterns:
        pattern = pattern.lower()
        for value in (value.lower() for value in values):
            if fnmatch.fnmatchcase(value, pattern) or (not set(pattern) & set("*?[") and pattern in value):
                return True
    return False
