"""The run file: whole after a kill, readable while written, refused when it is something else."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from factories import make_graph, make_launch, make_run
from torchledger.errors import StoreError
from torchledger.nouns import Gap, Graph, Launch, Run
from torchledger.store import LedgerWriter, ledger, open_ledger
from torchledger.store.ledger import ledger_in_place


def test_what_was_added_is_read_back_in_order(tmp_path: Path) -> None:
    launches = [make_launch(order=order) for order in range(5)]
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), *launches)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert ledger.run() == make_run()
        assert ledger.read(Launch) == launches
        assert ledger.columns(Launch, "order", "bytes_written") == [(order, 8192) for order in range(5)]


def test_what_could_not_be_read_back_is_a_gap_in_its_place(tmp_path: Path) -> None:
    sound, unsound = make_launch(order=0), make_launch(order=1, kernel_name=None)
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), sound, unsound, None)
        with pytest.raises(StoreError, match="a Run of ours cannot be written: field `notes"):
            writer.add(make_run(notes=(None,)), replace=True)
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert ledger.run() == make_run() and ledger.read(Launch) == [sound]
        assert [gap.where for gap in ledger.read(Gap)] == ["Launch", "NoneType"]


def test_a_ledger_is_one_file_that_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run())
        with open_ledger(tmp_path / "a.ledger") as ledger:
            assert ledger.read(Run) == [make_run()]
            writer.add(make_graph())
            assert ledger.read(Graph) == [make_graph()]
        assert [path.name for path in tmp_path.iterdir()] == ["a.ledger"]


def test_a_killed_writer_leaves_whole_what_it_had_finished(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    script = (
        "import itertools, sys\n"
        "from factories import make_launch, make_run\n"
        "from torchledger.store import LedgerWriter\n"
        f"writer = LedgerWriter({str(path)!r})\n"
        "writer.add(make_run())\n"
        "for order in itertools.count():\n"
        "    writer.add(*[make_launch(graph=f'forward_{order}', order=i) for i in range(50)])\n"
        "    print(order, flush=True)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["tests", "src"])}
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    for _ in range(20):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open_ledger(path) as ledger:
        launches = ledger.read(Launch)
    assert len(launches) % 50 == 0
    assert len(launches) >= 50 * (last + 1)


def test_an_existing_ledger_needs_force_and_is_left_alone_without_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with LedgerWriter(path) as writer:
        writer.add(make_run())
    with pytest.raises(StoreError, match="--force"):
        LedgerWriter(path)
    with open_ledger(path) as ledger:
        assert ledger.read(Run) == [make_run()]
    with LedgerWriter(path, force=True), open_ledger(path) as ledger:
        assert ledger.read(Run) == []


def test_force_never_replaces_a_file_that_is_not_a_ledger(tmp_path: Path) -> None:
    path = tmp_path / "thesis.txt"
    path.write_text("years of work")
    with pytest.raises(StoreError, match="not a ledger"):
        LedgerWriter(path, force=True)
    assert path.read_text() == "years of work"


def test_an_empty_file_that_keeps_a_place_becomes_the_ledger_and_is_never_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "rank1.ledger"
    path.touch()
    with pytest.raises(StoreError, match="exists"):
        LedgerWriter(path)
    with LedgerWriter(path, force=True) as writer:
        writer.add(make_run())
    with open_ledger(path) as ledger:
        assert ledger.run() == make_run()


@pytest.mark.parametrize("content", [b"", b"hello", b"SQLite format 3\0" + b"\0" * 50])
def test_a_file_that_is_no_ledger_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.ledger"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.ledger") as refusal:
        open_ledger(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty, and no ledger. Record one"), (b"hello", "is not a ledger. Record one with `torchledger run")],
)
def test_a_file_that_is_no_ledger_says_how_to_record_one(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.ledger").write_bytes(content)
    with pytest.raises(StoreError, match=said):
        open_ledger(tmp_path / "a.ledger")


def test_a_ledger_that_is_cut_off_says_so_and_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *[make_launch(order=order) for order in range(500)])
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(StoreError, match=r"a\.ledger is cut off, or damaged .*Record it again"):
        open_ledger(path)
    with pytest.raises(StoreError, match="It is not replaced: choose another name, or remove it"):
        LedgerWriter(path, force=True)


def test_a_truncated_ledger_is_one_line_and_not_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *[make_launch(order=order) for order in range(500)])
    path.write_bytes(path.read_bytes()[:40_000])
    with pytest.raises(StoreError, match=r"damaged|cut off"), open_ledger(path) as ledger:
        ledger.read(Launch)


def test_a_ledger_of_a_newer_format_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    LedgerWriter(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="format 99"):
        open_ledger(path)


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent"):
        LedgerWriter(tmp_path / "absent" / "a.ledger")


def test_what_hinders_a_ledger_in_place_is_told_without_the_folder_that_it_is_made_in(tmp_path: Path) -> None:
    path = tmp_path / "absent" / "a.ledger"
    with (
        pytest.raises(StoreError, match=r"a\.ledger: No such file or directory\. Check") as raised,
        ledger_in_place(path, force=False),
    ):
        pass
    assert ".torchledger-" not in str(raised.value)


def write_small_ledger(path: Path) -> Path:
    with LedgerWriter(path) as writer:
        writer.add(make_run(), make_graph(), *[make_launch(order=order) for order in range(200)])
    return path


def change(path: Path, statement: str, *parameters: object) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute(statement, parameters)
    connection.close()


@pytest.mark.parametrize("body", ["", 3, b"\xff\xfe", "{", '{"graph": 1}', '{"order": "first"}'])
def test_a_record_that_is_none_is_named_by_file_table_and_place(tmp_path: Path, body: object) -> None:
    path = write_small_ledger(tmp_path / "a.ledger")
    change(path, "UPDATE launches SET body = ? WHERE rowid = 7", body)
    with open_ledger(path) as ledger, pytest.raises(StoreError, match=r"a\.ledger is damaged: record 7 of launches, "):
        ledger.read(Launch)


def test_a_column_is_checked_against_the_field_that_it_holds(tmp_path: Path) -> None:
    path = write_small_ledger(tmp_path / "a.ledger")
    change(path, 'UPDATE launches SET "order" = ? WHERE rowid = 7', "seventh")
    with open_ledger(path) as ledger, pytest.raises(StoreError, match="columns graph, order of launches"):
        ledger.columns(Launch, "graph", "order")


def test_pages_that_are_named_many_times_do_not_make_a_table_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchledger.store.bounded._STEPS_PER_BYTE", 1)
    monkeypatch.setattr("torchledger.store.bounded._STEPS_AT_LEAST", 1_000)
    monkeypatch.setattr("torchledger.store.bounded._STEPS_BETWEEN_CHECKS", 100)
    path = tmp_path / "a.ledger"
    with LedgerWriter(path) as writer:
        writer.add(make_run(), *[make_launch(order=order) for order in range(20_000)])
    change(path, "DROP INDEX launches_key")
    connection = sqlite3.connect(path)
    ((root,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'launches'")
    ((page_bytes,),) = connection.execute("PRAGMA page_size")
    connection.close()
    content = bytearray(path.read_bytes())

    def pointers(page: int) -> list[int]:
        """Where a page of the tree names its children."""
        start = (page - 1) * page_bytes
        cells = range(int.from_bytes(content[start + 3 : start + 5], "big"))
        places = [start + 12 + 2 * cell for cell in cells]
        return [start + 8, *(start + int.from_bytes(content[place : place + 2], "big") for place in places)]

    inner = [int.from_bytes(content[place : place + 4], "big") for place in pointers(root)]
    for page, child in zip((root, *inner[:-1]), inner, strict=True):
        for place in pointers(page):
            content[place : place + 4] = child.to_bytes(4, "big")
    path.write_bytes(content)
    with open_ledger(path) as ledger:
        with pytest.raises(StoreError, match="damaged"):
            ledger.read(Launch)
        with pytest.raises(StoreError, match="damaged"):
            ledger.count(Launch)
        with pytest.raises(StoreError, match="damaged"):
            ledger.read(Launch, graph="none")


@pytest.mark.parametrize("at", ["link", "tables"])
def test_a_writer_that_is_ended_while_it_begins_leaves_no_file_that_cannot_be_read(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: object) -> None:
        assert not (tmp_path / "a.ledger").exists()
        raise KeyboardInterrupt

    where = (os, "link") if at == "link" else (ledger, "create_statements")
    monkeypatch.setattr(*where, ended)
    with pytest.raises(KeyboardInterrupt):
        LedgerWriter(tmp_path / "a.ledger")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_links_has_its_ledgers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    LedgerWriter(tmp_path / "a.ledger").close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.ledger"]
    open_ledger(tmp_path / "a.ledger").close()


def test_a_file_that_another_run_has_begun_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def late(source: Path, target: Path) -> None:
        target.write_text("another's")
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(StoreError, match=r"a\.ledger"):
        LedgerWriter(tmp_path / "a.ledger")
    assert (tmp_path / "a.ledger").read_text() == "another's"


def test_a_ledger_takes_its_place_when_it_is_done_and_leaves_what_was_there_where_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with ledger_in_place(path, force=False) as made:
        LedgerWriter(made).close()
        assert not path.exists() and made.name == path.name
    earlier = path.read_bytes()
    with pytest.raises(ZeroDivisionError), ledger_in_place(path, force=True) as made:
        with LedgerWriter(made) as writer:
            writer.add(make_run())
        raise ZeroDivisionError
    assert path.read_bytes() == earlier and [each.name for each in tmp_path.iterdir()] == ["a.ledger"]
    with ledger_in_place(path, force=True) as made, LedgerWriter(made) as writer:
        writer.add(make_run())
    with open_ledger(path) as ledger:
        assert ledger.run() == make_run()


def test_the_place_of_a_ledger_is_refused_before_anything_is_made_for_it(tmp_path: Path) -> None:
    path = tmp_path / "a.ledger"
    with LedgerWriter(path):
        for force, said in ((False, "pass --force"), (True, "is being written by another run")):
            with pytest.raises(StoreError, match=said), ledger_in_place(path, force=force):
                pytest.fail("it was begun")
    with pytest.raises(StoreError, match="Check that the folder exists"):
        ledger_in_place(tmp_path / "nowhere" / "a.ledger", force=False).__enter__()
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not a ledger"):
        ledger_in_place(tmp_path / "notes.txt", force=True).__enter__()
