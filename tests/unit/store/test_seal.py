"""Seals tell code that was written here from code that was sent."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_graph, make_kernel, make_launch
from torchledger.errors import StoreError
from torchledger.store.seal import is_sealed_here, seal, seal_fault, sealed_graph, sealed_kernel


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_was_sealed_here_is_known_again() -> None:
    assert is_sealed_here(seal("graph", b"code", b""), "graph", b"code", b"")


def test_changed_code_has_no_valid_seal() -> None:
    found = seal("graph", b"code", b"launch")
    assert not is_sealed_here(found, "graph", b"code ", b"launch")
    assert not is_sealed_here(found, "graph", b"codelaunch", b"")
    assert not is_sealed_here(found, "kernel", b"code", b"launch")
    assert not is_sealed_here(None, "graph", b"code", b"launch")


def test_a_seal_of_another_user_is_not_valid(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = seal("graph", b"code")
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "other"))
    assert not is_sealed_here(found, "graph", b"code")
    seal("graph", b"code")
    assert not is_sealed_here(found, "graph", b"code")


def test_only_the_user_can_read_the_key(cache: Path) -> None:
    seal("graph", b"code")
    assert stat.S_IMODE((cache / "seal").stat().st_mode) == 0o700
    assert stat.S_IMODE((cache / "seal" / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("place", "mode"), [("seal", 0o755), ("seal/key", 0o644), ("seal", 0o770), ("seal/key", 0o602)]
)
def test_a_key_that_others_can_reach_proves_nothing(
    cache: Path, place: str, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    found = seal("graph", b"code")
    (cache / place).chmod(mode)
    with pytest.raises(StoreError, match=rf"open to other users \(mode {mode:o}\).*chmod [67]00"):
        is_sealed_here(found, "graph", b"code")
    assert seal("graph", b"code") is None
    assert "the ledger is not sealed" in caplog.text


def test_without_a_place_for_the_key_nothing_is_sealed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHLEDGER_CACHE", str(tmp_path / "file" / "cache"))
    assert seal("graph", b"code") is None


def test_a_seal_covers_the_graph_its_launches_in_order_and_each_kernel() -> None:
    launches = [make_launch(kernel="k0", order=order) for order in range(2)]
    graph, kernel = sealed_graph(make_graph(), launches), sealed_kernel(make_kernel())
    assert seal_fault(graph, launches, [kernel]) is None
    assert "forward_0 carries no valid seal" in str(seal_fault(graph, launches[::-1], [kernel]))
    assert "forward_0 carries no valid seal" in str(seal_fault(graph, launches[:1], [kernel]))
    assert "a kernel of forward_0" in str(seal_fault(graph, launches, [kernel, replace(kernel, source="changed")]))


def test_a_seal_of_an_older_version_is_called_so() -> None:
    graph = make_graph(seal="0" * 64)
    assert "sealed by an older version" in str(seal_fault(graph, [], []))
