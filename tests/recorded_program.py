"""A program under a recorder of steps, with a profiler and a clock of the test's own."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torchledger.nouns import OptimizerFacts
from torchledger.stepping.recorder import StepRecorder
from torchledger.stepping.recording import StepRecording


class Compiled:
    """Stands for a compiled graph."""


class Session:
    """Stands for a recording, or for what listens: it says what it was asked, and where."""

    def __init__(self, tools: FakeTools, kind: str) -> None:
        self._tools, self._kind = tools, kind
        self.calls = [SimpleNamespace(graph=None, call=SimpleNamespace(name=name)) for name in tools.heard]
        self.faults = tools.faults.get(kind, [])
        self.memory = "storages"
        self.is_lost = False

    def start(self) -> bool:
        if self._tools.fails_to_start:
            raise RuntimeError("no profiler here")
        assert not self._tools.in_backward, "what begins inside a backward is lost behind it"
        self.thread = threading.get_ident()
        self._tools.said.append(f"start {self._kind}")
        self._tools.n_open += 1
        if self._kind == "recording":
            assert not self._tools.n_held, "a recording takes over the memory of one that nobody freed"
            self._tools.n_held += 1
        return True

    def stop(self) -> None:
        assert not self._tools.in_backward, "the engine puts back what ends inside a backward"
        assert threading.get_ident() == self.thread, "a profiler that is stopped elsewhere ends the process"
        self._tools.said.append(f"stop {self._kind}")
        self._tools.n_open -= 1

    leave = stop

    def saw_device(self) -> bool:
        return self._tools.sees_device

    def allocations(self, spans: Sequence[str]) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(((place, 8),) for place, _ in enumerate(spans))

    def operators(self, spans: Sequence[str]) -> tuple[Counter[str], ...]:
        return tuple(Counter(self._tools.recorded) for _ in spans)

    def graph_begins(self, name: str, inputs: Sequence[Any]) -> None:
        self._tools.said.append(f"storages of {name}{list(inputs)}")

    def graph_ends(self, result: Any) -> None:
        if self._tools.fails_to_hear:
            raise RuntimeError("a storage without an address")
        self._tools.said.append(f"storages of {result}")

    def optimizer_stepped(self) -> None:
        if self._tools.fails_to_hear:
            raise RuntimeError("a parameter without a gradient")
        self._tools.said.append("gradients")

    def export(self) -> Path:
        self._tools.n_held -= 1
        return Path("trace.json")

    def discard(self) -> None:
        self._tools.n_held -= 1

    def by_operator(self) -> dict[str, int]:
        return {"aten.mm": 12}


class Clock:
    """Every step takes as long as the test says."""

    def __init__(self, tools: FakeTools) -> None:
        self._tools = tools
        self._ticks: list[float] = []

    def tick(self) -> None:
        self._ticks.append(self._tools.now_us)

    def durations_us(self) -> tuple[float, ...]:
        return tuple(after - before for before, after in zip(self._ticks, self._ticks[1:], strict=False))

    def issued_us(self) -> tuple[float, ...]:
        return tuple(each / 2 for each in self.durations_us())

    @property
    def elapsed_us(self) -> float:
        return self._tools.now_us - self._ticks[0]


class Mark:
    def __init__(self, tools: FakeTools, name: str) -> None:
        self._tools, self._name = tools, name

    def __enter__(self) -> None:
        self._tools.said.append(self._name)

    def __exit__(self, *_: object) -> None:
        self._tools.said.append(f"end {self._name}")


class Timer:
    def __init__(self) -> None:
        self.names: list[str] = []

    def call(self, name: str, proceed: Callable[[], Any]) -> Any:
        self.names.append(name)
        return proceed()

    def spans(self) -> list[tuple[str, int, int]]:
        return [(name, at, 1) for at, name in enumerate(self.names)]


class FakeTools:
    def __init__(self) -> None:
        self.said: list[str] = []
        self.now_us = 0.0
        self.n_open = self.n_held = 0
        self.in_backward = self.captures = self.is_taken = self.on_gpu = False
        self.fails_to_start = self.fails_to_hear = False
        self.sees_device = True
        self.has_optimizer = False
        self.recorded, self.heard = ["aten::mul", "aten::mul"], ["aten::mul"]
        self.faults: dict[str, list[str]] = {}

    def is_profiling(self) -> bool:
        return self.is_taken

    def has_cuda(self) -> bool:
        return self.on_gpu

    def keeps_gradients(self) -> bool:
        return True

    def is_in_backward(self) -> bool:
        return self.in_backward

    def is_capturing(self) -> bool:
        return self.captures

    def synchronize(self) -> None:
        assert not self.captures, "who waits for the device in a capture ruins it"

    def mark(self, name: str) -> Mark:
        return Mark(self, name)

    def recording(self) -> Session:
        self.last = Session(self, "recording")
        return self.last

    def listener(self, inside: Callable[[], str | None]) -> Session:
        return Session(self, "listener")

    def eager_flops(self) -> Session:
        return Session(self, "count")

    def clock(self) -> Clock:
        return Clock(self)

    def call_timer(self) -> Timer:
        return Timer()

    def facts_of_optimizer(self, optimizer: Any) -> OptimizerFacts:
        return OptimizerFacts(type(optimizer).__name__, 3, 12, ("float32",))

    def call_site(self) -> str:
        return "program.py:1"

    def holds_optimizer(self, parameters: Collection[int] | None) -> bool:
        return parameters is None and self.has_optimizer


class Program:
    """A program under a recorder: each step calls a forward and its backward, and an optimizer."""

    def __init__(self, **options: Any) -> None:
        self.tools = FakeTools()
        self.later: Counter[int] = Counter()
        fixed = {"warmup": 1, "timed": 3, "repeats": 2, "tools": self.tools, "later_steps": lambda: self.later}
        self.recorder = StepRecorder(**fixed | options)
        self.optimizer = Compiled()
        self.graphs = [self.compile("forward_0"), self.compile("backward_0")]

    def compile(self, name: str) -> Compiled:
        compiled = Compiled()
        self.recorder.graph(name, compiled)
        return compiled

    def call(self, name: str, proceed: Callable[[], Any] = lambda: 7) -> Any:
        return self.recorder.around_call(name, proceed)

    def step(self, *, took_us: float = 100.0, forwards: int = 1) -> None:
        for _ in range(forwards):
            self.call("forward_0")
            self.call("backward_0")
        self.tools.now_us += took_us
        if self.recorder.is_done and not self.recorder.waits_for_training:
            self.later[threading.get_ident()] += 1
        self.recorder.optimizer_stepped(self.optimizer)

    def steps(self, number: int) -> Program:
        for _ in range(number):
            self.step()
        return self

    def result(self) -> StepRecording:
        self.recorder.close()
        return self.recorder.result()


def in_thread(action: Callable[[], Any]) -> None:
    """Do ``action`` on a thread of its own, to its end."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()
