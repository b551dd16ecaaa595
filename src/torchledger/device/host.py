"""What this host needs to launch work: measured in seconds, kept in the user's cache, known to predictions of steps.

``measure_host`` takes the times, ``store_host`` keeps them under the names of the host and its device, ``find_host``
answers by name and ``known_host`` by a device. Nothing but the first imports torch.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchledger.device.ceilings import find_place
from torchledger.device.describe import describe_cpu
from torchledger.device.rounds import Work, plain_work, settle, time_rounds
from torchledger.errors import MeasureError, PredictError
from torchledger.nouns import Device, Host, Run
from torchledger.store import LedgerWriter, open_ledger
from torchledger.store.cache_folder import cache_folder, write_cached
from torchledger.store.codec import decode, encode

log = logging.getLogger(__name__)

_ELEMENTS = 256
"""So few that a kernel is done before the host has launched the next."""

_LAUNCHES, _PRODUCTS, _CONVOLUTIONS, _NODES, _OPERATORS, _TRAINED = 24, 17, 9, 100, 200, 6
_FEW_TENSORS, _MANY_TENSORS = 8, 72
_ROUNDS, _BURSTS, _PAUSE_S = 12, 15, 0.25
"""A figure is the mean over the rounds, which span some seconds; in each it is the mean of the bursts."""

_BLOCKS = 4


def host_path(name: str, device: str) -> Path:
    """Where a host's costs lie: ``~/.cache/torchledger/host-<host>-<device>.json``; ``TORCHLEDGER_CACHE`` names another
    folder."""
    return cache_folder() / f"host-{_slug(f'{name} {device}')}.json"


def store_host(host: Host) -> Path:
    """Keep the costs for ``known_host``; returns the path. Raises ``StoreError`` if it cannot be written."""
    path = host_path(host.name, host.device)
    write_cached(path, encode(host))
    return path


def put_host_into(file: str | os.PathLike[str], host: Host) -> None:
    """Write what a host needs into a ledger that it recorded; raises ``MeasureError`` for a ledger of another host."""
    with open_ledger(file) as reader:
        run = reader.run()
    if host.name not in [device.name for device in run.devices if device.kind == "cpu"]:
        raise MeasureError(
            f"{file} was not recorded on this host ({host.name}). Run `torchledger doctor --host {file}` there."
        )
    changed: Run = dataclasses.replace(run, host=host)
    with LedgerWriter(file, append=True) as writer:
        writer.add(changed, replace=True)


def known_host(device: str) -> Host | None:
    """What ``torchledger doctor`` measured on this host with a device of that name; ``None`` if it did not."""
    path = host_path(describe_cpu().name, device)
    return _read(path) if path.exists() else None


def kept_hosts() -> list[Host]:
    """All hosts whose costs are kept here, this one or others whose files were copied here."""
    found = [_read(path) for path in sorted(cache_folder().glob("host-*.json"))]
    return [host for host in found if host is not None]


def find_host(name: str) -> Host:
    """A kept host by a part of its name, or the host of a JSON file. Raises ``PredictError`` for none or several."""
    path = Path(name)
    if path.suffix == ".json" and path.exists():
        host = _read(path)
        if host is None:
            raise PredictError(f"{path} holds no host. `torchledger doctor` writes one.")
        return host
    hosts = kept_hosts()
    matching = [host for host in hosts if _slug(name) in _slug(f"{host.name} {host.device}")]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{host.name!r} (with {host.device})" for host in hosts) or "none"
    what = "several hosts match" if matching else "no host is called"
    raise PredictError(f"{what} {name!r}; kept are: {names}. Measure one there with `torchledger doctor`.")


def _read(path: Path) -> Host | None:
    try:
        return decode(Host, path.read_bytes())
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("%s cannot be read (%s). Measure again with `torchledger doctor`.", path, error)
        return None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


# --- measuring -------------------------------------------------------------------------------------------------------


def measure_host(
    device: str = "cuda",
    *,
    before_timing: Callable[[], None] = lambda: None,
    rounds: int = _ROUNDS,
    bursts: int = _BURSTS,
    pause_s: float = _PAUSE_S,
) -> Host:
    """Measure what this host needs for each kind of work on ``device`` (``"cuda"``, ``"cuda:1"``, ``"cpu"``).

    All kinds are timed in each of ``rounds``, ``pause_s`` apart, as a shared host is not the same from one second to
    the next: the mean of ``bursts`` of short bursts that the device finishes as fast as they are issued, so that only
    the host is timed; costs per kind are differences between bursts with many and with few of it. A figure is the mean
    over the rounds, as a step pays for slow moments too, and its spread is kept; what takes more than three times the
    median counts as that (``device.rounds``).
    On a CPU the kernels' own work is in every figure. Some eight functions are compiled before: ten to forty seconds
    the first time. ``before_timing`` is called once they are.

    Raises ``MeasureError`` if torch has no such device.
    """
    import torch

    place = find_place(device)
    compiled = _Compiled(place)
    compiled.warm()

    def wait() -> None:
        if place.type == "cuda":
            torch.cuda.synchronize(place)

    wait()
    before_timing()
    times = time_rounds(
        _works(compiled, place), rounds=rounds, bursts=bursts, wait=wait, pause=lambda: time.sleep(pause_s)
    )
    cpu = describe_cpu()
    step = compiled.step
    launches = None if step is None else (step.fused_launches(), step.library, step.tensors)
    return host_of(
        Host(
            name=cpu.name,
            device=_device_name(place, cpu),
            num_cores=cpu.num_cores,
            measured_utc=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            method=f"torch {torch.__version__}",
        ),
        times,
        step_launches=launches,
    )


def host_of(
    host: Host, times: Mapping[str, Sequence[float]], *, step_launches: tuple[int, int, int] | None = None
) -> Host:
    """The host with its costs: ``times`` are microseconds of each kind of work in each round (``_works``).

    ``step_launches`` are generated kernels, library calls and the optimizer's tensors of the training step; without
    them, or where the profiler saw no kernel of it, nothing is said of whole steps.
    """
    count = min(map(len, times.values()))
    costs = [_costs({name: found[number] for name, found in times.items()}, step_launches) for number in range(count)]
    fields = [name for name, cost in costs[0].items() if cost is not None]
    settled = {name: settle([cost for each in costs if (cost := each[name]) is not None]) for name in fields}
    means: dict[str, Any] = {name: found.mean for name, found in settled.items()}
    return replace(
        host,
        **means,
        spreads={name: found.spread for name, found in settled.items()},
        method=f"mean of {count} rounds, {host.method}",
    )


def _costs(us: Mapping[str, float], step_launches: tuple[int, int, int] | None) -> dict[str, float | None]:
    """The fields of a host by what the kinds of work took in one round."""
    fused_us = max(0.0, (us["many launches"] - us["one launch"]) / (_LAUNCHES - 1))
    tensors = _MANY_TENSORS - _FEW_TENSORS
    fused_tensor_us = max(0.0, (us["many fused tensors"] - us["few fused tensors"]) / tensors)
    found: dict[str, float | None] = {
        "graph_call_us": max(0.0, us["one launch"] - fused_us),
        "training_call_us": max(0.0, us["training"] - 3 * fused_us),
        "further_training_us": max(0.0, (us["many trained"] - us["one trained"]) / (_TRAINED - 1) - 2 * fused_us),
        "replay_call_us": us.get("replayed"),
        "fused_launch_us": fused_us,
        "library_launch_us": max(0.0, (us["many products"] - us["one product"]) / (_PRODUCTS - 1)),
        "convolution_launch_us": max(0.0, (us["many convolutions"] - us["one convolution"]) / (_CONVOLUTIONS - 1)),
        "operator_us": us["operators"] / _OPERATORS,
        "autograd_node_us": us["backward"] / _NODES,
        "fused_optimizer_tensor_us": fused_tensor_us,
        "foreach_optimizer_tensor_us": max(0.0, (us["many foreach tensors"] - us["few foreach tensors"]) / tensors),
        "optimizer_step_us": max(0.0, us["few fused tensors"] - _FEW_TENSORS * fused_tensor_us),
    }
    found["plain_us"] = us.get("plain")
    if step_launches is not None and step_launches[0]:
        # On a CPU the kernels' own work is in the costs and in the step, and cannot be told apart.
        found["in_step"] = _in_step(found, step_launches, us["step"])
    return found


def _in_step(costs: Mapping[str, float | None], step_launches: tuple[int, int, int], step_us: float) -> float | None:
    """How many times as long as the parts say a training step took; ``None`` where none of them is known."""
    fused, library, tensors = step_launches
    parts = (
        (1, "training_call_us"),
        (fused, "fused_launch_us"),
        (library, "library_launch_us"),
        (tensors, "fused_optimizer_tensor_us"),
        (1, "optimizer_step_us"),
    )
    said_us = sum(count * (costs[name] or 0.0) for count, name in parts)
    log.info("a step of %d and %d launches takes %.0f us, %.0f by its parts", fused, library, step_us, said_us)
    return step_us / said_us if said_us else None


def _works(compiled: _Compiled, place: Any) -> dict[str, Work]:
    """All that is timed, by name."""
    calls: dict[str, Callable[[], Any] | None] = {
        "one launch": compiled.one_launch,
        "many launches": compiled.many_launches,
        "one product": compiled.one_product,
        "many products": compiled.many_products,
        "one convolution": compiled.one_convolution,
        "many convolutions": compiled.many_convolutions,
        "training": compiled.training,
        "one trained": compiled.one_trained,
        "many trained": compiled.many_trained,
        "replayed": compiled.replayed,
        "operators": _operators(place),
    }
    for how in ("fused", "foreach"):
        calls[f"few {how} tensors"] = _optimizer_step(place, _FEW_TENSORS, how)
        calls[f"many {how} tensors"] = _optimizer_step(place, _MANY_TENSORS, how)
    works = {name: Work(_without_argument(call)) for name, call in calls.items() if call is not None}
    works["backward"] = _backward(place)
    works["plain"] = Work(lambda _: plain_work())
    if compiled.step is not None:
        # Step after step, as in a program: the host is ahead of the device.
        works["step"] = Work(_without_argument(compiled.step.run), waits=False)
    return works


def _without_argument(call: Callable[[], Any]) -> Callable[[Any], Any]:
    return lambda _: call()


class _TrainingStep:
    """A training step of a small transformer, compiled forward and backward, and how much of each kind it launches."""

    def __init__(self, place: Any) -> None:
        import torch
        from torch import nn

        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.LayerNorm(64), nn.LayerNorm(64)
                self.mixed, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
                self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

            def forward(self, x: Any) -> Any:
                q, k, v = self.mixed(self.first(x)).view(2, 16, 3, 2, 32).permute(2, 0, 3, 1, 4)
                mixed = (q @ k.mT).softmax(-1) @ v
                x = x + self.out(mixed.transpose(1, 2).reshape(2, 16, 64))
                return x + self.down(nn.functional.gelu(self.up(self.second(x))))

        model = nn.Sequential(*(Block() for _ in range(_BLOCKS))).to(place)
        given = torch.ones(2, 16, 64, device=place)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        self._loss = torch.compile(lambda x: model(x).square().mean(), dynamic=False)
        self._given = given
        self.tensors = sum(1 for _ in model.parameters())
        # Four layers and the two products of attention, each with its two gradients.
        self.library = _BLOCKS * 3 * (4 + 2)

    def fused_launches(self) -> int:
        """Generated kernels of a step. Not before timing: a profiler that was there may leave launches slower."""
        from torchledger._torch.device_trace import DeviceTrace

        with DeviceTrace() as trace:
            mark = trace.mark()
            self.run()
            trace.mark()
        pieces = trace.pieces()
        names = () if pieces is None else pieces[mark].names
        return sum(name.startswith("triton_") for name in names)

    def run(self) -> None:
        """One step."""
        self._loss(self._given).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


class _Compiled:
    """Functions that differ in how much of one kind they launch."""

    def __init__(self, place: Any) -> None:
        import torch

        def compiled(function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
            # Each is compiled for its own sizes: dynamic shapes cost the host more.
            made: Callable[..., Any] = torch.compile(function, mode=mode, dynamic=False)
            return made

        def vectors(count: int) -> list[Any]:
            return [torch.ones(_ELEMENTS, device=place) for _ in range(count)]

        def no_grad(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
            def call() -> Any:
                with torch.no_grad():
                    return function(*arguments)

            return call

        def each(inputs: list[Any]) -> list[Any]:
            return [vector.sin() for vector in inputs]

        square = torch.eye(64, device=place)

        def product(x: Any, count: int) -> Any:
            for _ in range(count):
                x = torch.mm(x, square)
            return x

        image, weight = torch.ones(1, 8, 16, 16, device=place), torch.ones(8, 8, 3, 3, device=place) / 72

        def convolution(x: Any, count: int) -> Any:
            for _ in range(count):
                x = torch.nn.functional.conv2d(x, weight, padding=1)
            return x

        self.one_launch = no_grad(compiled(lambda inputs: each(inputs)), vectors(1))
        self.many_launches = no_grad(compiled(lambda inputs: each(inputs)), vectors(_LAUNCHES))
        self.one_product = no_grad(compiled(lambda x: product(x, 1)), square)
        self.many_products = no_grad(compiled(lambda x: product(x, _PRODUCTS)), square)
        self.one_convolution = no_grad(compiled(lambda x: convolution(x, 1)), image)
        self.many_convolutions = no_grad(compiled(lambda x: convolution(x, _CONVOLUTIONS)), image)
        leaf = torch.ones(_ELEMENTS, device=place, requires_grad=True)
        loss = compiled(lambda x: (x * x).sin().sum())

        def training() -> None:
            loss(leaf).backward()
            leaf.grad = None

        layer, seed = compiled(lambda x: (x * x).sin()), torch.ones(_ELEMENTS, device=place)

        def trained(count: int) -> Callable[[], None]:
            def call() -> None:
                y: Any = leaf
                for _ in range(count):
                    y = layer(y)
                y.backward(seed)
                leaf.grad = None

            return call

        self.training = training
        self.one_trained, self.many_trained = trained(1), trained(_TRAINED)
        self.replayed: Callable[[], Any] | None = None
        self.step = _TrainingStep(place) if place.type == "cuda" else None
        if place.type == "cuda":
            self.replayed = no_grad(compiled(lambda inputs: each(inputs), "reduce-overhead"), vectors(4))

    def warm(self) -> None:
        """Compile them all."""
        for call in (
            *(self.one_launch, self.many_launches, self.one_product, self.many_products),
            *(self.one_convolution, self.many_convolutions, self.training, self.replayed),
            *(self.one_trained, self.many_trained),
        ):
            for _ in range(4 if call is not None else 0):
                assert call is not None
                call()
        for _ in range(3 if self.step is not None else 0):
            assert self.step is not None
            self.step.run()


def _operators(place: Any) -> Callable[[], None]:
    import torch

    vector = torch.ones(_ELEMENTS, device=place)

    def run() -> None:
        for _ in range(_OPERATORS // 2):
            vector.mul(1.0)
            vector.add_(0.0)

    return run


def _optimizer_step(place: Any, count: int, how: str) -> Callable[[], Any]:
    import torch

    parameters = [torch.nn.Parameter(torch.ones(_ELEMENTS, device=place)) for _ in range(count)]
    for each in parameters:
        each.grad = torch.ones_like(each)
    return torch.optim.AdamW(parameters, lr=1e-4, fused=how == "fused", foreach=how == "foreach").step


def _backward(place: Any) -> Work:
    """The backward through a chain of operators, which is made anew before each."""
    import torch

    leaf = torch.ones(_ELEMENTS, device=place, requires_grad=True)
    seed = torch.ones(_ELEMENTS, device=place)

    def chain() -> Any:
        leaf.grad = None
        y = leaf
        for _ in range(_NODES):
            y = y * 1.0
        return y

    return Work(lambda y: y.backward(seed), chain)


def _device_name(place: Any, cpu: Device) -> str:
    import torch

    return torch.cuda.get_device_name(place) if place.type == "cuda" else cpu.name
