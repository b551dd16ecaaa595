"""The processes in which launches run alone: which tasks each has, and what becomes of those that were lost."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest

from torchledger.replaying import bench_process as module
from torchledger.replaying.bench_timing import Budget
from torchledger.replaying.bench_worker import Job, Task, batches

QUICK = Budget(seconds=0.02)


def test_tasks_that_were_lost_together_are_tried_again_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tuple(Task(name, "cuda:0", "", "") for name in "abcdef")
    runs: list[tuple[str, int]] = []

    def run(
        job: Job, timeout_s: float, deadline: float | None, tell: Any
    ) -> tuple[dict[str, dict[str, Any]], list[str], module.WorkerEnd]:
        names = [task.task_id for task in job.tasks]
        runs.append(("".join(names), job.together))
        done: dict[str, dict[str, Any]] = {}
        for start in range(0, len(names), job.together):
            batch = names[start : start + job.together]
            if "c" in batch:
                return done, batch, module.WorkerEnd("crashed", "its process was lost")
            done |= {name: {"status": "ok"} for name in batch}
            for name in batch:
                tell(name)
        return done, [], module.WorkerEnd()

    monkeypatch.setattr(module, "_run_worker", run)
    told: list[tuple[int, int, str]] = []
    answers = module.run_tasks(
        Job(tasks, QUICK, together=2), timeout_s=1, progress=lambda *progress: told.append(progress)
    )
    assert {name: answer["status"] for name, answer in answers.items()} == {
        name: "crashed" if name == "c" else "ok" for name in "abcdef"
    }
    assert runs == [("abcdef", 2), ("cd", 1), ("d", 1), ("ef", 2)]
    assert told[0] == (0, 6, "") and [what for _, _, what in told[1:]] == list("abdef")


def test_a_task_that_ran_when_the_time_for_all_was_over_is_not_called_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_answers(*arguments: object) -> tuple[dict[str, dict[str, Any]], list[str], bool]:
        time.sleep(0.06)
        return {}, ["a"], True

    monkeypatch.setattr(module, "_listen", never_answers)
    monkeypatch.setattr(module.subprocess, "Popen", lambda *arguments, **options: _EndedProcess())
    tasks = (Task("a", "cpu", "", ""), Task("b", "cpu", "", ""))
    assert module.run_tasks(Job(tasks, QUICK), timeout_s=100, deadline=time.monotonic() + 0.05) == {}


class _EndedProcess:
    stdout = io.BytesIO()

    def poll(self) -> int:
        return 0

    def wait(self) -> int:
        return 0


def test_tasks_share_a_recording_on_cuda_only_and_as_far_as_they_fit() -> None:
    def task(name: str, size: int, **others: Any) -> Task:
        return Task(name, others.pop("device", "cuda:0"), "", "", {"buf0": size}, **others)

    tasks = [task("a", 4), task("b", 4), task("c", 4), task("d", 1, mode="max_autotune"), task("e", 1), task("f", 99)]
    found = [[each.task_id for each in batch] for batch in batches(tasks, 16, most_bytes=10)]
    assert found == [["a", "b"], ["c"], ["d"], ["e"], ["f"]]
    assert [len(batch) for batch in batches([task("a", 1, device="cpu")] * 3, 16)] == [1, 1, 1]
    assert [len(batch) for batch in batches([task("a", 1)] * 5, 2)] == [2, 2, 1]
