"""Gives calls that were recorded before records had settings those of the same calls, drawn again without a device.

    python -m benchmarks.operators.eager_redrawn data/h200/eager_torch2.11.json.gz SEED:COUNT ...
    python -m benchmarks.operators.eager_redrawn data/h200/meeting_torch2.11.json.gz --drawing meeting SEED:COUNT ...

A row of program ``eager-SEED`` (``eager_strangers_cuda.py --seed SEED --count COUNT``) has the settings of the drawn
call of its name and tensors, and the bytes of one that makes a tensor of another size; where several such calls differ
in them it has none. Tensors are drawn on the meta device. With ``--drawing`` rows are of programs ``meeting_SEED``, and
those of ``index`` get the settings and the bytes of dimensions that are not the first.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import Any

Key = tuple[Any, ...]


def settings_of_draw(seed: int, count: int, drawing: Any = None) -> dict[Key, dict[str, Any] | None]:
    """By name and shapes of tensors: what the drawn calls were asked for and move, ``None`` where they differ in it."""
    import torch

    from benchmarks.operators.eager_calls.drawn import Pool, draw
    from torchledger._torch.eager_calls import EagerCalls
    from torchledger.work.op_costs import op_cost
    from torchledger.work.settings import settings_of

    pool = Pool("meta", 2**30, seed)
    found: dict[Key, set[Any]] = {}
    for number, (_, call, tensors) in enumerate(draw(seed, count, pool, most_elements=2**27, drawing=drawing)):
        heard = EagerCalls(lambda: None)
        heard.start()
        try:
            result = call(*tensors)
            if result.requires_grad:
                result.backward(pool.take(result.dtype, tuple(result.shape), number))
        except (RuntimeError, NotImplementedError, torch._dynamo.exc.TorchDynamoException):
            pass  # some operators have no shapes without a device: their rows keep unknown settings
        finally:
            heard.stop()
        for each in heard.calls:
            shapes = tuple((tensor.shape, tensor.dtype) for tensor in each.call.tensors[:2])
            told = settings_of(each.call, each.parameters), op_cost(each.call).bytes_moved
            found.setdefault((each.call.name, shapes), set()).add(told)
    return {key: _fields(values) for key, values in found.items()}


def _fields(values: set[Any]) -> dict[str, Any] | None:
    (settings, moved), *others = values
    if others or settings is None:
        return None
    return {"settings": dict(settings)} | ({} if moved is None else {"bytes_moved": moved})


def main() -> None:
    """Write the file anew, with settings where they are certain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("drawn", nargs="+", metavar="SEED:COUNT")
    parser.add_argument("--drawing", choices=("meeting",))
    arguments = parser.parse_args()
    drawing, prefix = None, "eager-"
    if arguments.drawing is not None:
        from benchmarks.operators.eager_calls.meeting import DrawnMeeting

        drawing, prefix = DrawnMeeting, f"{arguments.drawing}_"
    rows = json.loads(gzip.decompress(arguments.data.read_bytes()))
    for text in arguments.drawn:
        seed, count = map(int, text.split(":"))
        known = settings_of_draw(seed, count, drawing)
        own = [row for row in rows if row["program"] == f"{prefix}{seed}"]
        own = [row for row in own if row.get("settings") is None or (drawing and "index" in row["name"])]
        told = 0
        for row in own:
            shapes = tuple((tuple(shape), dtype) for shape, dtype, *_ in row["arguments"][:2])
            fields = known.get((row["name"], shapes))
            if fields is not None:
                is_new = row["name"].startswith(("aten::new_", "aten::index"))
                row |= fields if is_new else {"settings": fields["settings"]}
                told += 1
        print(f"seed {seed}: {told} of {len(own)} calls", flush=True)
    arguments.data.write_bytes(gzip.compress(json.dumps(rows, separators=(",", ":")).encode(), mtime=0))


if __name__ == "__main__":
    main()
