"""Training programs of several ranks, one for each strategy, small enough for gloo on a CPU.

``torchrun --nproc-per-node N -m benchmarks.jobs.job_programs STRATEGY [--size S] [--device cpu|cuda] [--steps N]
[--late RANK:MS]``. Each rank prints one JSON line: the median of its own steps after the warm-up, and its peak on a
GPU. With ``--late`` one rank is kept busy for so long in each step, between forward and backward: asleep on a CPU, with
products on a GPU. With ``--clocks`` it also prints how long the device took for each phase, and at which clock. Where
``DRAWN_GATE`` and ``JOB_NAME`` are set, the ranks wait together after the warm-up until they are let through
(``drawn_programs.py``), none of them on the device.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

SIZES = {
    "tiny": (64, 2, 32, 4),
    "small": (512, 4, 512, 8),
    "medium": (1024, 8, 1024, 8),
    "large": (2048, 12, 1024, 8),
}
"""Width, blocks, sequence, batch."""


def drawn_size(number: int) -> tuple[int, int, int, int]:
    """One that nobody chose: 0.25 to 0.6 billion parameters, 8,192 or 16,384 tokens."""
    rng = random.Random(f"size of a job {number}")
    while True:
        width, blocks = rng.choice((1280, 1536, 1792, 2304, 2560, 3072)), rng.choice((6, 8, 10, 12, 14))
        sequence, batch = rng.choice((512, 1024, 2048)), rng.choice((4, 8, 16))
        if 0.25e9 < 12 * width**2 * blocks < 0.6e9 and sequence * batch in (8192, 16384):
            return width, blocks, sequence, batch


SIZES |= {f"drawn{number}": drawn_size(number) for number in range(64)}
SIZES |= {f"narrow{blocks}": (256, blocks, 64, 4) for blocks in (4, 8, 12)}
"""So narrow that a GPU is done before the host has launched the next: steps are the host's."""

VOCABULARY = 1024
WARMUP = 8


