"""A made-up ledger of any size whose books balance: for tests of reports and for benchmarks of reading."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from factories import make_device, make_environment, make_run
from torchledger.nouns import Buffer, Category, FlopReference, Graph, Kernel, Launch, LoopNest, Run, SourceLine
from torchledger.store import LedgerWriter

_PATTERN: tuple[tuple[str, Category, str], ...] = (
    ("triton_per_fused_native_layer_norm", "persistent_reduction", "ln"),
    ("extern_kernels.addmm", "extern", "attn.qkv"),
    ("torch.ops.aten._scaled_dot_product_flash_attention.default", "extern", "attn"),
    ("extern_kernels.mm", "extern", "attn.proj"),
    ("triton_poi_fused_gelu", "pointwise", "mlp"),
    ("triton_red_fused_sum", "reduction", "mlp.up"),
)
_ROWS, _WIDTH = 2048, 768


def write_ledger(path: Path, *, launches: int = 60, **run_changes: object) -> Path:
    """One forward and one backward graph with ``launches`` launches in all."""
    forward = launches // 3
    finished = {"status": "finished", "exit_code": 0, "finished_utc": "2026-11-21T00:01:00Z"}
    with LedgerWriter(path) as writer:
        writer.add(make_ledger_run(**(finished | run_changes)))
        for name, direction, count in (
            ("forward_0", "forward", forward),
            ("backward_0", "backward", launches - forward),
        ):
            made = list(_make_launches(name, count))
            reference = FlopReference("model", {"mm": _total_flops(count)})
            graph = Graph(
                name=name,
                direction=direction,  # type: ignore[arg-type]
                compile_id="0/0",
                model_key="model_0",
                wrapper_source="def call(args):\n" + "\n".join(f"    {launch.call}" for launch in made) + "\n",
                wrapper_calls=tuple(launch.kernel_name for launch in made),
                flop_references=(reference,),
                devices=("cuda:0",),
            )
            writer.add(graph, *_make_kernels(made), *made, replace=True)
    return path


def make_ledger_run(**changes: object) -> Run:
    gpu = make_device(name="NVIDIA H200", kind="cuda", num_multiprocessors=132, compute_capability=(9, 0))
    environment = make_environment(torch="2.11.0", triton="3.6.0", cuda="13.0")
    return make_run(**({"devices": (gpu,), "environment": environment} | changes))


def _make_launches(graph: str, count: int) -> Iterator[Launch]:
    for order in range(count):
        stem, category, part = _PATTERN[order % len(_PATTERN)]
        layer = order // len(_PATTERN)
        is_extern = category == "extern"
        name = stem if is_extern else f"{stem}_{order}"
        yield Launch(
            graph=graph,
            order=order,
            kernel=f"{hash_of(stem) if is_extern else hash_of(graph, name):012x}",
            kernel_name=name,
            category=category,
            device="cuda:0",
            buffers=(
                Buffer("arg0", "input", "bfloat16", (_ROWS, _WIDTH), (_WIDTH, 1), "cuda:0", 0, 3_145_728, 0),
                Buffer(f"buf{order}", "output", "bfloat16", (_ROWS, _WIDTH), (_WIDTH, 1), "cuda:0", 0, 0, 3_145_728),
            ),
            aten_ops=("aten.mm.default",) if is_extern else ("aten.gelu.default", "aten.mul.Tensor"),
            fx_nodes=(f"node_{order}",),
            sources=(SourceLine("/home/user/model.py", 10 + order % 40, "forward", "x = self.mlp(x)"),),
            modules=(f"transformer.h.{layer}.{part}",),
            wrapper_line=2 + order,
            call=f"{name}(arg0, buf{order})",
            flops=_launch_flops(order),
            vector_flops=0 if is_extern else 5 * _ROWS * _WIDTH,
            loops=() if is_extern else (LoopNest((_ROWS * _WIDTH,), ops={"mul": 3, "tanh": 1}),),
        )


def _make_kernels(launches: list[Launch]) -> list[Kernel]:
    by_key = {launch.kernel: launch for launch in launches}
    return [
        Kernel(
            key=key,
            name=launch.kernel_name,
            category=launch.category,
            backend="aten" if launch.category == "extern" else "triton",
            source=None
            if launch.category == "extern"
            else f"# {launch.kernel_name}\n" + "tmp = tl.load(in_ptr0)\n" * 40,
        )
        for key, launch in by_key.items()
    ]


def _launch_flops(order: int) -> int:
    return 2 * _ROWS * _WIDTH * _WIDTH if _PATTERN[order % len(_PATTERN)][1] == "extern" else 0


def _total_flops(count: int) -> int:
    return sum(map(_launch_flops, range(count)))


def hash_of(*parts: str) -> int:
    """A number that is the same in every process."""
    return int.from_bytes(hashlib.sha256("/".join(parts).encode()).digest()[:6])
