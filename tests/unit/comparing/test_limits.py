"""Limits on what may change: for a pull request."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from factories import make_environment
from synthetic import write_ledger
from torchledger.answers import check
from torchledger.cli import cli
from torchledger.comparing.limits import Quantity, check_limits, parse_limit
from torchledger.errors import UsageError
from torchledger.nouns import LaunchGroup, RunDiff
from torchledger.nouns.run_diff import DiffSide
from torchledger.reporting.document import Document, Section, Sentence, Table, columns
from torchledger.reporting.markdown import escape, render_markdown
from torchledger.reporting.run_diff import change_sentences


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("limits")
    environment = make_environment(torch="2.12.0", triton="3.6.0", cuda="13.0")
    write_ledger(folder / "main.ledger", launches=60)
    write_ledger(folder / "branch.ledger", launches=66, environment=environment)
    return str(folder / "main.ledger"), str(folder / "branch.ledger")


def _diff(ledgers: tuple[str, str], *words: str) -> Result:
    return CliRunner().invoke(cli, ["diff", *ledgers, *words])


@pytest.mark.parametrize(
    ("limit", "first", "second", "holds"),
    [
        ("launches > +0", 51, 51, True),
        ("launches > +0", 51, 52, False),
        ("launches > +0", 51, 50, True),
        ("launches>=1", 51, 52, False),
        ("bytes > +2%", 1000, 1020, True),
        ("bytes > +2%", 1000, 1021, False),
        ("bytes > +2 %", 0, 1, False),
        ("bytes > +2%", 0, 0, True),
        ("time < -10%", 100, 80, False),
        ("bytes > +2%", 1000, None, None),
    ],
)
def test_a_limit_holds_unless_the_change_is_beyond_it(
    limit: str, first: float, second: float | None, holds: bool | None
) -> None:
    asked = parse_limit(limit)
    (verdict,) = check_limits([asked], {asked.name: Quantity(asked.name, first, second)})
    assert verdict.holds is holds


@pytest.mark.parametrize("text", ["launches", "launches > lots", "speed > +1", "bytes = 3", "bytes > +2% or so"])
def test_what_is_no_limit_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="'bytes > \\+2%'"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Launches > 0", "no quantity 'Launches'. Did you mean launches?"),
        ("speed > +1", "no quantity 'speed'. There are launches, bytes"),
        ("> +1", "it names no quantity"),
        ("launches == 0", "behind launches comes >, >=, < or <=, not '=='"),
        ("launches", "behind launches comes >, >=, < or <=. "),
        ("launches > ", "a change is missing behind >"),
        ("time > +3us", "'+3us' is no change: a number of us, without its unit, or of percent with %"),
        ("launches > +0; bytes > +1%", "'+0; bytes > +1%' is no change"),
    ],
)
def test_what_is_wrong_with_a_limit_is_named(text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_limit(text)
    assert said in str(refused.value)


def test_a_large_limit_may_be_written_with_an_exponent() -> None:
    assert parse_limit("bytes > +1e6").value == 1e6


def test_a_broken_limit_ends_the_command_with_three_and_an_unbroken_one_with_zero(ledgers: tuple[str, str]) -> None:
    broken = _diff(ledgers, "--fail-if", "launches > +0", "--fail-if", "bytes > +50%")
    assert broken.exit_code == 3
    said = " ".join(broken.stdout.split())
    assert "Failed: launches 60 -> 66 (+6, +10.00 %); the limit 'launches > +0' does not allow it." in said
    assert "`torchledger diff` without a limit lists every change" in said
    assert said.index("Failed: ") < said.index("Passed: bytes ") < said.index("the limit 'bytes > +50%' allows it.")
    assert _diff(ledgers, "--fail-if", "launches > +6").exit_code == 0
    same = _diff((ledgers[0], ledgers[0]), "--fail-if", "launches > +0", "--fail-if", "predicted > +3%")
    assert (same.exit_code, same.stdout.count("Passed: "), "Failed" in same.stdout) == (0, 2, False)


def test_a_limit_on_what_is_not_known_does_not_pass(ledgers: tuple[str, str]) -> None:
    untimed = _diff(ledgers, "--fail-if", "time > +3%")
    assert untimed.exit_code == 3
    said = " ".join(untimed.stdout.split())
    assert f"Failed: time is not known of {ledgers[0]} and {ledgers[1]}, so that 'time > +3%'" in said
    assert "`torchledger run --profile SCRIPT` times a step" in said


def test_a_limit_that_cannot_be_read_ends_the_command_with_two(ledgers: tuple[str, str]) -> None:
    with pytest.raises(UsageError):
        CliRunner().invoke(cli, ["diff", *ledgers, "--fail-if", "x"], catch_exceptions=False)
    assert UsageError.exit_code == 2


def test_the_summary_in_markdown_names_failures_then_settings_then_sums(ledgers: tuple[str, str]) -> None:
    text = _diff(ledgers, "--fail-if", "launches > +0", "--markdown").stdout
    places = [
        text.index(part) for part in ("**Failed: launches", "torch: 2.11.0 -", "| quantity |", "### What changed")
    ]
    assert places == sorted(places)
    assert "| launches | 60 | 66 | +6 | +10.00 % |" in text


@pytest.mark.parametrize("words", [(), ("--fail-if", "launches > +0", "--markdown")])
def test_lines_are_named_from_the_working_folder_on(
    ledgers: tuple[str, str], words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "made for /home/user/model.py:" in _diff(ledgers, *words).stdout
    monkeypatch.setattr("os.getcwd", lambda: "/home/user")
    text = _diff(ledgers, *words).stdout
    assert "made for model.py:" in text and "/home/user/model.py" not in text


def test_changes_that_read_the_same_are_told_once_with_their_number() -> None:
    side, none = DiffSide(launches=("f#0",), kernels=("k",), bytes_moved=8), DiffSide(bytes_moved=0)
    alike = LaunchGroup("only second", none, side)
    diff = RunDiff("bytes", (alike, LaunchGroup("only first", side, none), alike))
    told = change_sentences(diff)
    assert sorted(count for _, count in told) == [1, 2]
    assert sum(text.startswith("2 times: k is only in the second run") for text, _ in told) == 1


def test_names_in_markdown_are_no_markup() -> None:
    assert escape("a_b | <img> @team `x`") == r"a\_b \| &lt;img> &#64;team \`x\`"
    table = Table(columns("kernel_name", "launches"), (("a|b", 3), ("c\nd", None)))
    text = render_markdown(Document((Section("T", (table, Sentence("no", "bad"))),)))
    assert text.splitlines()[2:6] == ["| kernel | launches |", "| --- | ---: |", r"| a\|b | 3 |", "| c\\\\nd | ? |"]
    assert text.endswith("**no**\n")


def test_json_holds_sums_and_verdicts(ledgers: tuple[str, str]) -> None:
    shown = json.loads(_diff(ledgers, "--fail-if", "launches > +0", "--json").stdout)
    assert shown["quantities"]["launches"] == {"name": "launches", "first": 60, "second": 66}
    assert [each["holds"] for each in shown["limits"]] == [False]


def test_python_checks_as_the_command_does(ledgers: tuple[str, str]) -> None:
    checked = check(*ledgers, ["launches > +0", "graphs > +0"])
    assert [each.limit.text for each in checked.failed] == ["launches > +0"]


def test_rows_of_a_comparison_tell_their_launch_and_shape_apart(ledgers: tuple[str, str]) -> None:
    text = _diff(ledgers).stdout
    table = text.partition("Launches by what they compute")[2]
    heads = table.splitlines()[1].split("  ")
    assert {"launch", "shape", "source line"} <= {head.strip() for head in heads}
    rows = [line for line in table.splitlines() if "forward_0#" in line or "backward_0#" in line]
    assert len(rows) == len(set(rows)) >= 6
