"""What torch and Inductor choose by asking a GPU: ``python -m benchmarks.plans.choices_cuda measure -o CHOICES.json``.

Two choices change which kernels a program has: the backend of attention, by sizes, dtypes, masks and what else torch's
C++ looks at, and whether a product of sizes that are not aligned is done between padded copies, which Inductor times.
Both are asked at drawn sizes. ``judge CHOICES.json [--model H100]`` says how often a plan, which has no GPU to ask,
decides the same (``_torch/fakes/attention.py``, ``predicting/padding.py``).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from torchledger.predicting.padding import SAVES
from torchledger.work.unaligned import UnalignedProduct

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("measure", "-o", "{out}/choices.json"),)

_MOST_FLOPS = 1e12
_MOST_ELEMENTS = 2**28


def draw_attention(pick: random.Random) -> dict[str, Any]:
    """One call: sizes, strides of its mask, and flags."""
    heads = pick.choice((1, 2, 4, 8, 12, 16))
    groups = pick.choice([1, 1, 1, *[each for each in (2, 4) if heads % each == 0]])
    width = pick.choice((8, 16, 24, 32, 40, 64, 64, 64, 72, 80, 96, 100, 128, 160, 192, 256, 257, 320))
    length = pick.choice((1, 7, 16, 64, 77, 128, 197, 256, 512))
    keys = length if pick.random() < 0.6 else pick.choice((1, 8, 77, 128, 256, 300))
    batch, mask = pick.choice((1, 2, 3)), None
    if pick.random() < 0.65:
        sides = [pick.choice((batch, batch, 1)), pick.choice((heads, 1, 1)), pick.choice((length, length, 1)), keys]
        if pick.random() < 0.1:
            sides[3] = 1
        mask = {
            "size": sides[4 - pick.choice((2, 3, 4, 4, 4, 4)) :],
            "dtype": pick.choice(("bool", "own")),
            "gradient": pick.random() < 0.15,
            "stride": pick.choice(("dense", "dense", "expanded", "one number", "turned")),
        }
    return {
        "batch": batch, "heads": heads, "groups": groups, "width": width, "length": length, "keys": keys,
        "value_width": width if pick.random() < 0.9 else pick.choice((32, 64, 128)),
        "dtype": pick.choice(("bfloat16", "bfloat16", "float16", "float32")),
        "layout": pick.choice(("blhd", "bhld", "turned")), "mask": mask,
        "causal": mask is None and pick.random() < 0.4, "dropout": pick.choice((0.0, 0.0, 0.1, 0.125, 0.5)),
        "shares": groups > 1 and pick.random() < 0.8, "gradient": pick.random() < 0.5,
    }  # fmt: skip


def attention_of(row: dict[str, Any], device: str) -> int | None:
    """The number of torch's ``SDPBackend`` for a drawn call; ``None`` where torch refuses it."""
    import torch

    dtype = getattr(torch, row["dtype"])

    def tensor(heads: int, length: int, width: int) -> Any:
        batch = row["batch"]
        if row["layout"] == "bhld":
            made = torch.empty(batch, heads, length, width, device=device, dtype=dtype)
        elif row["layout"] == "blhd":
            made = torch.empty(batch, length, heads, width, device=device, dtype=dtype).transpose(1, 2)
        else:
            made = torch.empty(batch, heads, width, length, device=device, dtype=dtype).mT
        return made.requires_grad_(row["gradient"])

    kv_heads = row["heads"] // row["groups"] if row["shares"] else row["heads"]
    query = tensor(row["heads"], row["length"], row["width"])
    key, value = tensor(kv_heads, row["keys"], row["width"]), tensor(kv_heads, row["keys"], row["value_width"])
    mask = None
    if (described := row["mask"]) is not None:
        kind = torch.bool if described["dtype"] == "bool" else dtype
        size = described["size"]
        if described["stride"] == "one number":
            mask = torch.zeros([1] * len(size), device=device, dtype=kind).expand(size)
        elif described["stride"] == "turned":
            mask = torch.zeros([*size[:-2], size[-1], size[-2]], device=device, dtype=kind).mT
        elif described["stride"] == "expanded":
            mask = torch.zeros([*[1] * (len(size) - 1), size[-1]], device=device, dtype=kind).expand(size)
        else:
            mask = torch.zeros(size, device=device, dtype=kind)
        if described["gradient"] and kind != torch.bool:
            mask.requires_grad_()
    try:
        return int(
            torch._fused_sdp_choice(
                query, key, value, mask, row["dropout"], row["causal"], scale=None, enable_gqa=row["shares"]
            )
        )
    except RuntimeError:
        return None


