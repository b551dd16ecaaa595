"""Which depthwise and grouped layers run their groups one by one.

    python -m benchmarks.operators.convolution_kernels

Of the layers in ``data/h200/layers_torch2.11.npz``, in half precision: by the side of the image and of the filter how
many forwards of one filter a channel launch one kernel for each, and what a launch takes; of other groups the share.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.models.fit_pass_networks import DRAWN, PASSES, Rows, read_rows
from benchmarks.models.teach_convolutions import kind_of

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)

_FILTERS = (3, 4, 5, 7, 9, 11, 13)
_SIDES = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 9), (10, 400))


def told(rows: Rows, which: Any, is_apart: Any) -> str:
    """How many of them there are, how many run one by one, and what a group then takes."""
    us = (rows.time_us / rows.p["groups"])[which & is_apart]
    quartiles = np.percentile(us, (0, 25, 50, 75, 100)) if len(us) else ()
    taken = " at " + " ".join(f"{value:.1f}" for value in quartiles) if len(us) else ""
    return f"{len(us)} of {which.sum()}{taken}"


def main() -> None:
    """Count and print."""
    rows = read_rows(DRAWN[1])
    p = rows.p
    is_half = np.isin(rows.precision, ("bfloat16", "float16"))
    is_apart = np.array([kind_of(name).endswith("*") for name in rows.kernels])
    is_one_each = (p["groups"] == p["c_in"]) & (p["c_out"] == p["c_in"]) & (p["groups"] > 1)
    print("Forwards of one filter a channel, channels last: one by one, of so many, us a channel (quartiles)")
    for low, high in _SIDES:
        of_side = is_half & is_one_each & (rows.direction == 0) & (p["channels_last"] > 0)
        of_side &= (p["height"] >= low) & (p["height"] <= high)
        for size in _FILTERS:
            print(f"  image {low} to {high}, filter {size}: {told(rows, of_side & (p['kernel'] == size), is_apart)}")
        print(f"  image {low} to {high}, filters of 4 and more: {told(rows, of_side & (p['kernel'] >= 4), is_apart)}")
    print("Groups of several channels: one by one, of so many, us a group (quartiles)")
    for number, one in enumerate(PASSES):
        for last in (0, 1):
            which = is_half & (rows.kind == "groups") & (rows.direction == number) & (p["channels_last"] == last)
            print(f"  {one}, channels {'last' if last else 'first'}: {told(rows, which, is_apart)}")


if __name__ == "__main__":
    main()
