"""How far convolutions of three dimensions are off: ``python -m benchmarks.operators.deep_convolutions [MODEL]``.

Of the eager calls in ``data/h200``, none of which taught convolutions: by what was learned of volumes, by the
convolution of two dimensions that each folds into (``work/depth_folding.py``), and by how far such calls stay
above rooflines, which learned of them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np

from benchmarks.models.fit_eager import call_of, measured
from torchledger.expecting.volume_columns import OF_VOLUMES
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Prediction, StepCall
from torchledger.predicting.devices import find_model
from torchledger.predicting.eager_launches import launch_of
from torchledger.predicting.step_calls import price_calls

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

_DIMENSIONS = 5


def deep_calls() -> list[StepCall]:
    """Measured convolutions, and their gradients, over images of three dimensions that make a launch."""
    rows = [row for name in ("eager", "calls") for row in measured(name)]
    calls = [call_of(row, order) for order, row in enumerate(rows) if "aten::convolution" in row["name"]]
    deep = [call for call in calls if any(len(each.shape) == _DIMENSIONS for each in call.arguments)]
    return [call for call in deep if launch_of(call, "cuda:0") is not None]


def _report(told: str, said: list[Prediction], taken: list[float]) -> None:
    off = np.log([each.duration_us for each in said]) - np.log(taken)
    size = 100 * np.abs(np.expm1(off))
    hold = np.mean([each.low_us <= us <= each.high_us for each, us in zip(said, taken, strict=True)])
    print(
        f"{told}: {len(off)} calls, mean error {size.mean():.1f} %, median {np.median(size):.1f}, nine of ten within a "
        f"factor of {np.exp(np.quantile(np.abs(off), 0.9)):.2f}, intervals hold {hold:.0%}"
    )


def without_volumes(model: TimeModel) -> TimeModel:
    """A model that learned of none."""
    return replace(model, entries={key: one for key, one in model.entries.items() if not key.endswith(OF_VOLUMES)})


def main() -> None:
    """Ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="H200")
    model = find_model(parser.parse_args().model)
    for name in ("aten::convolution", "aten::convolution_backward"):
        calls = [call for call in deep_calls() if call.name == name]
        taken = [call.samples_us[0] for call in calls]
        # A call whose FLOPs are unknown makes no launch.
        by_cost = [StepCall(**{**vars(call), "flops": None}) for call in calls]
        _report(name, [said for _, said in price_calls(model, calls, ran_on_cpu=False)], taken)
        folded = price_calls(without_volumes(model), calls, ran_on_cpu=False)
        _report("  folded", [said for _, said in folded], taken)
        _report("  above rooflines", [said for _, said in price_calls(model, by_cost, ran_on_cpu=False)], taken)


if __name__ == "__main__":
    main()
