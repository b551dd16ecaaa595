"""Every operator of PyTorch's own table of tests in a plan: does it make there what it makes on a CPU?

    python -m benchmarks.plans.planned_operators [--samples 3] [--dtype float32] [--limit 20] [-o FILE.json] [NAME ...]

Each is called on samples of the table, forward and backward, once for real and once in a dry run that has no device.
Told of: what fails there alone, and results of another number, shape or dtype. Counted apart are what a plan cannot
know and says (sizes and values that it noted or refused), and strides, which a GPU may choose otherwise than a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.capture.every_operator import table

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("add", "nn.functional.ctc_loss", "linalg.cholesky", "nonzero"),)

DEVICE = "H200"

_INHERENT = ("depends on values", "jagged layout")
"""What a plan's own errors say where no plan could go on."""

_OTHER_ON_GPUS = {
    "_batch_norm_with_update": "statistics of single precision",
    "_native_batch_norm_legit": "statistics of single precision, also those that a CPU leaves out",
    "native_batch_norm": "statistics of single precision, also those that a CPU leaves out",
    "native_layer_norm": "statistics of single precision",
    "linalg.lstsq": "the driver of a GPU tells no rank",
    "tensor_split": "wants its indices on the host",
}
"""Operators that make something else, or want something else, on a GPU."""


