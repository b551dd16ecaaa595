"""What a plan says of each call, in its ledger."""

from __future__ import annotations

from pathlib import Path

from tests.factories import make_run, make_step, make_step_call

from torchledger.nouns import Prediction, StepCall, TensorArgument
from torchledger.planning.kept_prices import keep_prices, times_of_calls
from torchledger.predicting.devices import find_model
from torchledger.store import LedgerWriter, open_ledger


def test_prices_are_written_beside_the_calls_that_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "plan.ledger"
    square = TensorArgument((512, 512), "bfloat16", (512, 1))
    calls = [
        make_step_call(order=0, kind="graph", name="forward_0", phase="forward"),
        make_step_call(order=1, name="aten::mm", kernels=1, arguments=(square, square), flops=2 * 512**3),
        make_step_call(order=2, name="aten::view", kernels=0),
    ]
    with LedgerWriter(path) as writer:
        writer.add(make_run(), make_step(), *calls)
    launches = [
        Prediction(f"forward_0#{order}", 5.0, 4.0, 6.0, 0.9, "inside", "NVIDIA H200", "add") for order in range(3)
    ]
    times = times_of_calls(find_model("H200"), path, launches)
    assert times[0] == 15.0 and times[1] > 1.0 and 2 not in times
    keep_prices(path, times)
    with open_ledger(path) as ledger:
        kept = ledger.read(StepCall)
    assert [call.order for call in kept] == [0, 1, 2]
    assert [call.predicted_us for call in kept] == [times[0], times[1], None]
