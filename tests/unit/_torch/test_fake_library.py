"""The library that stands for a device that is not there."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from torchledger._torch import fake_library


def test_the_library_is_built_in_the_folder_that_the_user_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built: list[Path] = []
    loaded: list[str] = []
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path))
    monkeypatch.setattr(fake_library, "_build", built.append)
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    fake_library.load_library()
    assert [path.parent for path in built] == [tmp_path]
    assert loaded == [str(built[0])]
