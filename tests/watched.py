"""A planted model that is being watched, and what is asked of it."""

from __future__ import annotations

import torch
from torch import Tensor

from planted import faulty, loss_of, make_planted, neutral
from torchledger.nouns import ValueFinding
from torchledger.watching.session import Watch


class Case:
    """A compiled model that is being watched."""

    def __init__(self, name: str, watch: Watch) -> None:
        self.name = name
        self.watch = watch
        self.model, self.x = make_planted(name)
        self.compiled = torch.compile(self.model)

    def ask(self, question: str, dial: Tensor, *, backward: bool = False) -> list[ValueFinding]:
        self.watch.change(find=question)
        self.watch.findings.clear()
        if backward:
            loss_of(self.compiled(self.x, dial)).backward()
        else:
            with torch.no_grad():
                self.compiled(self.x, dial)
        return list(self.watch.findings)

    def neutral(self) -> Tensor:
        return neutral(self.model)

    def faulty(self, place: int, column: int, value: float) -> Tensor:
        return faulty(self.model, place, column, value)

    def assert_first_is_at(self, place: int, verdict: str = "created here") -> ValueFinding:
        first = self.watch.first_bad
        assert first is not None
        assert first.verdict == verdict
        launch = self.watch.launch(first.subject)
        assert launch is not None
        assert f"plants.{place}" in launch.modules, (first, launch.modules)
        assert any("planted.py" in line.file for line in launch.sources)
        return first
