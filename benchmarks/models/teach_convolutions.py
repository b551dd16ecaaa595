"""What teaches the networks of convolutions: which kernels a library takes, and what each kind of kernel needs.

A library chooses among sixty kinds of kernels, and what it chooses decides by up to a hundred times. Trees tell the
kinds apart better than networks do: theirs are the chances. What a kind needs is said by large networks, each of whose
outputs learned from its own kind alone, beside what its tiles would take. Of the times by kinds, each with its chance,
the answer is that with the least expected relative error.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.models.fit_convolution_network import costs_of_kinds, terms
from benchmarks.models.teach_networks import OF_A_DTYPE, batches, body_of, residual, scaled
from torchledger.expecting.convolution_times import result_sides

RARE = 25
"""Kernels seen less often than this are one kind."""
TREES, LEAST_SHARE = 64, 0.3
_CHOICE = 0.3
_LEAST, _MOST = -3.0, 8.0

_HELPERS = re.compile(
    r"Memset|Memcpy|nchwToNhwc|nhwcToNchw|tensorTransform|AddPadding|SliceC|init_device|convertTensor|genericTranspose|"
    r"scaleTensor|precompute_indices|computeOffsets|kernel_helper|elementwise|opTensor|split_?k|split.*reduc",
    re.IGNORECASE,
)
_TIMES = re.compile(r" x(\d+)$")
_MANY = 12
"""Kernels of a call, more of which belong to groups that run one by one."""


def kernel_kinds(names: Sequence[str]) -> dict[str, int]:
    """The number of each kind of kernels that is not rare, from 1 on, by the names of calls' kernels."""
    counted = Counter(kind_of(name) for name in names)
    often = [name for name, count in counted.most_common() if count >= RARE]
    return {name: place for place, name in enumerate(often, start=1)}


def numbered(names: Sequence[str], kinds: Mapping[str, int]) -> Any:
    """The number of each call's kind; 0 for rare ones."""
    return np.array([kinds.get(kind_of(name), 0) for name in names])


def kind_of(names: str) -> str:
    """A call's kernels without those that only prepare; one that runs several times, as for groups apart, has a star.

    >>> kind_of("Memset + cutlass__5x_cudnn::Kernel<cutlass_tensorop_f16_s16816fprop_64x64_32x10_nhwc_align8> x32")
    'cutlass_tensorop_H_s16816fprop_64x64_32x10_nhwc*'
    """
    found: Counter[str] = Counter()
    given = OF_A_DTYPE.sub("H", names).split(" + ")
    for name in given:
        often = _TIMES.search(name)
        if kernel := _kernel(name[: often.start()] if often else name):
            found[kernel] += int(often[1]) if often else 1
    together = "|".join(sorted(name + "*" * (count > 1) for name, count in found.items()))
    return together or ("helpers" if len(given) < _MANY else "helpers*")


def _kernel(name: str) -> str | None:
    name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    if _HELPERS.search(name):
        return None
    if shape := re.search(r"GemmShapeILi(\d+)ELi(\d+)ELi(\d+)", name):
        return "cutlass {}x{}x{}".format(*shape.groups())
    if tile := re.search(r"(sm\d+_xmma_\w+?)_[fbtH]+\d*.*?(tilesize\d+x\d+x\d+)", name):
        return f"{tile[1]} {tile[2]}"
    inner = re.search(r"<(?:\w+::)?(cutlass_\w+)>", name)
    plain = inner[1] if inner else re.sub(r"[<(].*", "", name)
    if plain.startswith("nvjet"):
        return "nvjet"
    if product := re.match(r"cutlass_\d+_.*gemm.*_(\d+x\d+)_", plain):
        return f"product {product[1]}"
    return re.sub(r"_align\d+", "", plain).split("::")[-1][:80]


def terms_of_kinds(p: Mapping[str, Any], one: str) -> Any:
    """What a kernel's time may be a sum of, [rows, terms]: also where groups run one by one."""
    inside, outside = p["c_in"] / p["groups"], p["c_out"] / p["groups"]
    height, width, taps = result_sides(p)
    pixels, loops = p["n"] * height * width, np.where(p["groups"] > 1, p["groups"], 0.0)
    more = [loops * pixels * inside / 1e6, loops * pixels * outside / 1e6]
    for tall, wide in ((64, 64), (256, 64), (128, 128)):
        rows, columns, depth = (outside, taps * inside, pixels) if one == "weight" else (pixels, outside, taps * inside)
        rounds = loops * np.ceil(np.ceil(rows / tall) * np.ceil(columns / wide) / 132)
        more += [rounds / 100, rounds * np.ceil(depth / 64) / 100]
    return np.concatenate([terms(p, one), np.stack(more, axis=1)], axis=1)


