"""Whether a program trains once more behind the loop of its step."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from torchledger.planning.trained_behind import trained_behind_note

_FINDER = """
def find_rate(model, loss):
    finder = Optimizer()
    for _ in range(3):
        loss.backward()
        finder.step()
    return 0.1

def main(loss):
    rate = find_rate(None, loss)
    optimizer = Optimizer()
    for epoch in range(2):
        for batch in range(2):
            loss.backward()
            optimizer.step()

main(Loss())
"""
_WARM_UP = """
optimizer, loss = Optimizer(), Loss()
for _ in range(3):
    loss.backward()
    optimizer.step()
for _ in range(10):
    loss.backward()
    optimizer.step()
"""
_IN_TURNS = """
def turn(critic, actor, loss):
    for _ in range(5):
        loss.backward()
        critic.step()
    for _ in range(1):
        loss.backward()
        actor.step()

for _ in range(3):
    turn(Optimizer(), Optimizer(), Loss())
"""
_SAME_FUNCTION = """
def train(rounds, optimizer, loss):
    for _ in range(rounds):
        loss.backward()
        optimizer.step()

train(1, Optimizer(), Loss())
train(100, Optimizer(), Loss())
"""
_PHASES = """
def pretrain(optimizer, loss):
    for _ in range(3):
        loss.backward()
        optimizer.step()

def tune(scaler, adam, loss):
    while True:
        scaler.scale(loss).backward()
        scaler.step(adam)
        break

if True:
    pretrain(Optimizer(), Loss())
    tune(Optimizer(), Optimizer(), Loss())
"""


def first_note(tmp_path: Path, text: str) -> str | None:
    """What is said at the first step of a program."""
    notes: list[str | None] = []

    class Optimizer:
        def step(self, *_: Any) -> None:
            frame: FrameType | None = sys._getframe(1)
            frames = []
            while frame is not None and frame.f_code.co_filename == str(file):
                frames.append((frame, frame.f_lineno))
                frame = frame.f_back
            notes.append(trained_behind_note(frames))

        def scale(self, loss: Any) -> Any:
            return loss

    class Loss:
        def backward(self) -> None:
            """Nothing is learned here."""

    file = tmp_path / "train.py"
    file.write_text(text)
    runpy.run_path(str(file), {"Optimizer": Optimizer, "Loss": Loss})
    return notes[0]


@pytest.mark.parametrize(("text", "place"), [(_FINDER, "train.py:12"), (_PHASES, "train.py:8")])
def test_a_loop_behind_that_trains_otherwise_is_named(tmp_path: Path, text: str, place: str) -> None:
    note = first_note(tmp_path, text)
    assert note is not None and f"trains in another, at {place}, whose steps are not priced" in note


@pytest.mark.parametrize("text", [_WARM_UP, _IN_TURNS, _SAME_FUNCTION])
def test_a_loop_that_trains_alike_or_in_turns_is_no_news(tmp_path: Path, text: str) -> None:
    assert first_note(tmp_path, text) is None
