"""How far prices of products with few rows and columns over long sums are off, with and without their sums.

``python benchmarks/thin_products.py [--model H200]`` judges ``data/h200/thin_products_torch2.11.launches``, of
``drawn_library.py measure --kinds thin``: products of float32 that are rounded for the tensor cores. "Without" is the
model's price alone. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path
from unittest.mock import patch

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = ((),)
DATA = Path(__file__).resolve().parent.parent / "data" / "h200" / "thin_products_torch2.11.launches"


def main() -> None:
    """Print a line for each operator, of products that their sums decide and of others."""
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.launches import predict_launches
    from torchledger.predicting.whole_sums import NOTE
    from torchledger.store.launch_file import read_launches
    from torchledger.work.categories import operation_of

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="H200")
    model = find_model(parser.parse_args().model)
    measured = [each for each in read_launches(DATA).launches if each.duration_us]
    launches = [each.launch for each in measured]
    said = {each.subject: each for each in predict_launches(model, launches, allow_tf32=True)}
    with patch("torchledger.predicting.launches.at_least_its_sum", lambda model, launch, said, **_: said):
        alone = {each.subject: each for each in predict_launches(model, launches, allow_tf32=True)}
    found: dict[tuple[str, bool], list[tuple[float, float, float, bool]]] = defaultdict(list)
    for each in measured:
        price, us = said.get(each.launch.launch_id), each.duration_us
        if price is None or us is None or price.low_us is None or price.high_us is None:
            continue
        is_by_sum = NOTE in (price.note or "")
        holds = price.low_us <= us <= price.high_us
        without_us = alone[each.launch.launch_id].duration_us
        found[operation_of(each.launch), is_by_sum].append((us, without_us, price.duration_us, holds))
    print("| operator | decided by its sums | times | mean error, %: without, with | in sum, % | intervals hold, % |")
    print("|---|---|---|---|---|---|")
    for (name, is_by_sum), times in sorted(found.items()):
        us_of_all, *both, held = zip(*times, strict=True)
        errors = [
            100 * statistics.mean(abs(one / us - 1) for one, us in zip(each, us_of_all, strict=True)) for each in both
        ]
        off = [100 * (sum(each) / sum(us_of_all) - 1) for each in both]
        numbers = f"{errors[0]:.1f}, {errors[1]:.1f} | {off[0]:+.1f}, {off[1]:+.1f} | {100 * statistics.mean(held):.0f}"
        print(f"| {name} | {'yes' if is_by_sum else 'no'} | {len(times)} | {numbers} |")


if __name__ == "__main__":
    main()
