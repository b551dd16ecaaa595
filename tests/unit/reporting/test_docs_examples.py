"""The examples of the docs do what they say: transcripts are run on recorded files, Python blocks are executed."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner

from torchledger.cli import cli
from torchledger.nouns import Sample, Stage
from torchledger.sampling.dataset import read_samples, write_samples
from torchledger.sampling.points import Plan, Point, save_plan
from torchledger.store.ledger import LedgerWriter

_ROOT = Path(__file__).parents[3]
_DATA = _ROOT / "tests" / "data" / "h200"
_PAGES = sorted([_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md")])

_NOT_RUN = {
    "run": "runs a script for a minute: test_quickstart.py and the tests of capturing do",
    "values": "runs a script: tests/unit/cli/test_values_command.py",
    "bench": "runs kernels: tests/unit/replaying/test_bench.py",
    "doctor": "measures for seconds: tests/unit/device/test_ceilings.py",
    "sample": "measures: tests/unit/sampling",
    "calibrate": "measures for minutes: tests/unit/calibrating",
    "plan": "runs a script: tests/unit/planning/test_dry_run.py",
    "fit": "learns for seconds to minutes: tests/unit/fitting",
    "evaluate": "likewise",
    "fit-constants": "likewise",
    "extract": "the recorded ledgers carry no seal of this user: tests/unit/replaying/test_bench.py",
    "export gpt.ledger --format step": "the recorded ledgers hold no step: tests/unit/stepping/test_step_export.py",
    "export gpt.ledger -o step.trace.json": "likewise",
    "diff --values": "the recorded ledgers hold no values: tests/unit/cli/test_values_command.py",
    "diff old.job": "there is no recorded job: tests/unit/jobs/test_diff.py",
    "export j.job": "likewise: tests/unit/jobs/test_export.py",
    "import report.sqlite": "reports are made by the tests: tests/unit/traces/test_nsight.py",
}
_HERE = {  # what the recorded model calls what the docs name
    "fused_gelu": "fused_gelu_view_2",
    "triton_poi_fused_add_mul_3": "triton_poi_fused_gelu_view_2",
}
_PLACEHOLDERS = re.compile(r"\b(FILE|TRACE|SWEEP|DATA|FOLDER|OLD|NEW|A B|KERNEL|PATH|MODEL)\b|\.\.\.")


def _transcripts() -> Iterator[tuple[str, str]]:
    """(page, command line) of every ``$ torchledger`` in the docs, each command once."""
    seen = set()
    for page, line in _lines():
        command = shlex.join(_words_of_first_command(line))
        name = command.split()[0]
        is_run = not any(command == each or command.startswith(f"{each} ") for each in _NOT_RUN)
        if not is_run or name.startswith("-") or command in seen or _PLACEHOLDERS.search(command):
            continue
        seen.add(command)
        yield str(page.relative_to(_ROOT)), command


def _lines() -> Iterator[tuple[Path, str]]:
    """Every page with each of its ``$ torchledger`` lines, without those words."""
    for page in _PAGES:
        for line in re.findall(r"^\$ torchledger (.*)$", page.read_text().replace("\\\n", " "), re.M):
            yield page, line


def _words_of_first_command(line: str) -> list[str]:
    """The words that a shell gives to the first command of a line: up to a comment, a pipe, a list or a redirection."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""  # a comment begins where a word does, not in forward_0#12
    words: list[str] = []
    for word in lexer:
        if word.startswith("#") or (word and not set(word) - set("|&;<>")):
            break
        words.append(word)
    return words


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each that the docs name."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("gpt", "block", "my", "before", "after", "old", "new", "run", "train", "main", "branch", "plan"):
        shutil.copy(_DATA / "gpt_block_torch2.11_cu130.ledger.sqlite", folder / f"{name}.ledger")
    with LedgerWriter(folder / "gpt.ledger", append=True) as kept:  # recorded as with --stages
        kept.add(Stage("forward_0", "joint", "graph"))
    for name in ("trace", "rank0", "rank1"):
        shutil.copy(_DATA / "gpt_block_torch2.11_cu130.trace.json.gz", folder / f"{name}.json.gz")
    # Where the ledger says that its own trace is.
    shutil.copy(_DATA / "gpt_block_torch2.11_cu130.trace.json.gz", folder / "zoo_gpt_block.profile.trace.json.gz")
    for name in ("h200", "my", "mine", "quick"):
        shutil.copy(_ROOT / "src/torchledger/predicting/models/NVIDIA_H200.tlmodel", folder / f"{name}.tlmodel")
    samples = _gelu_samples()
    for name in ("sweep", "part1", "part2", "a", "b"):
        points = tuple(Point(sample.operator, sample.parameters, sample.dtype) for sample in samples)
        (folder / f"{name}.samples").mkdir()
        save_plan(Plan(points), folder / f"{name}.samples")
        write_samples(folder / f"{name}.samples" / "samples.parquet", samples)
    write_samples(folder / "all.parquet", samples)
    (sheet,) = re.findall(r"^```yaml\n(names:.*?)^```", (_ROOT / "docs/commands/devices.md").read_text(), re.S | re.M)
    (folder / "l40.yml").write_text(sheet)
    return folder


