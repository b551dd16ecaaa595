"""Files from strangers: every command ends well or with one error of ours, in bounded time and memory.

`make fuzz` runs ten thousand of these; here a few, and each case that once failed.
"""

from __future__ import annotations

import pytest

from fuzzing import KINDS, load_corpus, make_cases, mutate_bytes, run_cases

CASES = 3 * len(KINDS) * max(len(kind.commands) for kind in KINDS.values())


@pytest.mark.parametrize("kind", KINDS)
def test_changed_files_end_no_command_in_a_traceback(kind: str) -> None:
    cases = [case for case in make_cases(CASES, seed=2026) if case.kind == kind][:8]
    assert list(run_cases(cases)) == []


def test_what_once_failed_does_not_fail_again() -> None:
    corpus = load_corpus()
    assert list(run_cases(corpus, corpus)) == []


def test_a_fault_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("torchledger.sampling.sets.read_guide_csv", fail)
    (case,) = [case for case in make_cases(len(KINDS), seed=0) if case.kind == "guide CSV"]
    (fault,) = run_cases([case])
    assert fault.case == case and fault.what.startswith("KeyError: 'planted' at ")


def test_the_same_seed_makes_the_same_file() -> None:
    from random import Random

    content = bytes(range(256)) * 8
    assert [mutate_bytes(Random(seed), content) for seed in range(50)] == [
        mutate_bytes(Random(seed), content) for seed in range(50)
    ]
