"""Seals tell code that was written here from code that was sent."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from torchledger.store.seal import is_sealed_here, seal


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_sealed_here_is_known_again() -> None:
    assert is_sealed_here(seal("code", None), "code", None)


def test_changed_code_has_no_valid_seal() -> None:
    found = seal("code", "graph")
    assert not is_sealed_here(found, "code ", "graph")
    assert not is_sealed_here(found, "codegraph", "")
    assert not is_sealed_here(None, "code", "graph")


def test_a_seal_of_another_user_is_not_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = seal("code")
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "other"))
    assert not is_sealed_here(found, "code")
    seal("code")
    assert not is_sealed_here(found, "code")


def test_only_the_user_can_read_the_key(cache: Path) -> None:
    seal("code")
    assert stat.S_IMODE((cache / "key").stat().st_mode) == 0o600


def test_without_a_place_for_the_key_nothing_is_sealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "file" / "cache"))
    assert seal("code") is None
