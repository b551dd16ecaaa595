"""Models that borrow what they have from the H200's, kept as they are when that one is learned anew.

    python benchmarks/lent_models.py whole H100 -o WHOLE.tlmodel        # beside the H200's of before
    python benchmarks/lent_models.py beside WHOLE.tlmodel -o FILE       # beside the new one

The first writes all that a shipped model answers with, the second leaves out again what the H200's still has: what was
learned anew there stands whole in the file, and no answer changes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from torchledger.predicting.devices import find_model
from torchledger.predicting.model_file import save_model

BASE = "NVIDIA_H200"


def main() -> None:
    """Read and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("whole", "beside"))
    parser.add_argument("model")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    beside = BASE if arguments.what == "beside" else None
    size = save_model(find_model(arguments.model), arguments.output, force=True, beside=beside)
    print(f"{arguments.output}: {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
