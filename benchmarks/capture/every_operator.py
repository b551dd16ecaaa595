"""Every operator of PyTorch's own table of tests, heard and not: does anything change, and is nothing lost?

    python -m benchmarks.capture.every_operator [--device cuda] [--samples 3] [--seconds 300] [-o FILE.json] [NAME ...]

Each is called on samples of the table, forward and backward, once alone, once while its calls are recorded and once
while its FLOPs are counted. Told of: what fails while somebody listens and not alone, what has another result then, and
what the recorder noted as its own fault. Results that differ from one plain call to the next are left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
QUICK: tuple[tuple[str, ...], ...] = (("add", "nn.functional.ctc_loss", "linalg.cholesky"),)

Outcome = tuple[str, list[Any]]


def table(names: list[str]) -> list[Any]:
    """The operators of torch's table, those of ``names`` alone if there are any."""
    try:
        import expecttest  # noqa: F401
    except ImportError:  # the table's module wants it for tests that are not run here
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.common_methods_invocations import op_db

    return [each for each in op_db if (not names or each.name in names) and each.name not in _WITHOUT_VALUES]


_WITHOUT_VALUES = frozenset(
    ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted")
)
"""Operators whose results nobody has written."""


def samples_of(op: Any, device: str, most: int) -> Iterator[Any]:
    """Samples of an operator in single precision, or the first dtype that it has."""
    import torch

    dtypes = op.supported_dtypes(device)
    dtype = torch.float32 if torch.float32 in dtypes else sorted(dtypes, key=str)[0]
    has_gradient = op.supports_autograd and dtype.is_floating_point
    for number, sample in enumerate(op.sample_inputs(device, dtype, requires_grad=has_gradient)):
        if number == most:
            return
        yield sample


def call(op: Any, sample: Any) -> Outcome:
    """What comes of one call forward and backward: an error's first line, or tensors."""
    import torch

    from torchledger._torch.tensors import tensors_in

    torch.manual_seed(3)
    try:
        result = op(sample.input, *sample.args, **sample.kwargs)
        found = list(tensors_in(result))
        roots = [each for each in found if each.requires_grad and each.dtype.is_floating_point]
        given = [each for each in tensors_in((sample.input, sample.args, sample.kwargs)) if each.requires_grad]
        given = [each for each in given if each.is_leaf]
        if roots and given:
            total = sum(each.sum() for each in roots)
            found += [each for each in torch.autograd.grad(total, given, allow_unused=True) if each is not None]
        return "", [each.detach() for each in found]
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", []


def are_alike(one: Outcome, other: Outcome) -> bool:
    """The same error, or the same tensors but for rounding."""
    import torch

    if one[0] or other[0] or len(one[1]) != len(other[1]):
        return one[0] == other[0] and len(one[1]) == len(other[1])
    for left, right in zip(one[1], other[1], strict=True):
        try:
            torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-4, equal_nan=True, check_layout=True)
        except AssertionError:
            return False
    return True


def listeners() -> dict[str, Callable[[], Any]]:
    """What listens to a program: the recorder of its calls and the counter of its FLOPs."""
    from torchledger._torch.eager_calls import EagerCalls
    from torchledger._torch.eager_flops import EagerFlops

    return {"recorded": lambda: EagerCalls(lambda: None), "counted": EagerFlops}


def heard(listener: Any, op: Any, sample: Any) -> tuple[Outcome, list[str]]:
    """A call while somebody listens, and what went wrong in the listener."""
    assert listener.start()
    try:
        outcome = call(op, sample)
    finally:
        listener.stop()
    return outcome, listener.faults


def main() -> None:
    """Call them all and tell what differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no operator after as many")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    began, told, calls, unsteady, done = time.monotonic(), [], 0, 0, 0
    operators = table(options.names)
    for op in operators:
        if time.monotonic() - began > options.seconds:
            break
        done += 1
        try:
            samples = list(samples_of(op, options.device, options.samples))
        except Exception as error:
            print(f"{op.name}: no samples: {type(error).__name__}: {str(error)[:100]}", flush=True)
            continue
        for sample in samples:
            alone = call(op, sample)
            if not are_alike(alone, call(op, sample)):
                unsteady += 1
                continue
            calls += 1
            for way, listener in listeners().items():
                outcome, faults = heard(listener(), op, sample)
                changed = [] if are_alike(alone, outcome) else [outcome[0] or "another result"]
                if changed or faults:
                    name, what = f"{op.name} {op.variant_test_name}".strip(), "; ".join(changed + faults)
                    told.append({"operator": name, "way": way, "what": what[:300], "alone": alone[0][:200]})
                    print(f"{name}, {way}: {what[:200]} (alone: {alone[0][:100] or 'fine'})", flush=True)
    print(
        f"{done} of {len(operators)} operators, {calls} calls, {unsteady} left out as unsteady; "
        f"{len(told)} changed or noted, of {len({each['operator'] for each in told})} operators",
        flush=True,
    )
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
