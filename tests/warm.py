"""``torchledger run SCRIPT`` without seven seconds of imports each: by forks of a process that has imported torch.

``WarmProcess`` starts this file as a process, once, and asks it for runs. Each is the command itself in a fork, and
what the command would start as ``python SCRIPT`` is a fork of that, in which the script's own code runs as
``__main__``. What comes before it in a process of its own (Python's start, the hook folder on the path) is for other
tests. So is what a C++ kernel computes: unless a run ``builds``, its kernels are those of ``unbuilt_kernels``.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Answer = tuple[int, str, str]
"""Exit code, and what was written to stdout and stderr."""


class WarmProcess:
    """A process that runs the command line in forks of itself, one after the other."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, folder: Path, *arguments: str, builds: bool = False) -> Answer:
        """``torchledger ARGUMENTS`` in a folder; unless it ``builds``, C++ kernels write zeros."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(folder), builds, *arguments]) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return code, *((folder / name).read_text() for name in ("warm.out", "warm.err"))

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def main() -> None:
    """Answer each line of JSON (a folder, whether kernels are built, and arguments) with an exit code."""
    _warm_up()
    for line in sys.stdin:
        asked = json.loads(line)
        code = os.waitstatus_to_exitcode(os.waitpid(_fork(lambda a=asked: _command(Path(a[0]), a[1], a[2:])), 0)[1])
        print(code, flush=True)


def _warm_up() -> None:
    """Import what a recording and a compilation need, which is told by doing the latter."""
    import torch

    import torchledger.cli
    import torchledger.profiling.profile  # noqa: F401 - likewise a profile
    from unbuilt import unbuilt_kernels

    torch.set_num_threads(1)
    with unbuilt_kernels():
        torch.compile(torch.nn.Linear(3, 3))(torch.ones(3)).relu().sum().backward()


def _fork(action: Callable[[], int]) -> int:
    """The id of a fork that does ``action`` and ends with its code, whatever happens."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = action()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _command(folder: Path, builds: bool, arguments: Sequence[str]) -> int:
    from forked import begin_anew
    from torchledger.capturing import process
    from torchledger.cli import main as command

    os.chdir(folder)
    begin_anew(folder / "warm.err")
    os.dup2(os.open("warm.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
    _Script.builds = builds
    process.subprocess = types.SimpleNamespace(Popen=_Script)  # type: ignore[assignment]
    sys.argv = ["torchledger", *arguments]
    return _code_of(command)


class _Script:
    """The part of ``subprocess.Popen`` that ``run_script`` needs."""

    builds = False

    def __init__(self, command: Sequence[str], env: Mapping[str, str], stdout: int | None = None) -> None:
        self._pid = _fork(lambda: self._run(command[1:], env, stdout))

    @classmethod
    def _run(cls, command: Sequence[str], env: Mapping[str, str], stdout: int | None) -> int:
        import atexit

        from torchledger.capturing.process import start_in_process
        from unbuilt import unbuilt_kernels

        atexit._clear()
        if stdout is not None:
            os.dup2(stdout, 1)
        os.environ.update(env)
        sys.argv = list(command)
        start_in_process()
        with contextlib.nullcontext() if cls.builds else unbuilt_kernels():
            code = _code_of(lambda: runpy.run_path(command[0], run_name="__main__"))
        atexit._run_exitfuncs()
        return code

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])


def _code_of(action: Callable[[], object]) -> int:
    code: object = 0
    try:
        action()
    except SystemExit as end:
        code = end.code
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):
        main()
