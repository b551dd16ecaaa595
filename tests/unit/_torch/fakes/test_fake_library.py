"""The library that stands for a device that is not there."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from torchledger._torch.fakes import library as fake_library
from torchledger._torch.fakes.device import FakeDevice
from torchledger.nouns import Device


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


def test_a_program_may_ask_how_torch_was_built() -> None:
    with FakeDevice(Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)):
        assert "CuDNN" in torch.__config__.show()
        torch.backends.cuda.cufft_plan_cache.clear()
        assert torch.backends.cuda.cufft_plan_cache.size == 0
