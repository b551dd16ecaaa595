"""Files from strangers: every command ends well or with one error of ours, in bounded time and memory.

`make fuzz` runs ten thousand of these; here a few, and each case that once failed.
"""

from __future__ import annotations

import os

import pytest

from fuzzed_kinds import KINDS
from fuzzing import load_corpus, make_cases, run_cases
from mutations import mutate_bytes

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


def test_cases_run_in_several_processes_have_the_same_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr("torchledger.sampling.sets.read_guide_csv", fail)
    cases = make_cases(8, seed=0, kinds=["guide CSV"])
    one_by_one = list(run_cases(cases))
    assert len(one_by_one) > 3
    together = list(run_cases(cases, batch=2, jobs=3))
    assert sorted(together, key=lambda fault: fault.case.seed) == one_by_one


def test_a_case_that_ends_its_process_is_a_fault_and_the_others_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchledger.sampling.sets.read_guide_csv", lambda *_: os._exit(7))
    cases = make_cases(3, seed=0, kinds=["guide CSV"])
    found = list(run_cases(cases))
    assert [fault.case for fault in found] == cases
    assert {fault.what for fault in found} == {"the process died (status 1792)"}


def test_the_same_seed_makes_the_same_file() -> None:
    from random import Random

    content = bytes(range(256)) * 8
    assert [mutate_bytes(Random(seed), content) for seed in range(50)] == [
        mutate_bytes(Random(seed), content) for seed in range(50)
    ]