def draw_product(pick: random.Random) -> dict[str, Any]:
    """One product of sizes as models have them, at least one of which is not aligned."""
    dtype = pick.choice(("bfloat16", "bfloat16", "float16", "float32", "tf32"))
    aligned = _aligned_elements(dtype)
    while True:
        operator = pick.choice(("mm", "mm", "addmm", "bmm"))
        m, k, n = (round(2 ** pick.uniform(4, 14)) for _ in range(3))
        m, k, n = (size if pick.random() < 0.45 else max(aligned, size // aligned * aligned) for size in (m, k, n))
        batch = round(2 ** pick.uniform(0, 8)) if operator == "bmm" else 1
        if not any(size % aligned for size in (m, k, n)) or 2 * batch * m * k * n > _MOST_FLOPS:
            continue
        if batch * max(m * k, k * n, m * n) > _MOST_ELEMENTS:
            continue
        return {
            "operator": operator, "batch": batch, "m": m, "k": k, "n": n, "dtype": dtype,
            "turned": [pick.random() < 0.4, pick.random() < 0.5], "planned": [pick.random() < 0.4 for _ in range(2)],
        }  # fmt: skip


def _aligned_elements(dtype: str) -> int:
    """Elements of the 16 bytes that a tensor core loads at once."""
    return 8 if dtype in ("bfloat16", "float16") else 4


def _product_tensors(row: dict[str, Any]) -> list[Any]:
    import torch

    dtype = torch.float32 if row["dtype"] == "tf32" else getattr(torch, row["dtype"])
    front = [row["batch"]] if row["operator"] == "bmm" else []
    found = []
    for (rows, columns), turned in zip(((row["m"], row["k"]), (row["k"], row["n"])), row["turned"], strict=True):
        made = torch.empty([*front, columns, rows] if turned else [*front, rows, columns], device="cuda", dtype=dtype)
        found.append(made.mT if turned else made)
    bias = torch.empty(row["n"], device="cuda", dtype=dtype) if row["operator"] == "addmm" else None
    return [*found, bias]


class _Asked:
    """Inductor's own question, with what it times written down and nothing remembered."""

    def __init__(self) -> None:
        from torch._inductor.fx_passes import pad_mm

        self.times: tuple[float, float] | None = None
        self.planned: list[bool] = []
        self._module: Any = pad_mm
        self._own = pad_mm.is_padded_faster
        pad_mm.is_padded_faster = self._faster
        pad_mm.get_cached_should_pad = lambda key: None
        pad_mm.set_cached_should_pad = lambda key, value: None
        pad_mm.get_cached_base_mm_benchmark_time = lambda key: None
        pad_mm.set_cached_base_mm_benchmark_time = lambda key, value: None
        pad_mm.should_pad_bench_key = lambda *arguments, **named: ""
        pad_mm.should_exclude_padding_time = lambda match, name: self.planned[name == "mat2"]

    def _faster(self, key: str, own_ms: float, padded_ms: float) -> bool:
        self.times = own_ms, padded_ms
        return bool(self._own(key, own_ms, padded_ms))

    def pads(self, row: dict[str, Any]) -> bool:
        import torch

        self.times, self.planned = None, row["planned"]
        left, right, bias = _product_tensors(row)
        operator = getattr(torch.ops.aten, row["operator"])
        ask = getattr(self._module._should_pad, "__wrapped__", self._module._should_pad)
        return bool(ask(None, left, right, operator, bias))


def measure(output: Path, limit_s: float, seed: int) -> None:
    """Ask both at drawn sizes until the time is up; written as it comes."""
    import torch
    from torch._inductor.fx_passes import pad_mm

    pick = random.Random(f"choices {seed}")
    attention: list[dict[str, Any]] = []
    while len(attention) < 3000:
        row = draw_attention(pick)
        row["backend"] = attention_of(row, "cuda")
        attention.append(row)
    told = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "attention": attention}
    print(f"{len(attention)} calls of attention", flush=True)
    asked, products, end = _Asked(), [], time.monotonic() + limit_s
    while time.monotonic() < end:
        row = draw_product(pick)
        dtype = torch.float32 if row["dtype"] == "tf32" else getattr(torch, row["dtype"])
        if not pad_mm.is_mm_compute_bound(row["m"], row["k"], row["n"], dtype):
            continue
        torch.backends.cuda.matmul.allow_tf32 = row["dtype"] == "tf32"
        row["is_padded"] = asked.pads(row)
        row["us"] = [round(1e3 * each, 2) for each in asked.times or ()]
        products.append(row)
        if len(products) % 100 == 0:
            print(f"{len(products)} products, {sum(each['is_padded'] for each in products)} padded", flush=True)
            output.write_text(json.dumps(told | {"products": products}))
    output.write_text(json.dumps(told | {"products": products}))


def judge(told: dict[str, Any], model: str) -> None:
    """Print how many choices a plan for the ``model`` makes as the device made them. Needs no GPU."""
    from torchledger._torch.fakes.device import FakeDevice
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.padding import padding_times

    found = find_model(model)
    with FakeDevice(found.machine.device):
        chosen = [attention_of(row, "cuda") for row in told["attention"]]
    same = sum(mine == row["backend"] for mine, row in zip(chosen, told["attention"], strict=True))
    print(
        f"attention on {told['device']}, torch {told['torch']}: {same:,} of {len(chosen):,} calls by the same backend"
    )
    groups: dict[str, list[tuple[bool, bool, float, float]]] = defaultdict(list)
    for row in told["products"]:
        own_us, padded_us = padding_times(found, product_of(row))
        measured = row["us"][0] / row["us"][1]
        groups[row["dtype"]].append((own_us > SAVES * padded_us, row["is_padded"], own_us / padded_us, measured))
    groups["all"] = [each for some in groups.values() for each in some]
    for name, some in groups.items():
        same = sum(mine == its for mine, its, _, _ in some)
        near = sum(abs(math.log(measured / SAVES)) < 0.1 for *_, measured in some)
        longer = [1.0 if mine == its else max(measured, 1 / measured) for mine, its, _, measured in some]
        print(
            f"{name}: {len(some):,} products, {sum(its for _, its, *_ in some) / len(some):.1%} padded; the same in "
            f"{same / len(some):.1%}, within a tenth of the border {near / len(some):.1%}; what is chosen takes "
            f"{sum(longer) / len(longer) - 1:+.1%}"
        )


def product_of(row: dict[str, Any]) -> UnalignedProduct:
    """A drawn product as a plan asks about it."""
    aligned = _aligned_elements(row["dtype"])
    m, k, n, batch = row["m"], row["k"], row["n"], row["batch"]
    sides = ((m, k), (k, n))
    strides = [(1, first) if turned else (last, 1) for (first, last), turned in zip(sides, row["turned"], strict=True)]
    if row["operator"] == "bmm":
        fronts = [(first * last, *own) for (first, last), own in zip(sides, strides, strict=True)]
    else:
        fronts = list(strides)
    added_m, added_k, added_n = (-size % aligned if size > 1 else 0 for size in (m, k, n))
    return UnalignedProduct(
        operator=row["operator"],
        batch=batch,
        rows=m,
        inner=k,
        columns=n,
        dtype="float32" if row["dtype"] == "tf32" else row["dtype"],
        strides=(fronts[0], fronts[1]),
        added=(added_m, added_k, added_n),
        is_planned=(row["planned"][0], row["planned"][1]),
        is_rounded=row["dtype"] == "tf32",
    )


def main() -> None:
    """Measure, or say how often a plan decides the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("measure", "judge"))
    parser.add_argument("choices", nargs="?", type=Path, help="what was measured, to judge")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--limit", type=float, default=120, help="seconds for products")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="H200")
    options = parser.parse_args()
    if options.what == "judge":
        if options.choices is None:
            parser.error("judge: CHOICES.json, what was measured")
        judge(json.loads(options.choices.read_text()), options.model)
    elif options.output is None:
        parser.error("measure: -o CHOICES.json, where what is chosen goes")
    else:
        measure(options.output, options.limit, options.seed)


if __name__ == "__main__":
    main()
