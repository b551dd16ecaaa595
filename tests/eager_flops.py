"""FLOPs that a step of a script does when nothing is compiled: ``python eager_flops.py SCRIPT...``, as JSON.

Each script is run with few steps and with more; the difference is what the further steps do, without the set-up.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import runpy
import sys
from collections import ChainMap
from typing import Any

FEW, MORE = 3, 7

LACKING = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
    "aten::_euclidean_dist",
)
"""What torch's counter has no formula for and ``flop_counter`` gives it one."""


def flop_counter() -> Any:
    """Torch's own counter. It has no formula for attention on a CPU, for which its own for attention stands in, and
    none for distances of points. Of higher-order operators it counts what the program takes of them, where torch's
    takes both ways of a conditional and no loop, and of operators of the program's own what they are made of."""
    import torch
    from torch.utils.flop_counter import (
        FlopCounterMode,
        flop_registry,
        sdpa_backward_flop_count,
        sdpa_flop_count,
    )

    from torchledger._torch.eager_flops import InsideOperators, NoModules

    aten = torch.ops.aten
    lacking = {
        # What it is made of is one product of points with their squares and ones beside them.
        aten._euclidean_dist: lambda x, y, *_, out_shape=None, **__: 2 * math.prod(out_shape) * (x[-1] + 2),
        aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, out_shape=None, **__: sdpa_flop_count(
            q, k, v
        ),
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            lambda grad, q, k, v, *_, out_shape=None, **__: sdpa_backward_flop_count(grad, q, k, v)
        ),
    }

    class Counter(FlopCounterMode):
        def __enter__(self) -> Any:
            self.mode = InsideOperators(self)
            self.mode.__enter__()
            return self

    counter = Counter(display=False, custom_mapping=lacking)
    counter.flop_registry = ChainMap(counter.flop_registry, flop_registry)  # what a script registers later, too
    counter.mod_tracker = NoModules()
    return counter


def flops_of(script: str, steps: int) -> dict[str, int]:
    """FLOPs by operator of a whole run of ``steps`` steps, as torch's own counter counts them."""
    sys.argv = [script, str(steps)]
    with flop_counter() as counter, contextlib.redirect_stdout(io.StringIO()):
        runpy.run_path(script, run_name="__main__")
    return {str(op): int(count) for op, count in counter.get_flop_counts().get("Global", {}).items()}


def main(scripts: list[str]) -> None:
    """Print the FLOPs of one step of each script, by operator."""
    found = {}
    for script in scripts:
        few, more = flops_of(script, FEW), flops_of(script, MORE)
        found[script] = {op: (more[op] - few.get(op, 0)) // (MORE - FEW) for op in more}
    print(json.dumps(found))


if __name__ == "__main__":
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    main(sys.argv[1:])
