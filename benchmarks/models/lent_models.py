"""Models that borrow what they have from the H200's, kept as they are when that one is learned anew, or taken along.

    python -m benchmarks.models.lent_models whole H100 -o WHOLE.tlmodel  # beside the H200's of before
    python -m benchmarks.models.lent_models beside WHOLE.tlmodel -o FILE  # beside the new one
    python -m benchmarks.models.lent_models anew WHOLE.tlmodel --before OLD_H200.tlmodel
        [--samples DATA.parquet] -o FILE

The first writes all that a shipped model answers with, the second leaves out again what the H200's still has: what was
learned anew there stands whole in the file, and no answer changes. The third takes what the H200's learned anew in the
place of what was borrowed from it before: where a baseline of both changed, the old regressor would answer for another.
Corrections that the other device taught stay; with its own samples the last one of these entries is learned again.
``--eager`` takes the H200's costs of eager calls too, in the place of those that were borrowed before.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from torchledger.calibrating.choosing import EVALUATION
from torchledger.fitting.call_costs import LIKE_OTHERS, LIKE_OTHERS_ALONG
from torchledger.fitting.correcting import correct_again, error_pct
from torchledger.fitting.regressors import are_equal
from torchledger.fitting.time_model import TimeModel
from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model
from torchledger.sampling.dataset import read_samples

BASE = "NVIDIA_H200"


def renewed(model: TimeModel, before: TimeModel, now: TimeModel) -> tuple[TimeModel, list[str]]:
    """The model with what the base learned anew in place of what it had from the base before; and which entries."""
    entries, taken = dict(model.entries), []
    for key, entry in model.entries.items():
        if key not in before.entries or key not in now.entries:
            continue
        was, new = before.entries[key], now.entries[key]
        if are_equal(entry.blend, was.blend) and not are_equal(was.blend, new.blend):
            entries[key] = replace(entry, blend=new.blend, feature_names=new.feature_names, units=new.units)
            taken.append(key)
    return replace(model, entries=entries), taken


_EAGER = ("aten::", LIKE_OTHERS, LIKE_OTHERS_ALONG)


def with_eager_costs_of(base: TimeModel, model: TimeModel) -> TimeModel:
    """The model with what ``base`` learned of eager calls in the place of what it had."""
    kept = {name: value for name, value in model.extras.items() if not name.startswith(_EAGER)}
    taken = {name: value for name, value in base.extras.items() if name.startswith(_EAGER)}
    return replace(model, extras=kept | taken)


def main() -> None:
    """Read and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("whole", "beside", "anew"))
    parser.add_argument("model")
    parser.add_argument("--before", help="the H200's model that MODEL borrowed from")
    parser.add_argument("--samples", type=Path, help="what was measured of MODEL's device")
    parser.add_argument("--eager", action="store_true", help="take the H200's costs of eager calls")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    model = find_model(arguments.model)
    if arguments.what == "anew":
        if arguments.before is None:
            sys.exit("anew: say what the H200's model was with --before OLD_H200.tlmodel")
        model, taken = renewed(model, find_model(arguments.before), find_model("H200"))
        print(f"taken anew: {', '.join(taken) or 'nothing'}")
        if arguments.samples is not None:
            samples = read_samples(arguments.samples)
            judged = [sample for sample in samples if sample.group == EVALUATION]
            print(f"judged shapes: {error_pct(model, judged)[0]:.3f} % with the corrections of before")
            model = correct_again(model, [sample for sample in samples if sample.group != EVALUATION], taken)
            print(f"judged shapes: {error_pct(model, judged)[0]:.3f} % with corrections learned again")
    if arguments.eager:
        model = with_eager_costs_of(find_model("H200"), model)
    size = save_model(model, arguments.output, force=True, beside=None if arguments.what == "whole" else BASE)
    print(f"{arguments.output}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
