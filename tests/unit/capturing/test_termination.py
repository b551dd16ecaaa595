"""A process that is told to end while it writes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torchledger
from torchledger.capturing.termination import termination_deferred

SCRIPT = """
import os, signal, sys
from torchledger.capturing.termination import termination_deferred
with termination_deferred():
    os.kill(os.getpid(), signal.SIGTERM)
    print("written", flush=True)
print("still there", flush=True)
"""


def test_what_is_being_written_is_written_and_then_the_process_ends_as_it_was_told() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(torchledger.__file__).parent.parent)}
    ended = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert ended.stdout == "written\n"
    assert ended.returncode == -signal.SIGTERM


def test_a_handler_of_the_program_hears_it_afterwards_and_is_there_again() -> None:
    heard: list[str] = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: heard.append("program"))
    try:
        own = signal.getsignal(signal.SIGTERM)
        with termination_deferred():
            os.kill(os.getpid(), signal.SIGTERM)
            heard.append("written")
        assert heard == ["written", "program"]
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, former)


def test_another_thread_changes_nothing() -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with termination_deferred():
            seen.append(signal.getsignal(signal.SIGTERM))

    seen: list[object] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