def _gelu_samples() -> list[Sample]:
    path = _ROOT / "data" / "h200" / "operators_torch2.11.parquet"
    return [each for each in read_samples(path) if each.operator == "guide.gelu" and each.dtype == "float16"]


@pytest.mark.parametrize(("page", "line"), [pytest.param(*each, id=each[1]) for each in _transcripts()])
def test_a_transcript_of_the_docs_runs(
    page: str, line: str, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in examples.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    if "-o" in (words := shlex.split(line)):
        (tmp_path / words[words.index("-o") + 1]).unlink(missing_ok=True)
    words = [_HERE.get(word, word) for word in words]
    words = [name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    done = CliRunner().invoke(cli, words)
    # 3: done in part, such as a set whose gates doubt some labels, which the page says.
    assert done.exit_code in (0, 3), f"{page}: {line}: {done.output} {done.exception!r}"


def test_every_command_line_of_the_docs_has_what_the_command_asks_for() -> None:
    """Those that are not run, too: no option that there is not, none missing, no word too many."""
    wrong = []
    for page, line in _lines():
        name, *words = _words_of_first_command(line)
        if name.startswith("-"):
            continue
        try:
            with cli.make_context("torchledger", [name, *words]) as context:
                _, command, rest = cli.resolve_command(context, [name, *words])
                while isinstance(command, click.Group):
                    _, command, rest = command.resolve_command(context, rest)
                assert command is not None
                command.make_context(name, rest, parent=context)
        except click.ClickException as error:
            wrong.append(f"{page.relative_to(_ROOT)}: {line}: {error.format_message()}")
    assert not wrong, "\n".join(wrong)


_BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{place}")
    for page in _PAGES
    for place, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M))
    if "Predictor()" not in block  # trained from the guide's files: tests/unit/predicting/test_guide_predictor.py
]


@pytest.mark.parametrize("block", _BLOCKS)
def test_a_python_block_of_the_docs_runs(
    block: str, examples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in examples.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # a fit starts no further processes, which begin with its imports
    for written in re.findall(r'(?:capture|values|save_model|plan)\(.*?"([\w.]+)"', block):
        (tmp_path / written).unlink(missing_ok=True)
    sizes = [64, 128]
    namespace: dict[str, Any] = {
        "train": lambda: None,
        "make_model": lambda: torch.nn.Linear(64, 8).cuda(),
        "train_step": lambda model: model(torch.ones(16, 64, device="cuda")).sum().backward(),
        "train_one_step": lambda: None,
        **dict.fromkeys(("ms", "ks", "ns"), sizes),
        "samples": _gelu_samples() if "samples" in block and "fit(" in block else [],
    }
    exec(compile(block, "docs", "exec"), namespace)
