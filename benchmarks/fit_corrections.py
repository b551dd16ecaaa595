"""What stands beside the regressors of a model: ``python benchmarks/fit_corrections.py MODEL -o NEW``.

From ``data/h200``: how far the expected times of float32 convolutions are off. Nothing else in MODEL changes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from torchledger.fitting.convolution_factors import fit_convolution_factors
from torchledger.predicting.model_file import find_model, save_model
from torchledger.store.launch_file import read_launches

DATA = Path(__file__).resolve().parent.parent / "data" / "h200"


def main() -> None:
    """Fit, print, write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    found = dict(fit_convolution_factors(read_launches(DATA / "fused_torch2.11.launches").launches, model.machine))
    for name, value in sorted(found.items()):
        print(f"{name}: {value:.3f}")
    save_model(replace(model, extras={**model.extras, **found}), arguments.output, force=True)


if __name__ == "__main__":
    main()
