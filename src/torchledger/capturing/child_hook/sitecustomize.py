"""Run by Python at start-up in processes under ``torchledger run``: starts the capture, then the next sitecustomize.

This folder stands first on ``PYTHONPATH`` there. A fault in here never keeps a program from starting.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _start_capture() -> None:
    if _is_started_by_torchledger():
        _start()
        return
    try:
        from torchledger._torch.lazy_import import after_import
    except ImportError as error:
        _say(error)
        return
    # Most processes that a script starts never compile; Inductor alone starts some to try instructions.
    after_import("torch", _start)


def _start() -> None:
    try:
        from torchledger.capturing.process import start_in_process
    except ImportError as error:
        _say(error)
        return
    start_in_process()


def _say(error: ImportError) -> None:
    sys.stderr.write(f"torchledger: nothing is captured in process {os.getpid()}: {error}\n")


def _is_started_by_torchledger() -> bool:
    try:
        return bool(json.loads(os.environ["TORCHLEDGER_CAPTURE"])["parent"] == os.getppid())
    except (ValueError, KeyError, TypeError):
        return True  # what is wrong with the request is said where it is read


def _run_next_sitecustomize() -> None:
    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("TORCHLEDGER_CAPTURE"):
    _start_capture()
_run_next_sitecustomize()
