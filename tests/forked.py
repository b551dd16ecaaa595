"""A recorded process for less than a second: a fork of one that has imported torch and has compiled the program once.

``make_forkable`` prepares this process; ``record`` runs a program in a fork of it, under what ``torchledger run``,
``run --profile`` or ``values`` would attach there. The command's own part, ``run_script``, is in the process that asks.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch._prims.rng_prims import run_with_rng_state

import torchledger
from torchledger.capturing import process

Mode = Literal["inference", "run", "profile", "values", "capture"]

ATTACHED: Mapping[Mode, Mapping[str, Mapping[str, object]]] = {
    "inference": {},
    "run": {},
    "profile": {"torchledger.profiling.profile": {"warmup": 1, "timed": 1, "repeats": 1, "after_us": 0}},
    "values": {
        "torchledger.watching.session": {"level": "stats", "find": "nan", "against_eager": True, "prints": False}
    },
    "capture": {},
}
"""What is attached to a recording. `inference` is a `run` of a program that does not train, `values` compares with
eager code, `capture` is the call from Python."""

PACKAGE = Path(torchledger.__file__).parent
EXIT_CODE = 3
"""With which the program ends, whatever happens to us."""

_LONGEST_S = 240
"""By the clock, after which a recording is taken for one that hangs: the machine may have other work."""


def program(folder: Path, at_step: Callable[[list[torch.Tensor]], object] = lambda parameters: None) -> None:
    """Train a few steps: a compiled model, an eager loss, an optimizer; the weights go to ``folder/result``.

    The loss draws its targets by a higher-order operator, which a mode that hears operators is given too.

    Each graph's first call leaves a letter in ``folder/progress``, once it has returned. ``at_step`` is called with the
    parameters before each optimizer's step.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = torch.get_rng_state()
    for step in range(9):
        targets = run_with_rng_state(state, torch.ops.aten.rand_like.default, torch.empty(4, 16))
        loss = (compiled(torch.randn(4, 8)) - targets).square().mean()
        _tell(folder, "F" if step == 0 else "")
        loss.backward()
        _tell(folder, "B" if step == 0 else "")
        at_step(list(model.parameters()))
        optimizer.step()
        optimizer.zero_grad()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    (folder / "result").write_bytes(weights.numpy().tobytes())
    sys.exit(EXIT_CODE)


def _tell(folder: Path, letter: str) -> None:
    if letter:
        with (folder / f"progress{os.environ.get('RANK', '')}").open("a") as file:
            file.write(letter)


def inference(folder: Path) -> None:
    """One call of a compiled function, for half the time of ``program``; its result goes to ``folder/result``."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.randn(8, 16)

    def function(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x @ weight).softmax(-1)

    (folder / "result").write_bytes(torch.compile(function)(torch.randn(4, 8)).numpy().tobytes())
    _tell(folder, "I")
    sys.exit(EXIT_CODE)


def program_of(mode: Mode) -> Callable[[Path], None]:
    """What is recorded in a mode."""
    return inference if mode == "inference" else program


@cache
def expected(mode: Mode) -> bytes:
    """What a program gives without us; and its code is in the caches after it."""
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(SystemExit):
            program_of(mode)(Path(folder))
        return (Path(folder) / "result").read_bytes()


class Fork:
    """The part of ``subprocess.Popen`` that ``run_script`` needs, on a fork of this process instead of a new one."""

    inside: Callable[[], object]
    """What the child does before our hooks go in."""
    mode: Mode
    folder: Path

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdout: int | None = None) -> None:
        del command, stdout
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(env)
            os._exit(self._run())

    @classmethod
    def _run(cls) -> int:
        begin_anew(cls.folder / "messages")
        code = 0
        try:
            cls.inside()
            if cls.mode != "capture":
                process.start_in_process()
                program_of(cls.mode)(cls.folder)
            else:
                with torchledger.capture(cls.folder / "a.ledger", force=True):
                    program(cls.folder)
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            code = 1
        atexit._run_exitfuncs()
        return code

    def send_signal(self, number: int) -> None:
        """Pass a signal on to the child."""
        os.kill(self.pid, number)

    def wait(self) -> int:
        """The exit code of the child, negative for a signal."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)


def begin_anew(messages: Path) -> None:
    """Make a fork look like a process that has just begun, which says what it says to a file."""
    atexit._clear()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(_LONGEST_S)
    file = os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 - the process ends with it
    logging.disable(logging.NOTSET)


def record(
    mode: Mode, folder: Path, inside: Callable[[], object] = lambda: None, *, force: bool = False
) -> tuple[int, tuple[str, ...]]:
    """The exit code of the program recorded into ``folder/a.ledger`` after ``inside``, and what the user was told.

    A ledger that is there is removed, or with ``force`` replaced as ``--force`` does.
    """
    expected(mode)
    for name in ("result", "progress", "messages", *(() if force else ("a.ledger",))):
        (folder / name).unlink(missing_ok=True)
    if mode == "capture":
        Fork.inside, Fork.mode, Fork.folder = staticmethod(inside), mode, folder
        return Fork(["python"], {}).wait(), ()
    with forking(mode, folder, inside):
        outcome = process.run_script(
            ("json.tool",),  # any module that there is: the fork stands in for it
            folder / "a.ledger",
            is_module=True,
            force=force,
            attached=ATTACHED[mode],
            is_profiled=mode == "profile",
        )
    return outcome.exit_code, outcome.warnings


@contextlib.contextmanager
def forking(mode: Mode, folder: Path, inside: Callable[[], object] = lambda: None) -> Iterator[None]:
    """What ``run_script`` would start as a process is a fork in here, which writes its result into ``folder``."""
    expected(mode)
    Fork.inside, Fork.mode, Fork.folder = staticmethod(inside), mode, folder
    former = process.subprocess
    process.subprocess = types.SimpleNamespace(Popen=Fork)  # type: ignore[assignment]
    try:
        yield
    finally:
        process.subprocess = former


def make_forkable(modes: Collection[Mode] = tuple(ATTACHED)) -> None:
    """One thread, all modules of ours that the program could import, and warm caches: what a fork inherits.

    The caches hold what ``modes`` compile; a fork of another mode compiles for itself.
    """
    folder = tempfile.mkdtemp()  # a TemporaryDirectory goes with what refers to it, in the first fork that forgets that
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    os.environ["KINETO_LOG_LEVEL"] = "99"
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = False
    torch._functorch.config.enable_autograd_cache = False
    # Autograd counts its devices once. A torch built for a GPU that it does not see counts none before it compiles and
    # a stand-in after, for which it would start a thread, and a process with one leaves no autograd to its forks.
    torch.ones((), requires_grad=True).backward()
    for mode in modes:
        expected(mode)
    for name in sorted(PACKAGE.rglob("*.py")):
        parts = name.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] not in _NOT_INSIDE and parts[-1] not in ("__init__", "__main__") and "child_hook" not in parts:
            with contextlib.suppress(ImportError):  # what needs Triton
                __import__(".".join(("torchledger", *parts)))


_NOT_INSIDE = ("cli", "fitting", "predicting", "sampling", "reporting")
"""Rooms that no recorded process enters."""
