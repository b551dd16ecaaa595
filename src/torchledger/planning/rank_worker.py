"""The ranks of a plan, each in a process of its own: ``python -m torchledger.planning.rank_worker PARENT ASKED TOLD``.

This process imports what every rank needs and then forks one child a rank, so that it is imported once. It reads lines
from the file descriptor ``ASKED``, each a list of requests (paths of JSON files) and how many may run at once, and
writes their exit codes to ``TOLD``. What a script prints goes to stderr. A sentence that says why there is no ledger is
left in the request's ``failure``; ``steady`` is made where no step behind the recorded one held more than it, and in
``turn`` is what the step is where it is a turn.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path

from torchledger.errors import TorchledgerError
from torchledger.nouns import RUNNING, Device, WorldSpec
from torchledger.planning.dry_run import run_without_device, script_program
from torchledger.planning.turns_of_messages import turn_told
from torchledger.predicting.devices import find_model
from torchledger.predicting.padding import PaddingRule
from torchledger.signals import end_with_parent
from torchledger.store.codec import decode
from torchledger.work.unaligned import Pays, stays_as_it_is


def serve(parent: int, asked: int, told: int) -> int:
    """Fork a rank for each request until there are no more; the exit code, in a child that of its rank."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked ends it
    _import_what_ranks_need()
    server = os.getpid()
    with os.fdopen(asked) as lines, os.fdopen(told, "w") as answers:
        for line in lines:
            batch = json.loads(line)
            codes, request = _fork_each(batch["requests"], batch["at_once"])
            if request is not None:
                break
            answers.write(json.dumps(codes) + "\n")
            answers.flush()
        else:
            return 0
    return _record(Path(request), server)


def _fork_each(requests: list[str], at_once: int) -> tuple[list[int | None], str | None]:
    """Exit codes by request once all have ended, ``None`` for those that were not begun as one had failed; and in a
    child its request."""
    codes: list[int | None] = [None] * len(requests)
    waiting = list(enumerate(requests))
    running: dict[int, int] = {}
    while running or (waiting and not any(codes)):
        while waiting and len(running) < at_once and not any(codes):
            place, request = waiting.pop(0)
            _running(request).touch()
            sys.stdout.flush()
            sys.stderr.flush()
            child = os.fork()
            if not child:
                return codes, request
            running[child] = place
        ended, status = os.wait()
        if ended in running:
            place = running.pop(ended)
            codes[place] = os.waitstatus_to_exitcode(status)
            _running(requests[place]).unlink()
    return codes, None


def _running(request: str) -> Path:
    """What says that a rank is being recorded: others may wait for what it tells them."""
    return Path(request).with_suffix(RUNNING)


def _import_what_ranks_need() -> None:
    """All that a rank imports before its script is here; what this makes is never garbage."""
    from torchledger._torch.fakes.device import import_what_it_needs

    import_what_it_needs()
    gc.collect()
    gc.freeze()


def _pays(model: str | None, slowness: float) -> Pays:
    return stays_as_it_is if model is None else PaddingRule(lambda: find_model(model), slowness=slowness)


def _record(request: Path, parent: int) -> int:
    """Record the rank that the request asks for."""
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asked = json.loads(request.read_bytes())
    try:
        outcome = run_without_device(
            script_program(asked["script"], asked["arguments"], is_module=asked["is_module"]),
            Path(asked["path"]),
            decode(Device, json.dumps(asked["device"]).encode()),
            force=True,
            argv=(asked["script"], *asked["arguments"]),
            world=WorldSpec(**asked["world"]),
            pays=_pays(asked["model"], asked["slowness"]),
            looks_for_rarer=asked["looks_for_rarer"],
            looks_for_turns=asked["looks_for_turns"],
            turn=None if asked["given_turn"] is None else turn_told(asked["given_turn"]),
        )
    except TorchledgerError as error:
        Path(asked["failure"]).write_text(str(error))
        return error.exit_code
    if outcome.is_steady:
        Path(asked["steady"]).touch()
    if outcome.turn is not None:
        Path(asked["turn"]).write_text(json.dumps(asdict(outcome.turn)))
    return 0


if __name__ == "__main__":
    sys.exit(serve(*map(int, sys.argv[1:4])))
