"""``torchledger show`` at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from synthetic import write_ledger
from torchledger.cli import cli, main


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return write_ledger(tmp_path / "gpt.ledger", launches=30)


def _show(*arguments: object) -> Result:
    result = CliRunner().invoke(cli, ["show", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def _fail(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as caught:
        main(["show", *map(str, arguments)])
    captured = capsys.readouterr()
    assert captured.out == ""
    return int(caught.value.code or 0), captured.err


def test_the_overview_is_plain_text_in_a_pipe(ledger: Path) -> None:
    output = _show(ledger).output
    assert "Balance sheet" in output
    assert "\x1b" not in output


@pytest.mark.parametrize(
    "question",
    [(), ("forward_0#1",), ("--wrapper", "forward_0"), ("--guards", "forward_0")],
)
def test_json_goes_to_stdout_alone_and_parses(ledger: Path, question: tuple[str, ...]) -> None:
    assert isinstance(json.loads(_show(ledger, *question, "--json").stdout), dict)


def test_the_json_balance_has_launches_and_flops(ledger: Path) -> None:
    balance = json.loads(_show(ledger, "--json").stdout)["balance"]
    for name in ("launches", "flops"):
        assert balance[name]["ledger"] == balance[name]["reference"]
        assert balance[name]["missing"] == []


def test_the_wrapper_of_a_graph_can_be_piped_into_a_file(ledger: Path) -> None:
    assert compile(_show(ledger, "--wrapper", "forward_0").stdout, "wrapper.py", "exec")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no_such_kernel",), 2, "Near it: "),
        (("forward_0",), 2, "its launches are forward_0#0 to forward_0#"),
        (("forward_0#999",), 2, "those of forward_0 are forward_0#0 to forward_0#"),
        (("forward_7",), 2, "no graph 'forward_7'"),
        (("forward_7#1",), 2, "Near it: forward_0"),
        (("--wrapper", "no_such_graph"), 2, "Near it: forward_0"),
        (("forward_0#1", "--wrapper", "forward_0"), 2, "Ask one at a time"),
        (("--guards", "forward_0", "--wrapper", "forward_0"), 2, "Ask one at a time"),
        (("--guards", "no_such_graph"), 2, "Near it: forward_0"),
        (("--stage", "joint"), 2, "--stage is of one graph"),
        (("--stage", "joint", "no_such_graph"), 2, "Near it: forward_0"),
        (("--stage", "joint", "forward_0"), 1, "`torchledger run --stages SCRIPT` keeps it"),
        (("--stage", "joint", "forward_0", "--json"), 1, "the stage joint of forward_0 was not recorded"),
    ],
)
def test_a_wrong_question_is_one_clear_line(
    ledger: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    exit_code, error = _fail(capsys, ledger, *arguments)
    assert exit_code == code
    assert message in error


@pytest.mark.parametrize("content", [b"", b"not a ledger", b"SQLite format 3\x00" + b"\x00" * 50])
def test_a_file_that_is_no_ledger_is_one_clear_line_and_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "x.ledger"
    path.write_bytes(content)
    exit_code, error = _fail(capsys, path)
    assert exit_code == 1
    assert error.startswith("torchledger: ") and error.count("\n") == 1
    assert path.read_bytes() == content


def test_a_ledger_that_is_cut_off_is_one_clear_line(ledger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = ledger.read_bytes()
    ledger.write_bytes(content[: len(content) // 2])
    exit_code, error = _fail(capsys, ledger)
    assert exit_code == 1
    assert error.startswith("torchledger: ") and error.count("\n") == 1


def test_a_file_that_does_not_exist_says_how_to_record_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, error = _fail(capsys, tmp_path / "absent.ledger")
    assert exit_code == 1
    assert "torchledger run -o" in error


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("train.py", "torchledger run"),
        ("step.trace.json.gz", "torchledger import"),
        ("h200.tlmodel", "--device"),
        ("s.parquet", "torchledger samples show"),
        ("sweep.yml", "torchledger sample"),
    ],
)
def test_a_file_of_another_kind_is_told_with_the_command_that_takes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    (tmp_path / name).write_bytes(b"something else")
    exit_code, error = _fail(capsys, tmp_path / name)
    assert exit_code == 1
    assert command in error and "cut off" not in error


def test_a_kernel_before_its_ledger_and_a_second_ledger_are_put_right(
    ledger: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exit_code, error = _fail(capsys, "forward_0#1", ledger)
    assert exit_code == 2 and f"torchledger show {ledger} forward_0#1" in error
    exit_code, error = _fail(capsys, ledger, ledger)
    assert exit_code == 2 and f"torchledger diff {ledger} {ledger}" in error


def test_traces_that_are_no_ranks_are_not_called_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.trace.json").write_text('{"traceEvents": [{"ph": "X", "name": "f", "ts": 1, "dur": 2, "pid": 1}]}')
    exit_code, error = _fail(capsys, tmp_path)
    assert exit_code == 1 and "no job" in error and "torchledger import" in error
