"""The docs agree with the code, and with what commands print."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from torchledger.cli import COMMANDS
from torchledger.reporting.columns import COLUMNS
from torchledger.store.schema import SCHEMA_VERSION, TABLES

DocsTable = Callable[[str, str, list[str]], None]

_ROOT = Path(__file__).parents[3]
_DOCS = _ROOT / "docs"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_a_page(name: str) -> None:
    assert (_DOCS / "commands" / f"{name}.md").read_text().startswith(f"# torchledger {name}\n")


def test_the_glossary_holds_every_column_as_it_is(docs_table: DocsTable) -> None:
    rows = ["| key | label | unit | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{column.key}` | {column.label} | {column.unit or ''} | {column.meaning} |" for column in COLUMNS.values()
    ]
    docs_table("glossary.md", "columns", rows)


def test_the_record_format_holds_every_table_as_it_is(docs_table: DocsTable) -> None:
    rows = ["| table | record | columns beside `body` |", "|---|---|---|"]
    rows += [
        f"| `{table.name}` | `{record_type.__name__}` | {', '.join(f'`{column}`' for column in table.columns)} |"
        for record_type, table in TABLES.items()
    ]
    docs_table("record-format.md", "tables", rows)


def test_the_history_of_the_format_reaches_the_present_version() -> None:
    assert f"\n| {SCHEMA_VERSION} | " in (_DOCS / "record-format.md").read_text()


@pytest.fixture
def docs_table(request: pytest.FixtureRequest) -> DocsTable:
    """Compare rows with those between two marks of a page; ``--rewrite-golden`` rewrites the page instead."""

    def compare(page: str, mark: str, rows: list[str]) -> None:
        path = _DOCS / page
        before, begin, rest = path.read_text().partition(f"<!-- {mark} -->\n")
        written, end, after = rest.partition(f"<!-- /{mark} -->")
        if request.config.getoption("--rewrite-golden"):
            written = "".join(f"{row}\n" for row in rows)
            path.write_text(before + begin + written + end + after)
        assert written.splitlines() == rows, f"docs/{page} is behind the code; `make golden` rewrites the table"

    return compare


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(_ROOT) for path in [*_ROOT.glob("*.md"), *_DOCS.rglob("*.md")]), ids=str
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (_ROOT / page).read_text()):
        if "://" not in target:
            assert ((_ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_every_capability_names_its_command_and_a_test_that_is_there() -> None:
    page = (_DOCS / "coming-from" / "capabilities.md").read_text()
    rows = [line.strip("|").split(" | ") for line in page.splitlines() if line.startswith("| ") and "`" in line]
    assert rows
    for capability, command, tests in rows:
        assert "`" in command, capability
        named = re.findall(r"`(\w+/[\w/]+\.py)::(\w+)`", tests)
        assert len(named) == tests.count("::") >= 1, capability
        for file, name in named:
            assert f"def {name}(" in (_ROOT / "tests" / file).read_text(), f"{capability}: {file} holds no {name}"


def test_the_site_reaches_every_page() -> None:
    index = (_DOCS / "index.md").read_text()
    entries = [line for block in re.findall(r"```{toctree}\n(.*?)```", index, re.S) for line in block.splitlines()]
    listed = {path for entry in entries if entry and ":" not in entry for path in _DOCS.glob(f"{entry}.md")}
    assert listed == {path for path in _DOCS.rglob("*.md") if "_build" not in path.parts} - {_DOCS / "index.md"}


@pytest.mark.parametrize(
    "page", sorted(path.relative_to(_ROOT) for path in [_ROOT / "README.md", *_DOCS.rglob("*.md")]), ids=str
)
def test_commands_in_the_docs_exist_with_their_options(page: Path) -> None:
    from torchledger.cli import cli

    text = (_ROOT / page).read_text().replace("\\\n", " ")
    transcripts = re.findall(r"^\$ (?:\w+=\S+ )*torchledger (.*)$", text, re.M)
    transcripts += re.findall(r"`torchledger ([a-z-]+ [^`\n]*)`", text)  # what is named in a sentence
    for transcript in transcripts:
        line = transcript.partition("#")[0] if " #" in transcript else transcript
        words = re.split(r"\s[|>]", line)[0].split()
        name = next((word for word in words if not word.startswith("-")), None)
        if name is None or name == ">":  # only options, or a shell's completion script
            continue
        assert name in COMMANDS, f"{page}: {transcript}"
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        if name in ("run", "plan", "values", "samples"):  # what follows their script or subcommand is not theirs
            continue
        if name == "plan":  # up to its script, or the module that -m names
            words = words[: next((k for k, word in enumerate(words) if word.endswith((".py", ".train"))), len(words))]
        options = [(*parameter.opts, *parameter.secondary_opts) for parameter in command.params]  # type: ignore[union-attr]
        known = {option for names in options for option in names} | {"--help"}
        used = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert used <= known, f"{page}: {transcript}: {used - known}"


def test_the_readme_begins_with_one_command_that_make_has() -> None:
    first = re.search(r"^\$ make (\w+)", (_ROOT / "README.md").read_text(), re.M)
    assert first is not None and first[1] == "demo"
    targets = re.findall(r"^([a-z-]+):.*## ", (_ROOT / "Makefile").read_text(), re.M)
    assert {"demo", "test", "docs"} <= set(targets)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_the_page_of_a_command_names_each_of_its_options(name: str) -> None:
    import click

    from torchledger.cli import cli

    command = cli.get_command(None, name)  # type: ignore[arg-type]
    parts = [command, *(command.commands.values() if isinstance(command, click.Group) else ())]
    text = (_DOCS / "commands" / f"{name}.md").read_text()
    everywhere = {"--json", "--force"}  # the quickstart tells them once
    for option in (each for part in parts for each in part.params if isinstance(each, click.Option)):  # type: ignore[union-attr]
        assert everywhere & set(option.opts) or any(each in text for each in (*option.opts, *option.secondary_opts))


@pytest.mark.parametrize("page", sorted((_DOCS / "results").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_of_results_names_its_day_its_software_and_the_command_that_redoes_it(page: Path) -> None:
    text = page.read_text()
    assert re.search(r"\b20\d\d-\d\d-\d\d", text)
    assert re.search(r"(torch|Python) \d", text)
    scripts = re.findall(r"\bbenchmarks[./]\w", text)  # that they are there: tests/unit/test_benchmarks.py
    assert scripts or re.search(r"\btorchledger (evaluate|fit|fit-constants|bench|import) ", text)
