"""How far prices of products with few rows and columns over long sums are off, with and without their sums.

``python benchmarks/thin_products.py [--model H200]`` judges ``data/h200/thin_products_torch2.11.launches``, of
``drawn_library.py measure --kinds thin``: products of float32 that are rounded for the tensor cores. Needs no GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections import defaultdict
from pathlib import Path

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
    said = {each.subject: each for each in predict_launches(model, [each.launch for each in measured], allow_tf32=True)}
    found: dict[tuple[str, bool], list[tuple[float, float, bool]]] = defaultdict(list)
    for each in measured:
        price, us = said.get(each.launch.launch_id), each.duration_us
        if price is None or us is None or price.low_us is None or price.high_us is None:
            continue
        is_by_sum = NOTE in (price.note or "")
        holds = price.low_us <= us <= price.high_us
        found[operation_of(each.launch), is_by_sum].append((us, price.duration_us, holds))
    print("| operator | decided by its sums | times | mean error, % | in sum, % | intervals hold, % |")
    print("|---|---|---|---|---|---|")
    for (name, is_by_sum), times in sorted(found.items()):
        error = 100 * statistics.mean(abs(price / us - 1) for us, price, _ in times)
        off = 100 * (sum(price for _, price, _ in times) / sum(us for us, _, _ in times) - 1)
        held = 100 * statistics.mean(holds for *_, holds in times)
        print(f"| {name} | {'yes' if is_by_sum else 'no'} | {len(times)} | {error:.1f} | {off:+.1f} | {held:.0f} |")


if __name__ == "__main__":
    main()
