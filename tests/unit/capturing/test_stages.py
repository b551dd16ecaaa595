"""What a graph looked like on its way to kernels is kept where that was asked for, and harms nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import torchledger
from captured import Captured, read
from torchledger.capturing import process, recorder, stages
from torchledger.capturing.process import RunOutcome
from torchledger.capturing.session import Capture
from torchledger.cli import cli
from torchledger.nouns import Stage, StageName
from torchledger.reporting.story import read_stage
from torchledger.store import open_ledger


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.project(x)).softmax(-1)


def _capture(path: Path, *, keeps_stages: bool) -> Captured:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torchledger.capture(path, stages=keeps_stages):
        torch.compile(Block())(torch.ones(4, 8)).sum().backward()
    return read(path)


def _stage(path: Path, graph: str, name: StageName) -> str:
    with open_ledger(path) as ledger:
        (found,) = [each for each in read(path).graphs if each.name == graph]
        stage = read_stage(ledger, found, name)
    return stage.text


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages") / "a.ledger"
    _capture(path, keeps_stages=True)
    return path


def test_stages_are_kept_on_request_and_found_again_in_the_cache(kept: Path, tmp_path: Path) -> None:
    plain = _capture(tmp_path / "plain.ledger", keeps_stages=False)
    again = _capture(tmp_path / "again.ledger", keeps_stages=True)
    assert all(graph.cache_hit for graph in again.graphs)
    assert plain.launches == again.launches == read(kept).launches
    with open_ledger(plain.path) as first, open_ledger(kept) as second, open_ledger(again.path) as third:
        assert first.read(Stage) == []
        assert second.read(Stage) == third.read(Stage)
        assert [(stage.graph, stage.stage) for stage in second.read(Stage)] == [
            ("forward_0", "pre-grad"),
            ("forward_0", "joint"),
            ("forward_0", "ir-before-fusion"),
            ("forward_0", "ir-after-fusion"),
            ("backward_0", "ir-before-fusion"),
            ("backward_0", "ir-after-fusion"),
        ]


def test_each_stage_is_written_in_its_own_terms(kept: Path) -> None:
    assert "torch._C._nn.gelu(" in _stage(kept, "forward_0", "pre-grad")
    joint = _stage(kept, "forward_0", "joint")
    assert "torch.ops.aten.erf.default" in joint and "tangents_1" in joint
    assert _stage(kept, "backward_0", "joint") == joint
    lowered = _stage(kept, "forward_0", "post-grad")
    assert "torch.ops.aten.addmm.default" in lowered and "tangents_1" not in lowered
    assert "extern_kernels.addmm" in _stage(kept, "forward_0", "ir-before-fusion")


def test_fusion_leaves_fewer_nodes_which_do_the_same(kept: Path) -> None:
    def nodes(name: StageName) -> list[set[str]]:
        """The names of what each node is made of, without those that stand again as parts of others."""
        named = re.findall(r"^(op\w+): \w*SchedulerNode\(", _stage(kept, "forward_0", name), re.MULTILINE)
        made_of = [set(each.split("_")) for each in named]
        return [each for each in made_of if not any(each < other for other in made_of)]

    before, after = nodes("ir-before-fusion"), nodes("ir-after-fusion")
    assert set().union(*before) == set().union(*after)
    assert len(before) == sum(map(len, after)) > len(after) == len(read(kept).graphs[0].wrapper_calls)


def test_a_stage_that_cannot_be_written_is_told_and_no_launch_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(graph_module: object) -> str:
        raise RuntimeError("cannot be printed")

    monkeypatch.setattr(recorder, "graph_text", torn)
    with torchledger.capture(tmp_path / "a.ledger", stages=True):
        torch._dynamo.reset()
        torch.compile(lambda x: (x * 3).relu())(torch.ones(4, 8))
    captured = read(tmp_path / "a.ledger")
    assert {(gap.account, gap.where) for gap in captured.gaps} == {("run", "stage pre-grad"), ("run", "stage joint")}
    assert captured.wrapper_calls == len(captured.calls) == 1
    with open_ledger(captured.path) as ledger:
        assert [stage.stage for stage in ledger.read(Stage)] == ["ir-before-fusion", "ir-after-fusion"]


def test_the_command_asks_the_process_that_runs_the_script_for_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        process, "run_script", lambda *_, attached, **__: asked.append(attached) or RunOutcome(0, tmp_path / "a.ledger")
    )
    for options in (["--stages"], []):
        CliRunner().invoke(cli, ["run", *options, "a.py"], catch_exceptions=False)
    assert asked == [{"torchledger.capturing.stages": {}}, {}]
    with Capture(tmp_path / "a.ledger") as capture:
        stages.attach(capture, {})
        assert capture.keeps_stages


def test_the_command_prints_a_stage_or_says_how_to_record_it(kept: Path, tmp_path: Path) -> None:
    def show(path: Path, *arguments: str) -> str:
        return CliRunner().invoke(cli, ["show", str(path), *arguments]).output

    assert "torch.ops.aten.erf.default" in show(kept, "--stage", "joint", "backward_0")
    assert '"of": "forward_0"' in show(kept, "--stage", "joint", "backward_0", "--json")
    plain = tmp_path / "plain.ledger"
    _capture(plain, keeps_stages=False)
    missed = CliRunner().invoke(cli, ["show", str(plain), "--stage", "joint", "forward_0"])
    assert missed.exit_code == 1 and "torchledger run --stages" in str(missed.exception)
    assert "torch.ops.aten.addmm.default" in show(plain, "--stage", "post-grad", "forward_0")
