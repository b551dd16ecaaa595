"""What AOTInductor compiles: entries as for any graph, and a package that recording leaves as it is."""

from __future__ import annotations

import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from captured import Captured, read
from torchledger._torch import packages
from torchledger._torch.patching import Patches
from torchledger.capturing import recorder
from torchledger.capturing.graph_breaks import absent_graphs_note
from torchledger.capturing.session import Capture
from torchledger.nouns import WatchedGraph
from torchledger.profiling.profile import KernelVisibility
from torchledger.replaying.sizes import CannotReplay
from torchledger.replaying.wrapper_text import read_wrapper
from torchledger.reporting.remarks import remarks
from torchledger.reporting.summary import summarize_ledger
from torchledger.store import open_ledger
from torchledger.watching.options import ValueOptions
from torchledger.watching.session import Watch


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.first(x).relu(), -1)


def compile_ahead_of_time(package: Path) -> None:
    """Export a model and package its generated code, without the library: that takes a compiler half a minute."""
    with torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            torch.export.export(Classifier().eval(), (torch.ones(4, 8),)),
            package_path=str(package),
            inductor_configs={"aot_inductor.package_cpp_only": True},
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the ledger of a program that compiles ahead of time, watched as by ``values`` and by a profile."""
    folder = tmp_path_factory.mktemp("ahead")
    with Capture(folder / "a.ledger") as capture:
        capture.watch(Watch(capture, ValueOptions()))
        capture.watch(KernelVisibility())
        compile_ahead_of_time(folder / "a.pt2")
    return folder


@pytest.fixture(scope="module")
def captured(folder: Path) -> Iterator[Captured]:
    yield read(folder / "a.ledger")


def test_a_graph_that_is_compiled_ahead_of_time_has_entries_that_balance(folder: Path, captured: Captured) -> None:
    (graph,) = captured.graphs
    assert graph.is_ahead_of_time and graph.wrapper_language == "cpp"
    assert len(captured.calls) == captured.wrapper_calls == 2
    assert captured.flops == captured.reference_flops == 2 * 4 * 8 * 16
    with open_ledger(folder / "a.ledger") as reader:
        accounts = summarize_ledger(reader).balance.accounts
    assert [accounts[name].is_balanced for name in ("launches", "flops", "sources")] == [True, True, True]


def test_its_kernels_have_the_users_lines_and_not_those_of_torchs_modules(captured: Captured) -> None:
    lines = {(Path(source.file).name, source.function) for launch in captured.calls for source in launch.sources}
    assert lines == {(Path(__file__).name, "forward")}
    assert {kernel.backend for kernel in captured.kernels if kernel.source} == {"cpp"}


def test_the_package_holds_the_code_that_it_holds_without_a_recording(folder: Path) -> None:
    compile_ahead_of_time(folder / "plain.pt2")
    assert _code(folder / "a.pt2") == _code(folder / "plain.pt2") != {}


def _code(package: Path) -> dict[str, str]:
    with zipfile.ZipFile(package) as packed:
        names = [name for name in packed.namelist() if name.endswith("wrapper.cpp")]
        return {Path(name).name: packed.read(name).decode().split("// Compile cmd")[0] for name in names}


def test_values_and_bench_say_what_a_library_is_and_what_is_watched_instead(folder: Path, captured: Captured) -> None:
    with open_ledger(folder / "a.ledger") as reader:
        (watched,) = reader.read(WatchedGraph)
        said = remarks(summarize_ledger(reader))
        assert reader.run().values_lack == ("not watched",)
    assert (watched.launches, watched.watched) == (2, 0)
    assert "torch.compile(exported_program.module())" in (watched.note or "")
    with pytest.raises(CannotReplay, match="compiled ahead of time"):
        read_wrapper(captured.graphs[0])
    assert any(each.startswith("Compiled ahead of time (AOTInductor): inference_0.") for each in said)


def test_a_library_whose_description_fails_is_missing_and_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder.Recorder, "_payload", lambda *_: 1 / 0)
    with Capture(tmp_path / "a.ledger"):
        compile_ahead_of_time(tmp_path / "a.pt2")
    captured = read(tmp_path / "a.ledger")
    assert {gap.amount for gap in captured.gaps} == {None, 2}
    assert any("ZeroDivisionError" in gap.reason for gap in captured.gaps)


def test_a_package_that_is_loaded_is_what_an_empty_ledger_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class AOTICompiledModel:
        pass

    loaded = SimpleNamespace(AOTICompiledModel=AOTICompiledModel, model=AOTICompiledModel())
    monkeypatch.setitem(sys.modules, "torch._inductor.package.package", loaded)
    assert "are entries of the program that compiles it" in (absent_graphs_note(Counter()) or "")


def test_a_packages_calls_are_marked_while_a_profile_records_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    class Model:
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    monkeypatch.setitem(sys.modules, packages.PACKAGES, SimpleNamespace(AOTICompiledModel=Model))
    patches: Patches = packages.mark_package_calls("a package")
    names: list[Any] = []
    for _ in range(2):
        with torch.profiler.profile() as profile:
            Model()(torch.ones(2))
        names.append({event.name for event in profile.events() or ()})
        patches.undo()
    assert ["a package" in each for each in names] == [True, False]
    assert torch.equal(Model()(torch.ones(2)), torch.full((2,), 2.0))
