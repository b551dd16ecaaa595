"""What holds for every command: a page and help, JSON on request, plain text in a pipe."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from factories import make_sample
from synthetic import write_ledger
from torchledger.cli import COMMANDS, cli
from torchledger.reporting.document import Document, Section, Table, columns
from torchledger.reporting.terminal import render
from torchledger.sampling.dataset import write_samples


def _commands() -> Iterator[tuple[str, click.Command]]:
    """Every command and subcommand with its words."""
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {part}", sub) for part, sub in command.commands.items())
        else:
            yield name, command


@pytest.mark.parametrize(("name", "command"), list(_commands()), ids=[name for name, _ in _commands()])
def test_every_command_prints_json_on_request_and_explains_its_options(name: str, command: click.Command) -> None:
    assert command.help
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert all(each.help or each.metavar for each in options if each.name != "engine_options"), name
    if name != "run":  # what it prints is the script's
        assert any("--json" in each.opts for each in options)


@pytest.mark.parametrize(("name", "command"), list(_commands()), ids=[name for name, _ in _commands()])
def test_the_help_of_every_command_ends_with_two_examples_whose_options_it_has(
    name: str, command: click.Command
) -> None:
    text = CliRunner().invoke(cli, [*name.split(), "--help"]).stdout
    head, *lines = text.rstrip().splitlines()[-3:]
    assert head.strip() == "Examples:"
    assert all(line.strip().startswith(f"$ torchledger {name}") for line in lines) and lines[0] != lines[1]
    known = {option for each in command.params for option in each.opts}
    words = [word for line in lines for word in shlex.split(line.partition(name)[2].partition("train.py")[0])]
    assert {word for word in words if word.startswith("-")} <= known


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    write_ledger(folder / "a.ledger")
    write_ledger(folder / "b.ledger", launches=90)
    write_samples(folder / "s.parquet", [make_sample(f"p{place}", 10.0 + place) for place in range(4)])
    return folder


_READING = (
    "show {0}/a.ledger",
    "show {0}/a.ledger forward_0#2",
    "show {0}/a.ledger --wrapper forward_0",
    "diff {0}/a.ledger {0}/b.ledger",
    "predict linear m=64 k=64 n=64 --device H200",
    "predict-step {0}/a.ledger --device H200",
    "samples show {0}/s.parquet",
    "samples check {0}/s.parquet",
)


@pytest.mark.parametrize("line", _READING)
def test_a_reading_command_is_plain_in_a_pipe_and_gives_json(line: str, files: Path) -> None:
    words = line.format(files).split()
    plain = CliRunner().invoke(cli, words)
    assert plain.exit_code in (0, 3), plain.output  # 3: done in part, or labels to doubt
    assert "\x1b" not in plain.stdout and "\r" not in plain.stdout
    machine = CliRunner().invoke(cli, [*words, "--json"])
    assert machine.exit_code == plain.exit_code
    json.loads(machine.stdout)


@pytest.mark.parametrize("line", ["report {0}/a.ledger -o {0}/x.html", "export {0}/a.ledger --format parquet -o {0}/t"])
def test_a_writing_command_names_what_it_wrote(line: str, files: Path) -> None:
    done = CliRunner().invoke(cli, [*line.format(files).split(), "--force", "--json"])
    assert done.exit_code == 0, done.output
    written = json.loads(done.stdout)["written"]
    assert all(Path(path).exists() for path in ([written] if isinstance(written, str) else written))


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_table_fits_the_terminal_it_is_drawn_for(width: int) -> None:
    keys = ("kernel_name", "category", "launches", "flops", "bytes_moved", "source")
    row = ("triton_poi_fused_add_native_layer_norm_3", "pointwise", 12, 10**9, 10**7, "transformers/models/gpt2.py:120")
    text = render(
        Document((Section("t", (Table(columns(*keys), (row,) * 3, optional=("source", "category")),)),)), width=width
    )
    assert max(len(line) for line in text.splitlines()) <= width


def test_the_shell_completes_commands_options_and_their_values() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli, {}, "torchledger", "_TORCHLEDGER_COMPLETE")
    assert {each.value for each in complete.get_completions([], "pre")} == {"predict", "predict-step"}
    assert "--predict" in {each.value for each in complete.get_completions(["report"], "--")}
    assert {each.value for each in complete.get_completions(["export", "--format"], "")} >= {"parquet", "chrome"}
    assert {each.value for each in complete.get_completions(["samples"], "c")} == {"check", "compact"}