class Attention(nn.Module):
    """Causal attention; with a group, keys and values are gathered over the ranks that share a sequence."""

    def __init__(self, width: int, group: Any = None) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.head = min(64, width // 4)
        self.group = group

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Heads follow the width that this rank has."""
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        if self.group is not None:
            k, v = (functional.all_gather_tensor_autograd(each.contiguous(), 2, self.group) for each in (k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.group is None)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    """Two products around an activation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Wider, then back."""
        return self.down(nn.functional.gelu(self.up(x)))


class Experts(nn.Module):
    """One expert a rank: an equal share of the tokens goes to each, and comes back."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expert = FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of all ranks for this rank's expert."""
        group = dist.group.WORLD
        shape, tokens = x.shape, x.flatten(0, 1)
        share = [tokens.shape[0] // dist.get_world_size()] * dist.get_world_size()
        given = functional.all_to_all_single_autograd(tokens, share, share, group)
        back = functional.all_to_all_single_autograd(self.expert(given), share, share, group)
        return back.view(shape)


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, *, group: Any = None, experts: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, group)
        self.feed = Experts(width) if experts else FeedForward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Both halves, each with its residual."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed(self.norm2(x))


class Net(nn.Module):
    """An embedding, blocks, and a head; a part of them for a stage of a pipeline."""

    def __init__(self, width: int, blocks: int, *, first: bool = True, last: bool = True, **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width) if first else None
        self.blocks = nn.ModuleList(Block(width, **options) for _ in range(blocks))
        self.head = nn.Linear(width, VOCABULARY, bias=False) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens or hidden states to hidden states or logits."""
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return x if self.head is None else self.head(x)


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross entropy over all tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Place:
    """Where a program runs: rank, device, dtype, and what a step is given."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.device = arguments.device
        if self.device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl" if self.device == "cuda" else "gloo")
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.width, self.blocks, self.sequence, self.batch = SIZES[arguments.size]
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        torch.manual_seed(0)
        self.tokens = torch.randint(0, VOCABULARY, (self.batch, self.sequence), device=self.device)
        self.targets = torch.randint(0, VOCABULARY, (self.batch, self.sequence), device=self.device)
        late = [int(each) for each in (arguments.late or "-1:0").split(":")]
        self.late_rank, self.late_ms = late
        self.weight = torch.randn(4096, 4096, device=self.device, dtype=self.dtype) if self.device == "cuda" else None
        self.phases_ms: dict[str, list[float]] = {}
        self.marked = time.perf_counter()
        self.clocks: Any = None

    def watch_clocks(self) -> None:
        """From now on the device writes down when it comes to each mark."""
        from benchmarks.machines.device_marks import DeviceMarks

        self.clocks = DeviceMarks(8 * self.arguments.steps)

    def net(self, **options: Any) -> Net:
        """The model on this rank's device."""
        return Net(self.width, self.blocks, **options).to(self.device, self.dtype)

    def be_late(self) -> None:
        """Keep this rank busy where it is the one that was asked to be late."""
        if self.rank != self.late_rank:
            return
        if self.weight is None:
            time.sleep(self.late_ms / 1e3)
        else:
            for _ in range(5 * self.late_ms):
                self.weight @ self.weight

    def mark(self, phase: str) -> None:
        """The host has launched all of a phase: what it needed since the mark before is kept."""
        now = time.perf_counter()
        self.phases_ms.setdefault(phase, []).append(1e3 * (now - self.marked))
        if self.clocks is not None:
            self.clocks.mark(phase)
        self.marked = now

    @property
    def name(self) -> str:
        """What this job is called at a gate."""
        return os.environ.get("JOB_NAME", "job")

    def wait_at_gate(self) -> None:
        """Meet, hand back what memory the warm-up left, and wait to be let through without work on the device."""
        if "DRAWN_GATE" not in os.environ:
            return
        from benchmarks.strangers.drawn_programs import wait_at_gate

        dist.barrier()
        self.synchronize()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        wait_at_gate(self.name)

    def synchronize(self) -> None:
        """Wait for the GPU."""
        if self.device == "cuda":
            torch.cuda.synchronize()


Step = Callable[[], None]


def _optimizers(parameters: Iterable[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """One for distributed tensors and one for others: an operator over a list takes no mixture."""
    kinds: dict[type, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault(type(parameter.data), []).append(parameter)
    return [torch.optim.AdamW(some, lr=1e-4) for some in kinds.values()]


def _training(place: Place, model: nn.Module) -> Step:
    optimizers = _optimizers(model.parameters())

    def step() -> None:
        place.mark("between")
        loss = loss_of(model(place.tokens), place.targets)
        place.mark("forward")
        place.be_late()
        loss.backward()
        place.mark("backward")
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        place.mark("optimizer")

    return step


def alone(place: Place) -> Step:
    """Each rank for itself: what the others are compared with."""
    return _training(place, torch.compile(place.net()))


def alone_blocks(place: Place) -> Step:
    """Each rank for itself, each block compiled as with ``fsdp2``."""
    model = place.net()
    for block in model.blocks:
        block.compile()
    return _training(place, model)


def ddp(place: Place) -> Step:
    """The reducer in C++."""
    model = nn.parallel.DistributedDataParallel(place.net(), bucket_cap_mb=4)
    return _training(place, torch.compile(model))


def ddp_apart(place: Place) -> Step:
    """The graphs of ``ddp`` without its collectives."""
    model = nn.parallel.DistributedDataParallel(place.net(), bucket_cap_mb=4)
    train = _training(place, torch.compile(model))

    def step() -> None:
        with model.no_sync():
            train()

    return step


def ddp_python(place: Place) -> Step:
    """The reducer in Python, compiled with the backward."""
    import torch._dynamo.config as config

    config.optimize_ddp, config.compiled_autograd = "python_reducer", True
    model = nn.parallel.DistributedDataParallel(place.net(), bucket_cap_mb=4)
    return _training(place, torch.compile(model))


def _sharded(place: Place, *, is_compiled: bool) -> Step:
    from torch.distributed.fsdp import fully_shard

    model = place.net()
    for block in model.blocks:
        if is_compiled:
            block.compile()
        fully_shard(block)
    fully_shard(model)
    return _training(place, model)


def fsdp2(place: Place) -> Step:
    """Each block compiled, its parameters gathered before it."""
    return _sharded(place, is_compiled=True)


def fsdp2_eager(place: Place) -> Step:
    """Blocks run eagerly; the loss alone is compiled, so that there is a step to record."""
    global loss_of
    loss_of = torch.compile(loss_of)
    return _sharded(place, is_compiled=False)


def _tensor_parallel(place: Place, *, with_sequence: bool) -> Step:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh(place.device, (place.world,), mesh_dim_names=("tp",))
    model = place.net()
    plan: dict[str, Any] = {
        name: ColwiseParallel() for name in ("attention.query", "attention.key", "attention.value", "feed.up")
    }
    rows = {"output_layouts": Shard(1), "use_local_output": True} if with_sequence else {}
    plan |= {name: RowwiseParallel(**rows) for name in ("attention.out", "feed.down")}
    if with_sequence:
        plan |= {"norm1": SequenceParallel(use_local_output=True), "norm2": SequenceParallel(use_local_output=True)}
        given = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        plan |= {"attention": PrepareModuleInput(**given), "feed": PrepareModuleInput(**given)}
        parallelize_module(
            model,
            mesh,
            {
                "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
                "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
            },
        )
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return _training(place, torch.compile(model))


def tp(place: Place) -> Step:
    """Columns, then rows of each pair of products."""
    return _tensor_parallel(place, with_sequence=False)


def tp_sp(place: Place) -> Step:
    """The same with what lies between split along the sequence."""
    return _tensor_parallel(place, with_sequence=True)


def context(place: Place) -> Step:
    """A sequence split over the ranks; keys and values are gathered."""
    group = dist.group.WORLD
    model = place.net(group=group)
    share = place.sequence // place.world
    place.tokens = place.tokens[:, place.rank * share : (place.rank + 1) * share].contiguous()
    place.targets = place.targets[:, place.rank * share : (place.rank + 1) * share].contiguous()
    return _training(place, torch.compile(model))


def experts(place: Place) -> Step:
    """One expert a rank, tokens exchanged by all_to_all."""
    return _training(place, torch.compile(place.net(experts=True)))


def _pipeline(place: Place, schedule: str, stages_a_rank: int, *, is_compiled: bool = True) -> Step:
    global loss_of
    from torch.distributed import pipelining

    kind = getattr(pipelining.schedules, schedule)
    stages = place.world * stages_a_rank
    numbers = [place.rank + place.world * turn for turn in range(stages_a_rank)]
    if schedule == "ScheduleZBVZeroBubble":
        numbers = [place.rank, stages - 1 - place.rank]
    if not is_compiled:
        loss_of = torch.compile(loss_of)
    parts = []
    for number in numbers:
        part = Net(place.width, max(1, place.blocks // stages), first=number == 0, last=number == stages - 1).to(
            place.device, place.dtype
        )
        if is_compiled:
            for block in part.blocks:
                block.compile()
        parts.append(pipelining.PipelineStage(part, number, stages, torch.device(place.device)))
    optimizer = torch.optim.AdamW([each for part in parts for each in part.submod.parameters()], lr=1e-4)
    runs = kind(parts if stages_a_rank > 1 else parts[0], n_microbatches=4, loss_fn=loss_of)
    has_first, has_last = 0 in numbers, stages - 1 in numbers

    def step() -> None:
        place.be_late()
        place.mark("between")
        inputs = (place.tokens,) if has_first else ()
        targets = {"target": place.targets} if has_last else {}
        runs.step(*inputs, **targets)
        place.mark("schedule")
        optimizer.step()
        optimizer.zero_grad()
        place.mark("optimizer")

    return step


def pp_gpipe(place: Place) -> Step:
    """All forwards, then all backwards."""
    return _pipeline(place, "ScheduleGPipe", 1)


def pp_1f1b(place: Place) -> Step:
    """One forward, one backward; four microbatches."""
    return _pipeline(place, "Schedule1F1B", 1)


def pp_interleaved(place: Place) -> Step:
    """Two stages a rank."""
    return _pipeline(place, "ScheduleInterleaved1F1B", 2)


def pp_zero_bubble(place: Place) -> Step:
    """Backwards of inputs and of weights apart, which compiled blocks cannot do: the loss alone is compiled."""
    import torch._functorch.config as config

    config.donated_buffer = False  # what is compiled is gone through twice
    return _pipeline(place, "ScheduleZBVZeroBubble", 2, is_compiled=False)


STRATEGIES: dict[str, Callable[[Place], Step]] = {
    each.__name__: each
    for each in (
        *(alone, alone_blocks, ddp, ddp_apart, ddp_python, fsdp2, fsdp2_eager, tp, tp_sp, context, experts),
        *(pp_gpipe, pp_1f1b, pp_interleaved, pp_zero_bubble),
    )
}


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategy", choices=list(STRATEGIES))
    parser.add_argument("--size", choices=list(SIZES), default="tiny")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--late")
    parser.add_argument("--clocks", action="store_true")
    arguments = parser.parse_args()
    place = Place(arguments)
    step = STRATEGIES[arguments.strategy](place)
    moments = []
    for number in range(arguments.steps):
        if number == WARMUP:
            place.wait_at_gate()
            if arguments.clocks:
                place.watch_clocks()
        if number >= WARMUP:
            place.synchronize()
            moments.append(time.perf_counter())
        step()
    place.synchronize()
    moments.append(time.perf_counter())
    durations = [1e3 * (after - before) for before, after in itertools.pairwise(moments)]
    own: dict[str, Any] = {"own_ms": statistics.median(durations), "steps": len(durations), "rank": place.rank}
    own |= {f"{phase}_host_ms": statistics.median(each[WARMUP:]) for phase, each in place.phases_ms.items()}
    if place.device == "cuda":
        own["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    if place.clocks is not None:
        for phase, (device_ms, mhz) in place.clocks.phases().items():
            own |= {f"{phase}_device_ms": device_ms, f"{phase}_mhz": mhz}
    print(json.dumps(own), flush=True)
    if place.rank == 0 and "DRAWN_GATE" in os.environ:
        from benchmarks.strangers.drawn_programs import leave_gate

        leave_gate(place.name, own)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