@dataclass(frozen=True)
class Fact:
    """What can be known of a tensor without its values."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...]
    device: str


@dataclass
class Outcome:
    """What came of one call: the devices of what it was given, results, gradients, and where it failed."""

    given: set[str] = field(default_factory=set)
    results: list[Fact] = field(default_factory=list)
    gradients: list[Fact | None] = field(default_factory=list)
    failed: str = ""
    error: str = ""
    noted: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """One call of the table."""

    op: Any
    sample: Any
    number: int
    in_place: bool = False

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.op.name} {self.op.variant_test_name}".strip() + (", in place" if self.in_place else "")


@dataclass(frozen=True)
class Difference:
    """How a call in a plan differs from one for real."""

    operator: str
    sample: int
    kind: str
    what: str


class TookTooLong(BaseException):
    """A call that did not come back in time; no handler of errors takes it for one of its own."""


def samples_of(op: Any, dtype_name: str, most: int) -> Iterator[Any]:
    """Samples of an operator on the CPU, of a dtype or of the first one that it has."""
    import torch

    dtypes = op.supported_dtypes("cpu")
    wanted = getattr(torch, dtype_name)
    dtype = wanted if wanted in dtypes else sorted(dtypes, key=str)[0]
    has_gradient = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    torch.manual_seed(5)
    for number, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=has_gradient)):
        if number == most:
            return
        yield sample


def moved(value: Any, device: str) -> Any:
    """Arguments with copies of their tensors on a device."""
    import torch

    if isinstance(value, torch.Tensor):
        made = value.detach().to(device) if device != "cpu" else value.detach().clone()
        return made.requires_grad_(value.requires_grad)
    if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
        return device
    if isinstance(value, dict):
        return {key: moved(each, device) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(each, device) for each in value))
    if isinstance(value, (list, tuple)):
        return type(value)(moved(each, device) for each in value)
    return value


def _copied(value: Any) -> Any:
    """What may be changed: a leaf that wants a gradient may not."""
    import torch

    return value.clone() if isinstance(value, torch.Tensor) else [each.clone() for each in value]


def fact_of(tensor: Any) -> Fact:
    """What is known of a tensor; a sparse one has no strides."""
    import torch

    strides = tuple(tensor.stride()) if tensor.layout is torch.strided else ()
    return Fact(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), strides, tensor.device.type)


def call(case: Case, device: str, seconds: float) -> Outcome:
    """One call forward and backward on a device, for so many seconds at most."""
    import torch

    from torchledger._torch.tensors import tensors_in

    outcome, stage = Outcome(), "inputs"
    sample, in_place = case.sample, case.in_place
    function = case.op.get_inplace() if in_place else case.op
    try:
        with _within(seconds):
            given = moved((sample.input, sample.args, sample.kwargs), device)
            outcome.given = {each.device.type for each in tensors_in(given)}
            stage = "forward"
            result = function(_copied(given[0]) if in_place else given[0], *given[1], **given[2])
            found = list(tensors_in(result))
            outcome.results = [fact_of(each) for each in found]
            roots = [each for each in found if each.requires_grad]
            leaves = [each for each in tensors_in(given) if each.requires_grad]
            stage = "backward"
            if roots and leaves:
                ones = [torch.ones_like(each) for each in roots]
                gradients = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
                outcome.gradients = [None if each is None else fact_of(each) for each in gradients]
    except TookTooLong:
        outcome.failed, outcome.error = stage, f"not done after {seconds:.0f} s"
    except Exception as error:
        text = str(error)
        outcome.failed, outcome.error = stage, f"{type(error).__name__}: {text.splitlines()[0] if text else ''}"
    return outcome


@contextlib.contextmanager
def _within(seconds: float) -> Iterator[None]:
    def late(*_: Any) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def in_a_plan(program: Callable[[], None]) -> None:
    """Run what is no training: that it has no step is no failure here."""
    from torchledger.errors import PlanError
    from torchledger.planning.dry_run import run_without_device
    from torchledger.predicting.devices import find_model

    with tempfile.TemporaryDirectory() as folder:
        try:
            run_without_device(program, Path(folder) / "operators.ledger", find_model(DEVICE).machine.device)
        except PlanError as error:
            if "no step was recorded" not in str(error):
                raise


def planned_outcomes(cases: Sequence[Case], seconds: float) -> list[Outcome]:
    """What comes of each call on the device of a plan, and what was noted of it."""
    outcomes: list[Outcome] = []

    def program() -> None:
        import torch

        outcomes.clear()  # a program without a step is run again, by its lines
        mode: Any = torch.zeros(1, device="cuda").fake_mode  # type: ignore[attr-defined]
        for case in cases:
            before = _noted(mode)
            with contextlib.redirect_stdout(io.StringIO()):
                outcome = call(case, "cuda", seconds)
            outcome.noted = sorted(_noted(mode) - before)
            outcomes.append(outcome)

    in_a_plan(program)
    return outcomes


def _noted(mode: Any) -> Counter[str]:
    counted: Counter[str] = Counter()
    for each in mode.stand_ins:
        counted[each.asked] += each.count
    return counted


def compare(real: Outcome, planned: Outcome) -> tuple[str, str]:
    """The kind of a difference and what it is in words; of none the kind is ``alike``."""
    if real.failed:
        return "fails for real", real.error
    if planned.failed:
        if any(each in planned.error for each in _INHERENT):
            return "depends on values, refused", planned.error
        if "not done after" in planned.error:
            return "hangs", f"{planned.failed}: {planned.error}"
        return f"fails {planned.failed}", planned.error
    pairs: list[tuple[str, list[Any], list[Any]]] = [
        ("result", real.results, planned.results),
        ("gradient", real.gradients, planned.gradients),
    ]
    other_strides, has_device = "", "cuda" in planned.given
    for name, left, right in pairs:
        if len(left) != len(right):
            return "another number of tensors", f"{len(right)} {name}s for {len(left)}"
        for one, other in zip(left, right, strict=True):
            if (one is None) != (other is None):
                return "another gradient", f"{other} for {one}"
            if one is None or other is None:
                continue
            if other.device != "cuda" and has_device:
                return "on the host", f"{name} of {one.shape}"
            if one.dtype != other.dtype:
                return "another dtype", f"{name} of {other.dtype} for {one.dtype}"
            if one.shape != other.shape:
                is_told = any(each.startswith(("the size", "the value")) for each in planned.noted)
                said = f"{name} of {other.shape} for {one.shape}"
                return ("depends on values, noted" if is_told else "another shape"), said
            if one.strides != other.strides:
                other_strides = other_strides or f"{name} {other.shape} with {other.strides} for {one.strides}"
    return ("other strides", other_strides) if other_strides else ("alike", "")


_COUNTED_ALONE = (
    "alike",
    "other strides",
    "fails for real",
    "other on a GPU",
    "depends on values, noted",
    "depends on values, refused",
)


def main() -> None:
    """Call them all and tell what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--limit", type=float, default=20.0, metavar="SECONDS", help="for one call")
    parser.add_argument("--all", action="store_true", help="also tell of each that is only counted")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)  # torch writes down each rule that fails, also where a plan knows another way
    began = time.monotonic()
    cases: list[Case] = []
    for op in table(options.names):
        try:
            samples = list(samples_of(op, options.dtype, options.samples))
        except Exception as error:
            print(f"{op.name}: no samples: {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        ways = (False, True) if op.get_inplace() is not None else (False,)
        cases += [Case(op, sample, number, way) for way in ways for number, sample in enumerate(samples)]
    real = [call(case, "cpu", options.limit) for case in cases]
    print(f"{len(cases)} calls for real after {time.monotonic() - began:.0f} s", flush=True)
    planned = planned_outcomes(cases, options.limit)
    differences = []
    for case, one, other in zip(cases, real, planned, strict=True):
        kind, what = compare(one, other)
        if kind.startswith(("another", "fails forward")) and case.op.name in _OTHER_ON_GPUS:
            kind, what = "other on a GPU", _OTHER_ON_GPUS[case.op.name]
        differences.append(Difference(case.name, case.number, kind, what))
        if kind not in _COUNTED_ALONE or (options.all and kind != "alike"):
            print(f"{case.name} #{case.number}: {kind}: {what[:300]}", flush=True)
    for kind, count in Counter(each.kind for each in differences).most_common():
        operators = len({each.operator for each in differences if each.kind == kind})
        print(f"{kind}: {count} calls of {operators} operators", flush=True)
    total = len({each.operator for each in differences})
    print(f"{total} operators, {len(cases)} calls, {time.monotonic() - began:.0f} s", flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps([asdict(each) for each in differences], indent=1))


if __name__ == "__main__":
    main()
