"""Eager calls and attention drawn by chance, on a GPU: ``drawn_calls.py battery-3|attention|states|sustained|host``.

``battery-N`` is a program for ``torchledger run --profile``: a step of some hundred eager calls of many families at
random sizes, and one tiny compiled graph, so that each call has its record and its time. ``attention`` times the
attention of each backend at drawn configurations, ``states`` operators of the catalogue, both warm and after work that
swept the cache; ``sustained`` watches products and attention over ten seconds. Each waits at the gate of
``drawn_programs.py`` before it uses the GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import random
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.shared.places import ROOT
from benchmarks.strangers.drawn_programs import SmallStep, leave_gate, wait_at_gate

_GROUP = 24
"""Cases in one session of the profiler."""

_SWEEP_BYTES = 2**28
"""Written between timings: several times what a GPU's cache holds."""

Call = Callable[[], Any]


# --- a battery of eager calls -----------------------------------------------------------------------------------------


def battery(name: str, device: str, *, tiny: bool, count: int) -> Call:
    """A step of eager calls on tensors that were made before: ``count`` draws of a few calls each."""
    import torch

    pick = random.Random(f"2026-11/{name}")
    place = torch.device(device)
    calls: list[Call] = []
    makers = [maker for maker, weight in _MAKERS for _ in range(weight)]
    for _ in range(count):
        maker = pick.choice(makers)
        try:
            made = maker(pick, place, 2 ** pick.uniform(8, 12) if tiny else 2 ** pick.uniform(10, 24.5))
            for call in made:
                call()
        except (RuntimeError, ValueError) as error:
            print(f"{maker.__name__}: {str(error).splitlines()[0][:160]}", flush=True)
            continue
        calls += made
    pick.shuffle(calls)
    weight = torch.nn.Parameter(torch.ones(64, device=place))
    compiled = torch.compile(lambda w: (w * 2).sum())
    optimizer = torch.optim.SGD([weight], lr=1e-3)

    def step() -> None:
        for call in calls:
            call()
        compiled(weight).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _dtype(pick: random.Random) -> Any:
    import torch

    return pick.choice((torch.float32, torch.float32, torch.bfloat16, torch.bfloat16, torch.float16))


