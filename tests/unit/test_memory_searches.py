"""Programs that try until memory runs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.memory_searches import catches_running_out


def place(folder: Path, handler: str, line: int = 3) -> str | None:
    script = folder / "search.py"
    script.write_text(f"x = 1\ntry:\n    step(x)\n{handler}\nstep(x)\n")
    return catches_running_out([(str(script), line)])


@pytest.mark.parametrize(
    "handler",
    [
        "except torch.cuda.OutOfMemoryError:\n    x = 0",
        "except (ValueError, torch.OutOfMemoryError) as error:\n    print(error)",
        "except RuntimeError as error:\n    if 'out of memory' not in str(error):\n        raise\n    x = 0",
        "except Exception as e:\n    if should_reduce_batch_size(e):\n        x //= 2\n    else:\n        raise",
    ],
)
def test_a_try_that_goes_on_when_memory_runs_out_is_told(tmp_path: Path, handler: str) -> None:
    assert place(tmp_path, handler) == "search.py:2"


@pytest.mark.parametrize(
    "handler",
    [
        "except RuntimeError:\n    x = 0",
        "except torch.cuda.OutOfMemoryError:\n    print(x)\n    raise",
        "except torch.cuda.OutOfMemoryError:\n    sys.exit(1)",
        "finally:\n    x = 0",
    ],
)
def test_one_that_does_not_ask_or_ends_the_program_is_none(tmp_path: Path, handler: str) -> None:
    assert place(tmp_path, handler) is None


def test_what_stands_behind_it_is_not_in_it(tmp_path: Path) -> None:
    assert place(tmp_path, "except torch.OutOfMemoryError:\n    step(x)", line=5) is None
    assert place(tmp_path, "except torch.OutOfMemoryError:\n    step(x)", line=6) is None


def test_a_file_that_is_gone_catches_nothing(tmp_path: Path) -> None:
    assert catches_running_out([(str(tmp_path / "gone.py"), 3)]) is None
