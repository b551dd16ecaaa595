"""Attention of compiled graphs, written as the eager calls that a record would have, and what these are priced at.

    python -m benchmarks.operators.attention_calls [data/h200/attention_torch2.11.launches] [--device H200]

In sample: these launches taught the model. What is judged is that an eager call finds its launch.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.shared.places import ROOT
from torchledger.expecting.launch_attention import AttentionCall, attention_call
from torchledger.nouns import StepCall, TensorArgument
from torchledger.predicting.devices import find_model
from torchledger.predicting.step_calls import price_calls
from torchledger.store.launch_file import MeasuredLaunch, read_launches
from torchledger.work.categories import operation_of
from torchledger.work.op_shapes import Tensor

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

DATA = ROOT / "data" / "h200" / "attention_torch2.11.launches"
_RECORDED = 8
"""Tensors that a record keeps."""


def calls_of(launches: Sequence[MeasuredLaunch]) -> Iterator[tuple[AttentionCall, StepCall]]:
    """What each launch would be as an eager call, its time among its samples."""
    for item in launches:
        name, asked = operation_of(item.launch), attention_call(item.launch)
        if asked is None or item.duration_us is None:
            continue
        given = [_argument(each) for each in item.launch.buffers if each.role != "output"]
        own, mask = given[: 3 + 2 * asked.is_backward], given[3 + 2 * asked.is_backward :]
        rows = own[asked.is_backward].shape[:3]
        sums = TensorArgument((*rows, 1) if asked.library == "cudnn" else rows, "float32", None)
        number = TensorArgument((), "int64", None)
        rest = [sums, number, number] if asked.is_backward else []
        if asked.library != "cudnn" and asked.is_backward:
            tensors = [*own[:4], *mask, own[4], *rest]
        else:
            tensors = [*own, *rest, *mask]
        made = own[1:4] if asked.is_backward else own[:1]
        moved = sum(_bytes_of(each) for each in tensors if each.shape) + sum(map(_bytes_of, made))
        yield (
            asked,
            StepCall(
                step="",
                order=0,
                kind="operator",
                name=f"aten::{name}",
                phase="other",
                kernels=1,
                arguments=tuple(tensors[:_RECORDED]),
                flops=item.launch.flops,
                flops_quality="upper_bound" if asked.is_causal else "exact",
                samples_us=(item.duration_us,),
                bytes_moved=moved,
                settings=(
                    ("is_causal", (int(asked.is_causal),)),
                    *([("dropout", (1,))] if asked.has_dropout else []),
                ),
            ),
        )


def _argument(buffer: object) -> TensorArgument:
    shape, dtype, stride = (getattr(buffer, name) for name in ("shape", "dtype", "stride"))
    return TensorArgument(tuple(shape), dtype, stride)


def _bytes_of(argument: TensorArgument) -> int:
    return Tensor(argument.shape, argument.dtype, argument.stride).bytes or 0


def main() -> None:
    """Print the mean error for each library, direction and kind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("launches", nargs="?", type=Path, default=DATA)
    parser.add_argument("--device", default="H200")
    options = parser.parse_args()
    found = list(calls_of(read_launches(options.launches).launches))
    priced = price_calls(find_model(options.device), [call for _, call in found], ran_on_cpu=False)
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for (asked, call), (_, said) in zip(found, priced, strict=True):
        kind = "drops weights" if asked.has_dropout else "with a mask" if asked.has_bias else "neither"
        direction = "backward" if asked.is_backward else "forward"
        for each in (kind, "all"):
            errors[asked.library, direction, each].append(said.duration_us / call.samples_us[0] - 1)
    print("| library | direction | calls | how many | mean error | mean signed |\n|---|---|---|---|---|---|")
    for (library, direction, kind), each in sorted(errors.items()):
        off = statistics.mean(map(abs, each))
        print(f"| {library} | {direction} | {kind} | {len(each)} | {off:.1%} | {statistics.mean(each):+.1%} |")


if __name__ == "__main__":
    main()