def _rows(pick: random.Random, numel: float) -> tuple[int, int]:
    columns = max(1, min(int(numel), round(2 ** pick.uniform(3, 14))))
    if pick.random() < 0.6:
        columns = max(8, columns // 8 * 8)
    return max(1, int(numel / columns)), columns


def _normal(pick: random.Random, place: Any, shape: Sequence[int], dtype: Any = None) -> Any:
    import torch

    return torch.randn(*shape, device=place).to(dtype or _dtype(pick))


def pointwise(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    a = _normal(pick, place, _rows(pick, numel))
    b = torch.randn_like(a) if pick.random() < 0.6 else torch.randn_like(a[:1])
    one = pick.choice(
        (torch.neg, torch.exp, torch.sigmoid, torch.tanh, torch.relu, torch.rsqrt, torch.abs, torch.square,
         torch.nn.functional.gelu, torch.nn.functional.silu, torch.nn.functional.softplus)
    )  # fmt: skip
    two = pick.choice((torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.lt, torch.eq))
    mask = a > 0
    return [
        lambda: one(a),
        lambda: two(a, b),
        lambda: torch.where(mask, a, b),
        lambda: a.add_(1.0),
        lambda: a.mul(0.5),
        lambda: a.masked_fill(mask, 0.0),
        lambda: a.addcmul(a, b),
        lambda: a.clamp(-1, 1),
    ][pick.randrange(2) : pick.choice((4, 6, 8))]


def copies(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    a = _normal(pick, place, _rows(pick, numel))
    other = torch.bfloat16 if a.dtype == torch.float32 else torch.float32
    wide = a.view(1, *a.shape)
    target = torch.empty_like(a)
    return [
        lambda: a.to(other),
        lambda: a.clone(),
        lambda: a.t().contiguous(),
        lambda: target.copy_(a),
        lambda: torch.cat([a, target], 1),
        lambda: torch.cat([a, target], 0),
        lambda: target.zero_(),
        lambda: torch.full_like(a, 2.0),
        lambda: torch.stack([a, target]),
        lambda: wide.expand(2, -1, -1).contiguous(),
        lambda: torch.zeros(a.shape, device=place),
    ][pick.randrange(4) : pick.choice((6, 8, 11))]


def reductions(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    a = _normal(pick, place, _rows(pick, numel))
    how = pick.choice((torch.sum, torch.mean, torch.amax, torch.argmax, torch.var))
    dim = pick.choice((0, 1))
    return [
        lambda: how(a, dim),
        lambda: a.sum(),
        lambda: a.float().norm(),
        lambda: a.softmax(-1),
        lambda: torch.linalg.vector_norm(a.float(), dim=dim),
        lambda: a.isfinite().all(),
        lambda: a.cumsum(dim),
    ][pick.randrange(2) : pick.choice((4, 6, 7))]


def random_numbers(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    a = _normal(pick, place, _rows(pick, numel))
    return [
        lambda: torch.rand_like(a),
        lambda: torch.randn_like(a),
        lambda: a.bernoulli_(0.5),
        lambda: torch.nn.functional.dropout(a, 0.1),
        lambda: torch.randint(0, 100, a.shape, device=place),
        lambda: a.normal_(),
    ][pick.randrange(2) : pick.choice((3, 4, 6))]


def sorting(pick: random.Random, place: Any, numel: float) -> list[Call]:
    rows, columns = _rows(pick, min(numel, 2**22))
    a = _normal(pick, place, (rows, columns))
    k = pick.choice([k for k in (1, 2, 5, 8, 32, 64) if k <= columns] or [1])
    return [lambda: a.sort(-1), lambda: a.topk(k, -1), lambda: a.argsort(-1)][: pick.choice((1, 2, 3))]


def indexing(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    rows, columns = _rows(pick, numel)
    columns = min(columns, 2048)
    rows = max(2, int(numel / columns))
    a = _normal(pick, place, (rows, columns))
    taken = max(1, int(rows * 2 ** pick.uniform(-3, 1)))
    where = torch.randint(0, rows, (taken,), device=place)
    given = torch.randn(taken, columns, device=place).to(a.dtype)
    across = torch.randint(0, columns, (rows, max(1, columns // 4)), device=place)
    part = torch.randn(rows, across.shape[1], device=place).to(a.dtype)
    tokens = where.view(1, -1)
    weight = a.detach()
    return [
        lambda: a[where],
        lambda: a.index_select(0, where),
        lambda: a.gather(1, across),
        lambda: a.scatter_add(1, across, part),
        lambda: a.scatter(1, across, part),
        lambda: a.index_add(0, where, given),
        lambda: a.index_put((where,), given, accumulate=True),
        lambda: torch.nn.functional.embedding(tokens, weight),
        lambda: torch.ops.aten.embedding_dense_backward(given.view(1, taken, columns), tokens, rows, -1, False),
        lambda: torch.nn.functional.one_hot(where[:64], rows) if rows < 2**14 else a[where],
    ][pick.randrange(5) : pick.choice((7, 8, 10))]


def bags(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch
    from torch.nn import functional as F

    dim = pick.choice((16, 32, 64, 128))
    rows, count, each = max(64, int(numel / dim)), pick.choice((256, 1024, 4096)), pick.choice((1, 4, 16))
    table = torch.nn.Parameter(torch.randn(rows, dim, device=place))
    indices = torch.randint(0, rows, (count, each), device=place)
    mode = pick.choice(("sum", "mean"))

    def both() -> None:
        F.embedding_bag(indices, table, mode=mode).sum().backward()
        table.grad = None

    return [lambda: F.embedding_bag(indices, table.detach(), mode=mode), both]


def losses(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch
    from torch.nn import functional as F

    rows, columns = _rows(pick, numel)
    a = _normal(pick, place, (rows, columns)).requires_grad_()
    labels = torch.randint(0, columns, (rows,), device=place)
    target = torch.rand(rows, columns, device=place).to(a.dtype)

    def made(loss: Callable[[], Any]) -> Call:
        def both() -> None:
            loss().backward()
            a.grad = None

        return both

    every = [
        made(lambda: F.cross_entropy(a.float(), labels)),
        made(lambda: F.mse_loss(a, target)),
        made(lambda: F.binary_cross_entropy_with_logits(a, target)),
        made(lambda: F.smooth_l1_loss(a, target)),
        made(lambda: F.nll_loss(F.log_softmax(a, -1), labels)),
        made(lambda: F.l1_loss(a, target)),
    ]
    return [pick.choice(every)]


def pictures(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch
    from torch.nn import functional as F

    channels, side = pick.choice((16, 32, 64, 128)), pick.choice((7, 14, 28, 56))
    count = max(1, min(256, int(numel / channels / side**2)))
    a = _normal(pick, place, (count, channels, side, side))
    if pick.random() < 0.5:
        a = a.contiguous(memory_format=torch.channels_last)
    a.requires_grad_()
    weight = torch.ones(channels, device=place, dtype=torch.float32)
    mode = pick.choice(("nearest", "bilinear"))

    def both(make: Callable[[], Any]) -> Call:
        def run() -> None:
            out = make()
            out.backward(torch.ones_like(out))
            a.grad = None

        return run

    every = [
        both(lambda: F.max_pool2d(a, 3, 2, 1)),
        both(lambda: F.avg_pool2d(a, 2)),
        both(lambda: F.adaptive_avg_pool2d(a, 1)),
        both(lambda: F.interpolate(a, scale_factor=2, mode=mode)),
        both(lambda: F.batch_norm(a, None, None, weight, weight, training=True)),
        both(lambda: F.group_norm(a.float(), 8)),
        both(lambda: F.pad(a, (1, 1, 1, 1))),
    ]
    return pick.sample(every, 2)


def optimizers(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    count = pick.choice((2, 8, 24, 64))
    sizes = [max(1, int(numel / count * 2 ** pick.uniform(-2, 1))) for _ in range(count)]
    dtype = pick.choice((torch.float32, torch.float32, torch.bfloat16))
    tensors = [torch.nn.Parameter(torch.randn(size, device=place).to(dtype)) for size in sizes]
    for each in tensors:
        each.grad = torch.randn_like(each) * 1e-3
    plain = [each.detach() for each in tensors]
    others = [torch.randn_like(each) for each in plain]
    first, second = ([each.square() for each in others] for _ in range(2))
    steps = [torch.ones((), device=place) for _ in plain]
    calls: list[Call] = [
        lambda: torch._foreach_mul_(plain, 0.99),
        lambda: torch._foreach_add_(plain, others, alpha=1e-3),
        lambda: torch._foreach_norm(plain),
        lambda: torch._foreach_lerp_(plain, others, 0.1),
        lambda: torch._foreach_sqrt(second),
        lambda: torch._foreach_addcdiv_(plain, others, [each + 1 for each in second], 1e-5),
        lambda: torch._foreach_addcmul_(first, others, others, 1e-3),
        lambda: torch._foreach_zero_(others),
        lambda: torch.nn.utils.clip_grad_norm_(tensors, 1.0),
        lambda: torch._fused_adamw_(
            plain, others, first, second, [], steps,
            lr=1e-5, beta1=0.9, beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        ),
        lambda: torch._fused_sgd_(
            plain, others, first,
            weight_decay=0.0, momentum=0.9, lr=1e-5, dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
        ),
    ]  # fmt: skip
    return pick.sample(calls, 4)


def attention_calls(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch
    from torch.nn import functional as F

    heads, d = pick.choice((4, 8, 16)), pick.choice((32, 64, 128))
    length = pick.choice((64, 197, 256, 512, 1024))
    batch = max(1, min(32, int(numel / heads / d / length)))
    dtype = pick.choice((torch.bfloat16, torch.float16, torch.float32))
    q, k, v = (_normal(pick, place, (batch, heads, length, d), dtype).requires_grad_() for _ in range(3))
    is_causal = pick.random() < 0.5

    def both() -> None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
        out.backward(torch.ones_like(out))
        q.grad = k.grad = v.grad = None

    return [both]


def products(pick: random.Random, place: Any, numel: float) -> list[Call]:
    import torch

    m, k = _rows(pick, min(numel, 2**22))
    n = round(2 ** pick.uniform(5, 11)) // 8 * 8
    dtype = _dtype(pick)
    a, b = _normal(pick, place, (m, k), dtype), _normal(pick, place, (k, n), dtype)
    bias = torch.zeros(n, device=place, dtype=dtype)
    return [lambda: a @ b, lambda: torch.addmm(bias, a, b)][: pick.choice((1, 2))]


_MAKERS: tuple[tuple[Callable[[random.Random, Any, float], list[Call]], int], ...] = (
    (pointwise, 4), (copies, 4), (reductions, 3), (random_numbers, 2), (sorting, 1), (indexing, 3), (bags, 1),
    (losses, 3), (pictures, 2), (optimizers, 3), (attention_calls, 1), (products, 1),
)  # fmt: skip


def run_battery(name: str, device: str, *, tiny: bool) -> dict[str, Any]:
    """The battery as an ordinary program: three steps, and those behind the gate."""
    import torch

    step = battery(name, device, tiny=tiny, count=12 if tiny else 48)
    for _ in range(3):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    wait_at_gate(name)
    for _ in range(8 if tiny else 40):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return {"steps": 8 if tiny else 40}


# --- attention by backend ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionCase:
    """A call of one backend; ``packed`` is the layout (batch, length, heads, d) that models leave behind."""

    backend: str
    dtype: str
    batch: int
    heads: int
    heads_kv: int
    length: int
    length_kv: int
    d: int
    is_causal: bool
    has_bias: bool
    packed: bool
    dropout: float = 0.0
    bias_over: str = "batch"
    """Which of a bias' first two dimensions lie in memory: ``"batch"``, ``"heads"`` or ``"both"``."""
    forward_alone: bool = False
    """Whether it keeps nothing for a gradient."""


_WINDOWS = (4, 9, 16, 25, 36, 49, 49, 64, 64, 81, 100, 144, 144, 196, 256)
"""Places of a square window, as vision transformers attend within."""


def draw_windows(backend: str, count: int, *, seed: str) -> Iterator[AttentionCase]:
    """Cases of many short sequences, most with a bias, as windows of pictures are; one in three with dropout.

    One in four is as long as sentences are, for the dropout alone.
    """
    pick = random.Random(f"{seed}/windows/{backend}")
    found = 0
    while found < count:
        is_window = pick.random() < 0.75
        length = pick.choice(_WINDOWS) if pick.random() < 0.8 else pick.randint(2, 64)
        length = length if is_window else round(2 ** pick.uniform(6, 11)) // 8 * 8
        d = pick.choice((8, 16, 24, 32, 32, 32, 32, 48, 64, 64) if is_window else (32, 64, 64, 80, 128))
        heads = pick.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 32))
        batch = round(2 ** pick.uniform(3, 12)) if is_window else round(2 ** pick.uniform(0, 6))
        if not 1e5 < 4 * batch * heads * length**2 * d < 1e11 or batch * heads * length * d > 2**26:
            continue
        found += 1
        has_bias = backend != "flash" and pick.random() < (0.75 if is_window else 0.2)
        dtypes = ("float32", "float32", "bfloat16") if backend == "efficient" else ("bfloat16", "bfloat16", "float16")
        yield AttentionCase(
            backend, pick.choice(dtypes), batch, heads, heads, length, length, d,
            is_causal=not has_bias and pick.random() < 0.3,
            has_bias=has_bias,
            packed=pick.random() < 0.8,
            dropout=pick.choice((0.0, 0.0, 0.1) if is_window else (0.0, 0.1, 0.1)),
            bias_over=pick.choice(("batch", "heads", "heads", "both")),
        )  # fmt: skip


def draw_few(backend: str, count: int, *, seed: str) -> Iterator[AttentionCase]:
    """Cases of few queries against many keys, as programs ask that write token after token; forward alone."""
    pick = random.Random(f"{seed}/few/{backend}")
    found = 0
    while found < count:
        d = pick.choice((64, 64, 64, 80, 96, 128, 128, 128, 256))
        heads = pick.choice((1, 4, 8, 12, 12, 16, 16, 20, 32, 32, 40))
        length = pick.choice((1, 1, 1, 1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96))
        length_kv = max(length, round(2 ** pick.uniform(4, 13.5)))
        length_kv = max(length, length_kv // 64 * 64) if pick.random() < 0.5 else length_kv
        groups = 1
        if backend != "efficient":
            groups = pick.choice([each for each in (1, 1, 2, 4, 8) if heads % each == 0])
        batch = max(1, round(2 ** pick.uniform(0, 7)))
        if batch * heads // groups * length_kv * d > 2**27:
            continue
        found += 1
        is_causal = length > 1 and pick.random() < 0.15
        dtypes = ("float32", "bfloat16", "float16") if backend == "efficient" else ("bfloat16", "bfloat16", "float16")
        yield AttentionCase(
            backend, pick.choice(dtypes), batch, heads, heads // groups, length, length_kv, d,
            is_causal=is_causal,
            has_bias=not is_causal and backend != "flash" and pick.random() < 0.4,
            packed=pick.random() < 0.15,
            bias_over=pick.choice(("batch", "batch", "both")),
            forward_alone=True,
        )  # fmt: skip


def draw_attention(backend: str, count: int, *, tiny: bool = False, seed: str = "2026-11") -> Iterator[AttentionCase]:
    """Cases at sizes of models, log-uniform in length, some of them off any grid."""
    pick = random.Random(f"{seed}/attention/{backend}")
    found = 0
    while found < count:
        d = pick.choice((32, 48, 64, 64, 64, 80, 96, 128, 128, 128, 160, 192, 256))
        heads = pick.choice((1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40))
        length = round(2 ** pick.uniform(5, 12.5))
        if pick.random() < 0.75:
            length = max(32, length // 32 * 32)
        is_causal = pick.random() < 0.5
        length_kv = length if is_causal or pick.random() < 0.8 else max(16, round(length * 2 ** pick.uniform(-3, 1)))
        groups = pick.choice([each for each in (1, 1, 1, 1, 2, 4, 8) if heads % each == 0])
        batch = max(1, round(2 ** pick.uniform(0, 6)))
        flops = 4 * batch * heads * length * length_kv * d
        if not 1e7 < flops < 5e11 or batch * heads * length * d > 2**27:
            continue
        found += 1
        dtypes = ("float32", "bfloat16") if backend == "efficient" else ("bfloat16", "bfloat16", "float16")
        case = AttentionCase(
            backend,
            pick.choice(dtypes),
            batch, heads, 1 if backend == "efficient" else heads // groups, length, length_kv, d,
            is_causal=is_causal,
            has_bias=not is_causal and backend != "flash" and pick.random() < 0.2,
            packed=pick.random() < 0.8,
        )  # fmt: skip
        if backend == "efficient":
            case = replace(case, heads_kv=heads)
        yield replace(case, batch=1, heads=2, heads_kv=2, length=32, length_kv=32) if tiny else case


def attention_runs(case: AttentionCase, place: Any) -> dict[str, Call]:
    """Forward and backward of a case; the backward's inputs are those that the forward returned."""
    import torch

    dtype = getattr(torch, case.dtype)

    def tensor(heads: int, length: int) -> Any:
        if case.packed:
            return torch.randn(case.batch, length, heads, case.d, device=place, dtype=dtype).transpose(1, 2)
        return torch.randn(case.batch, heads, length, case.d, device=place, dtype=dtype)

    q, k, v = tensor(case.heads, case.length), *(tensor(case.heads_kv, case.length_kv) for _ in range(2))
    bias = None
    if case.has_bias:
        # Rows that begin where sixteen bytes do, as the kernels ask for.
        stored = -(-case.length_kv // 8) * 8
        count = case.batch if case.bias_over != "heads" else 1, case.heads if case.bias_over != "batch" else 1
        bias = torch.zeros(*count, case.length, stored, device=place, dtype=dtype)[..., : case.length_kv]
        bias = bias.expand(case.batch, case.heads, case.length, case.length_kv)
    aten = torch.ops.aten
    if case.backend == "flash":
        forward = lambda: aten._scaled_dot_product_flash_attention(q, k, v, case.dropout, case.is_causal)  # noqa: E731
    else:
        operator = getattr(aten, f"_scaled_dot_product_{case.backend}_attention")
        kept = not case.forward_alone
        forward = lambda: operator(q, k, v, bias, kept, case.dropout, case.is_causal)  # noqa: E731
    if case.forward_alone:
        return {"forward": forward}
    made = forward()
    out, logsumexp = made[0], made[1]
    grad = torch.randn_like(out)
    if case.backend == "flash":
        _, _, cum_q, cum_k, max_q, max_k, seed, offset, _ = made
        backward = lambda: aten._scaled_dot_product_flash_attention_backward(  # noqa: E731
            grad, q, k, v, out, logsumexp, cum_q, cum_k, max_q, max_k, case.dropout, case.is_causal, seed, offset
        )
    elif case.backend == "cudnn":
        _, _, cum_q, cum_k, max_q, max_k, seed, offset, _ = made
        backward = lambda: aten._scaled_dot_product_cudnn_attention_backward(  # noqa: E731
            grad, q, k, v, out, logsumexp, seed, offset, bias, cum_q, cum_k, max_q, max_k, case.dropout, case.is_causal
        )
    else:
        asked = [True, True, True, False]
        backward = lambda: aten._scaled_dot_product_efficient_attention_backward(  # noqa: E731
            grad, q, k, v, bias, out, logsumexp, made[2], made[3], case.dropout, asked, case.is_causal
        )
    return {"forward": forward, "backward": backward}


# --- times in two states ----------------------------------------------------------------------------------------------


@dataclass
class Timed:
    """Times of one call in microseconds, by state, and the kernels that it ran."""

    warm_us: list[float]
    swept_us: list[float]
    synced_us: list[float]
    kernels: tuple[str, ...]


def time_in_states(
    cases: Sequence[Callable[[], dict[str, Call]]], *, warm: int = 5, swept: int = 3
) -> Iterator[tuple[int, str, Timed | str]]:
    """Each case's calls by direction: repeated, after the cache was swept, and after waiting for the device.

    A case that fails is answered by its error's first line.
    """
    import torch

    from torchledger._torch.device_trace import DeviceTrace

    sweeper = torch.empty(_SWEEP_BYTES, dtype=torch.uint8, device="cuda")
    for begin in range(0, len(cases), _GROUP):
        marks: list[tuple[int, str, list[int], list[int], list[int]]] = []
        trace = DeviceTrace()
        with trace:
            for index in range(begin, min(begin + _GROUP, len(cases))):
                try:
                    for direction, call in cases[index]().items():
                        call(), call()
                        repeated = []
                        for _ in range(warm):
                            repeated.append(trace.mark())
                            call()
                        cold = []
                        for _ in range(swept):
                            trace.mark()
                            sweeper.zero_()
                            cold.append(trace.mark())
                            call()
                        alone = []
                        for _ in range(2):
                            trace.mark()
                            torch.cuda.synchronize()
                            alone.append(trace.mark())
                            call()
                        trace.mark()
                        marks.append((index, direction, repeated, cold, alone))
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    yield index, "", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
                    if "CUDA error" in str(error):
                        raise
        pieces = trace.pieces()
        for index, direction, repeated, cold, alone in marks:
            if pieces is None:
                yield index, direction, "records were lost"
                continue
            states = [[round(pieces[each].busy_us, 3) for each in state] for state in (repeated, cold, alone)]
            names = tuple(each[:90] for each in pieces[repeated[-1]].names)
            yield index, direction, Timed(*states, names)


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]\n")
    unfinished.rename(path)


def time_all(cases: Sequence[tuple[dict[str, Any], Callable[[], dict[str, Call]]]], path: Path, limit_s: float) -> int:
    """Time each case's calls in every state and write their rows, as far as the limit goes; the number of rows."""
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + limit_s
    last = time.monotonic()
    for index, direction, timed in time_in_states([make for _, make in cases]):
        answer = {"error": timed} if isinstance(timed, str) else asdict(timed)
        rows.append({**cases[index][0], "direction": direction, **answer})
        if time.monotonic() > last + 3:
            _write(rows, path)
            last = time.monotonic()
        if time.monotonic() > end:
            break
    _write(rows, path)
    return len(rows)


def run_attention(
    out: Path,
    *,
    tiny: bool,
    limit_s: float,
    skip: int = 0,
    seed: str = "2026-11",
    kind: str = "usual",
    backends: Sequence[str] = (),
) -> dict[str, Any]:
    """All backends' cases, or those of ``backends`` alone, in turns, so that what the limit cuts off is a part of
    each."""
    import torch

    place = torch.device("cuda")
    draws = {"usual": functools.partial(draw_attention, tiny=tiny), "windows": draw_windows, "few": draw_few}
    draw = draws[kind]
    counts = dict.fromkeys(backends, max(_ATTENTION.values())) or _ATTENTION
    drawn = [list(draw(backend, count, seed=seed)) for backend, count in counts.items()]
    turns = range(max(map(len, drawn)))
    cases = [each[turn] for turn in turns for each in drawn if turn < len(each)][skip:]
    torch.empty(1, device=place)
    wait_at_gate("attention")
    rows = time_all(
        [(asdict(case), lambda case=case: attention_runs(case, place)) for case in cases],  # type: ignore[misc]
        out / "attention.json",
        limit_s,
    )
    return {"rows": rows}


_ATTENTION = {"cudnn": 640, "flash": 640, "efficient": 240}


def run_states(out: Path, *, limit_s: float, per_operator: int = 9) -> dict[str, Any]:
    """Operators of the catalogue at shapes that were measured before, warm, swept and after a wait."""
    import torch

    from torchledger.operators import find_operator
    from torchledger.sampling.cases import InputPool, make_case
    from torchledger.sampling.dataset import read_samples

    pick = random.Random("2026-11/states")
    by_operator: dict[str, dict[str, Any]] = {}
    for sample in read_samples(ROOT / "data" / "h200" / "anew_torch2.11.parquet"):
        if sample.status == "ok":
            by_operator.setdefault(sample.operator, {})[sample.point_id] = sample
    chosen = []
    for points in by_operator.values():
        chosen += pick.sample(sorted(points.values(), key=lambda each: each.point_id), min(per_operator, len(points)))
    pick.shuffle(chosen)
    torch.cuda.set_device(0)
    pool = InputPool("cuda")
    wait_at_gate("states")

    def make(sample: Any) -> dict[str, Call]:
        case = make_case(find_operator(sample.operator), dict(sample.parameters), sample.dtype, pool)

        def prepared(direction: str, run: Call) -> Call:
            is_prepared: list[bool] = []

            def call() -> Any:
                if not is_prepared and direction in case.prepare:
                    case.prepare[direction]()
                is_prepared.append(True)
                return run()

            return call

        return {direction: prepared(direction, run) for direction, run in case.runs.items()}

    rows = time_all(
        [
            (
                {"operator": s.operator, "parameters": dict(s.parameters), "dtype": s.dtype, "point": s.point_id},
                lambda s=s: make(s),  # type: ignore[misc]
            )
            for s in chosen
        ],
        out / "states.json",
        limit_s,
    )
    return {"rows": rows}


# --- runs that last ---------------------------------------------------------------------------------------------------


def run_sustained(out: Path, *, seconds: float) -> dict[str, Any]:
    """Products, attention and copies in loops without rest: times of a call by the second, clocks and power beside."""
    import torch

    place = torch.device("cuda")
    a, b = (torch.randn(8192, 8192, device=place, dtype=torch.bfloat16) for _ in range(2))
    small, thin = (torch.randn(*shape, device=place, dtype=torch.bfloat16) for shape in ((4096, 1024), (1024, 4096)))
    q, k, v = (torch.randn(8, 16, 2048, 128, device=place, dtype=torch.bfloat16) for _ in range(3))
    large = torch.randn(2**27, device=place)
    loops: dict[str, Call] = {
        "large product": lambda: a @ b,
        "small product": lambda: small @ thin,
        "attention": lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        "copy": lambda: large.mul(2.0),
    }
    wait_at_gate("sustained")
    found: dict[str, Any] = {}
    for name, call in loops.items():
        call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(20):
            call()
        torch.cuda.synchronize()
        block = max(1, int(0.05 / ((time.perf_counter() - begin) / 20)))
        time.sleep(1.0)
        watch = _Watch()
        times: list[tuple[float, float]] = []
        begin = time.perf_counter()
        while (now := time.perf_counter()) - begin < seconds:
            for _ in range(block):
                call()
            torch.cuda.synchronize()
            times.append((round(now - begin, 3), round((time.perf_counter() - now) * 1e6 / block, 2)))
        found[name] = {"calls_us": times, "telemetry": watch.stop()}
        (out / "sustained.json").write_text(json.dumps(found))
    return {name: statistics.median(us for _, us in each["calls_us"]) for name, each in found.items()}


class _Watch:
    """Power and clocks by ``nvidia-smi`` every 0.2 s until stopped."""

    def __init__(self) -> None:
        query = "--query-gpu=power.draw,clocks.sm,temperature.gpu"
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "200", "-i", "0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        self._lines.extend(line.strip() for line in self._process.stdout)

    def stop(self) -> list[str]:
        """What was read: watts, MHz and degrees by line."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(5)
        return list(self._lines)


def run_host(device: str, out: Path) -> dict[str, Any]:
    """What this host needs, as ``torchledger doctor`` measures it, and what programs time beside their steps."""
    import torch

    from torchledger.device.host import measure_host
    from torchledger.store.codec import encode

    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    small = SmallStep(device)
    small.us(wait)
    smalls: list[float] = []

    def begin() -> None:
        wait_at_gate("host")
        smalls.extend(small.us(wait) for _ in range(10))

    host = measure_host(device, before_timing=begin)
    smalls.extend(small.us(wait) for _ in range(10))
    text = encode(host).decode()
    (out / "host.json").write_text(text)
    found: dict[str, Any] = json.loads(text)
    return found | {"small_us": [round(each, 1) for each in smalls]}


def main() -> None:
    """Run one part and leave the gate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each loop of `sustained`")
    parser.add_argument("--skip", type=int, default=0, help="configurations of `attention` to leave out")
    parser.add_argument("--seed", default="2026-11", help="of `attention`'s configurations")
    parser.add_argument("--windows", action="store_true", help="of short sequences with biases and dropout")
    parser.add_argument("--few", action="store_true", help="of few queries against many keys, as in decoding")
    parser.add_argument("--backends", nargs="*", choices=tuple(_ATTENTION), default=(), help="attention of these alone")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    arguments = parser.parse_args()
    part, tiny = arguments.part, arguments.tiny
    begin = time.perf_counter()
    if part.startswith("battery-"):
        answer = run_battery(part, arguments.device, tiny=tiny)
    elif part == "attention":
        answer = run_attention(
            arguments.out, tiny=tiny, limit_s=arguments.limit, skip=arguments.skip, seed=arguments.seed,
            kind="windows" if arguments.windows else "few" if arguments.few else "usual",
            backends=arguments.backends,
        )  # fmt: skip
    elif part == "states":
        answer = run_states(arguments.out, limit_s=arguments.limit)
    elif part == "sustained":
        answer = run_sustained(arguments.out, seconds=arguments.seconds)
    elif part == "host":
        answer = run_host(arguments.device, arguments.out)
    else:
        raise SystemExit(f"{part!r} is no part: battery-N, attention, states, sustained or host.")
    answer = {"part": part, "seconds": round(time.perf_counter() - begin, 1), **answer}
    assert math.isfinite(answer["seconds"])
    leave_gate(part, answer)
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
