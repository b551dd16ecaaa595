"""Turns of ranks that do not do the same, from one exchange of messages to the next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from torchledger.planning.plan import plan_world
from torchledger.planning.turns_of_messages import Beginning, Method, TurnOfMessages, TurnsOfMessages, turn_told
from torchledger.planning.world import Script

TURNS = 6


def begun(signals: Iterator[str], turns: TurnsOfMessages, *, beyond: int | None = 1) -> list[int]:
    """Tell of signals: ``call``, ``step``, and the rank that a message is sent to (``>1``) or comes from (``<1``).
    Returns before which of them a turn began."""
    found = []
    for place, signal in enumerate(signals):
        if signal == "call":
            turns.model_called()
        elif signal == "step":
            turns.optimizer_stepped()
        else:
            method: Method = "send" if signal[0] == ">" else "recv"
            if turns.message(int(signal[1:]), method, beyond=beyond, at=lambda: "train.py:7"):
                found.append(place)
    return found


def learner(*, steps: int = 4, turns: int = TURNS) -> Iterator[str]:
    for _ in range(turns):
        yield from ["<1"] * 3
        yield from ["call", "step"] * steps
        yield ">1"


def actor(*, calls: int = 5) -> Iterator[str]:
    for _ in range(TURNS):
        yield from ["call"] * calls
        yield from [">0"] * 3
        yield "<0"


def test_several_steps_between_messages_are_a_turn_that_begins_with_the_first_of_them() -> None:
    turns = TurnsOfMessages(0)
    # The first exchange has no weights before it; of two alike behind it the end is the first that is known.
    one = 4 + 8
    assert begun(learner(), turns) == [one * turn - 1 for turn in (3, 4, 5, 6)]
    assert turns.turn == TurnOfMessages(0, (Beginning(1, "send", 1, 0),))
    assert "train.py:7 to the next ones: 4 steps of its optimizer;" in turns.note()


def test_several_calls_between_messages_are_a_turn_where_no_optimizer_steps() -> None:
    turns = TurnsOfMessages(1)
    assert begun(actor(), turns) == [5 + 9 * turn for turn in (2, 3, 4, 5)]
    assert turns.turn == TurnOfMessages(1, (Beginning(0, "send", 3, 0),))
    assert "5 calls of its model, and no step of an optimizer" in turns.note()


def test_the_other_rank_begins_its_turns_with_the_same_message() -> None:
    first = TurnsOfMessages(0)
    begun(learner(), first)
    assert first.turn is not None
    given = first.turn.of_rank(1)
    assert given == TurnOfMessages(1, (Beginning(0, "recv", 1, 0),))
    weights = [5 + 3 + 9 * turn for turn in range(TURNS)]
    assert begun(actor(), TurnsOfMessages(1, given)) == weights
    assert first.turn.of_rank(2) is None


def test_messages_before_the_first_turn_are_of_none() -> None:
    def with_weights(signals: Iterator[str], *weights: str) -> Iterator[str]:
        yield from weights
        yield from signals

    found = TurnsOfMessages(1)
    begun(with_weights(actor(), ">0", ">0"), found)
    assert found.turn == TurnOfMessages(1, (Beginning(0, "send", 3, 2),))
    other = TurnsOfMessages(0, found.turn.of_rank(0))
    assert begun(with_weights(learner(), "<1", "<1"), other)[:2] == [2, 2 + 12]


@pytest.mark.parametrize(
    "signals",
    [
        pytest.param(["<1", "call", "step", ">1"] * TURNS, id="one step"),
        pytest.param(["call", ">1", "call", ">1", "<1", "<1", "step"] * TURNS, id="microbatches of a pipeline"),
        pytest.param([*["<1", *["step"] * 2], *["<1", *["step"] * 3]] * TURNS, id="another number of steps each time"),
        pytest.param(["<1", *["step"] * 40] * TURNS, id="an epoch"),
        pytest.param([*["<1", *["step"] * 4], *["<2", *["step"] * 4]] * TURNS, id="another rank each time"),
        pytest.param(["call", ">1"] * TURNS, id="a call for each message"),
    ],
)
def test_other_messages_begin_no_turn(signals: list[str]) -> None:
    turns = TurnsOfMessages(0)
    assert begun(iter(signals), turns) == []
    assert turns.turn is None and not turns.is_likely(1)


def test_as_many_steps_as_are_known_to_belong_together_are_no_turn_of_several() -> None:
    assert begun(learner(), TurnsOfMessages(0), beyond=4) == []
    assert begun(learner(), TurnsOfMessages(0), beyond=None) == []


def test_a_turn_may_be_under_way_once_messages_come_behind_several_steps() -> None:
    turns = TurnsOfMessages(0)
    begun(iter(["step"] * 4), turns)
    assert not turns.is_possible(1)
    begun(iter(["<1"]), turns)
    assert turns.is_possible(1) and not turns.is_likely(1)
    begun(iter([*["step"] * 4, "<1"]), turns)
    assert turns.is_likely(1) and not turns.is_likely(4)


def test_turns_come_back_as_they_were_written() -> None:
    turn = TurnOfMessages(0, (Beginning(1, "recv", 3, 0), Beginning(2, "send", 1, 0)))
    assert turn_told(json.loads(json.dumps(asdict(turn)))) == turn


SCRIPT = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rollout = torch.zeros(8, 64, device="cuda")


def play():
    with torch.no_grad():
        for row in range(8):
            rollout[row] = model(rollout[row])


def learn():
    for rows in rollout.chunk(4):
        model(rows).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


for _ in range(40):
    learn() if rank == LEARNER else play()
    dist.recv(rollout, 1 - rank) if rank == LEARNER else dist.send(rollout, 1 - rank)
    dist.broadcast(model.weight.data, src=LEARNER)
"""


@pytest.mark.parametrize("first", ["learner", pytest.param("actor", marks=pytest.mark.slow)])
def test_a_rank_that_plays_and_one_that_learns_are_planned_by_the_turn_between_their_messages(
    tmp_path: Path, first: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LEARNER", "0" if first == "learner" else "1"))
    step = plan_world(Script(str(script)), 2).step
    ranks = {"learner": "4 steps of its optimizer", "actor": "8 calls of its model, and no step of an optimizer"}
    said = [note for note in step.notes if note.startswith("a step of rank")]
    assert [note.partition(": ")[2].partition(";")[0] for note in said] == sorted(
        ranks.values(), key=lambda each: each != ranks[first]
    )
    exchanged = {(each.rank, each.operation, each.count) for each in step.collectives}
    sends, receives = ("1", "0") if first == "learner" else ("0", "1")
    assert exchanged == {
        (int(sends), "send", 1),
        (int(receives), "recv", 1),
        (0, "broadcast", 1),
        (1, "broadcast", 1),
    }