class KernelTeacher:
    """Chances of kinds of kernels by trees, times by kinds by networks; logarithms over an expected time."""

    def __init__(
        self, p: Mapping[str, Any], one: str, seen: Any, log_base: Any, time_us: Any, kinds: Any, *,
        members: int, width: int, epochs: int,
    ) -> None:  # fmt: skip
        from sklearn.ensemble import ExtraTreesClassifier

        self.one, self.count = one, int(kinds.max()) + 1
        self.costs = costs_of_kinds(terms_of_kinds(p, one), time_us, kinds)
        self.center, self.scale = seen.mean(axis=0), seen.std(axis=0) + 1e-6
        goal = np.log(time_us) - log_base
        self.unit = float(goal.std())
        self.trees = ExtraTreesClassifier(TREES, max_features=LEAST_SHARE, random_state=0)
        self.trees.fit(_columns(p, seen), kinds)
        x, first = scaled(seen, self.center, self.scale), torch.tensor(self._by_kind(p, log_base), dtype=torch.float32)
        y, own = torch.tensor(goal, dtype=torch.float32), torch.tensor(kinds)
        self.members = [self._learn(seed, x, first, y, own, width, epochs) for seed in range(members)]

    def answer(self, p: Mapping[str, Any], seen: Any, log_base: Any, leaning: float = 1.0) -> Any:
        """The logarithm of the time over the expected one, [rows]: by ``leaning`` 1 what errs least relative to the
        time, by 0 the middle of what is likely."""
        return _likeliest(self.chances(p, seen), self.times(p, seen, log_base), leaning)

    def chances(self, p: Mapping[str, Any], seen: Any) -> Any:
        """Of each kind, [rows, kinds]."""
        found = np.zeros((len(seen), self.count))
        found[:, self.trees.classes_] = self.trees.predict_proba(_columns(p, seen))
        return found

    def times(self, p: Mapping[str, Any], seen: Any, log_base: Any) -> Any:
        """By each kind, [rows, kinds]."""
        first, x = torch.tensor(self._by_kind(p, log_base), dtype=torch.float32), scaled(seen, self.center, self.scale)
        with torch.no_grad():
            said = [first + residual(off(body(x)), self.unit) for body, _, off in self.members]
        return np.asarray(torch.stack(said).mean(dim=0).numpy(), dtype=np.float64)

    def _by_kind(self, p: Mapping[str, Any], log_base: Any) -> Any:
        beside = np.log(np.maximum(terms_of_kinds(p, self.one) @ self.costs, 0.5)) - log_base[:, None]
        beside[:, 0] = 0.0
        return np.clip(beside, _LEAST, _MOST)

    def _learn(self, seed: int, x: Any, first: Any, y: Any, kinds: Any, width: int, epochs: int) -> Any:
        torch.manual_seed(seed)
        torch.set_num_threads(1)
        body, gate = body_of(x.shape[1], width), torch.nn.Linear(width, self.count)
        off = torch.nn.Linear(width, self.count)
        parameters = [*body.parameters(), *gate.parameters(), *off.parameters()]
        for some, step in batches(len(x), epochs, parameters):
            hidden, own = body(x[some]), kinds[some]
            said = first[some].gather(1, own[:, None])[:, 0]
            said = said + residual(off(hidden).gather(1, own[:, None])[:, 0], self.unit)
            loss = (said - y[some]).abs().mean() / self.unit
            # To tell the kinds apart helps to say what each needs.
            step(loss + _CHOICE * torch.nn.functional.cross_entropy(gate(hidden), own))
        return body.eval(), gate, off


def _columns(p: Mapping[str, Any], seen: Any) -> Any:
    return np.concatenate([np.stack([p[name] for name in sorted(p)], axis=1).astype(np.float32), seen], axis=1)


def _likeliest(chance: Any, log_times: Any, leaning: float) -> Any:
    """Of times by kinds the one with the least expected relative error: their median, where a chance counts the less
    the longer the time."""
    order = np.argsort(log_times, axis=1)
    times = np.take_along_axis(log_times, order, axis=1)
    weight = np.take_along_axis(chance, order, axis=1) * np.exp(-leaning * times)
    below = np.cumsum(weight, axis=1)
    place = (below >= below[:, -1:] / 2).argmax(axis=1)
    return times[np.arange(len(times)), place]
