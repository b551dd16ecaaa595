"""What ``torch.utils.checkpoint`` takes of the host for itself.

    python -m benchmarks.machines.checkpoint_cost [-o FILE]

Modules of a few operators on tiny tensors, with their gradients, plain and checkpointed, by processor time on one
thread, the least of seven rounds. What is left of the difference when the forward is taken off is checkpoint's own: a
part for each call and one for each tensor that is saved inside.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}/checkpoint_cost.json"),)

LAYERS = (1, 4, 16)
SAVED_A_LAYER = 3
"""What autograd saves of a layer: both factors of its product, and what its sine is of."""


def least_us(run: Callable[[], object], calls: int) -> float:
    """Processor time of a call, the least of seven rounds."""
    for _ in range(calls // 5):
        run()
    times = []
    for _ in range(7):
        begun = time.process_time()
        for _ in range(calls):
            run()
        times.append((time.process_time() - begun) / calls * 1e6)
    return min(times)


def own_us(layers: int, *, reentrant: bool, calls: int) -> float:
    """Checkpoint's own time around so many layers."""
    import torch
    from torch.utils.checkpoint import checkpoint

    weight = torch.ones(4, requires_grad=True)
    given = torch.ones(4, requires_grad=True)

    def module(x: torch.Tensor) -> torch.Tensor:
        for _ in range(layers):
            x = torch.sin(x * weight)
        return x

    forward = least_us(lambda: module(given), calls)
    plain = least_us(lambda: module(given).sum().backward(), calls)
    again = least_us(lambda: checkpoint(module, given, use_reentrant=reentrant).sum().backward(), calls)
    return again - plain - forward


def main() -> None:
    """Measure both kinds, and print a call's part and a saved tensor's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    found = {}
    for reentrant in (False, True):
        own = [own_us(layers, reentrant=reentrant, calls=options.calls) for layers in LAYERS]
        saved_us = (own[-1] - own[0]) / (LAYERS[-1] - LAYERS[0]) / SAVED_A_LAYER
        call_us = own[0] - LAYERS[0] * SAVED_A_LAYER * saved_us
        kind = "reentrant" if reentrant else "not reentrant"
        found[kind] = {"call_us": round(call_us, 1), "saved_us": round(saved_us, 1), "own_us": own}
        print(f"{kind}: {call_us:.0f} us a call, {saved_us:.1f} us a tensor that is saved inside")
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
