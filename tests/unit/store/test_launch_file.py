"""Files of measured launches."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from factories import make_buffer, make_launch, make_run
from launch_times import make_launch_set
from torchledger.errors import StoreError
from torchledger.nouns import Measurement
from torchledger.store import LedgerWriter
from torchledger.store.launch_file import join_launches, read_launches, write_launches
from torchledger.work.step_traffic import StepTraffic


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    found = make_launch_set(3)
    write_launches(tmp_path / "a.launches", found)
    again = read_launches(tmp_path / "a.launches")
    assert [item.launch for item in again.launches] == [item.launch for item in found.launches]
    assert again.device == "TEST" and again.versions == {"torch": "2.13.0"}
    assert again.launches[0].times_us == pytest.approx(found.launches[0].times_us, abs=1e-4)


def test_where_a_launch_came_from_is_not_kept(tmp_path: Path) -> None:
    found = make_launch_set(1)
    buffer = replace(make_buffer(name="x"), fx_node="add", argument="in_ptr0")
    launch = replace(found.launches[0].launch, buffers=(buffer,), fx_nodes=("add",), wrapper_line=7)
    write_launches(tmp_path / "a.launches", replace(found, launches=(replace(found.launches[0], launch=launch),)))
    (kept,) = read_launches(tmp_path / "a.launches").launches
    assert kept.launch.buffers == (make_buffer(name="x"),)
    assert kept.launch.fx_nodes == () and kept.launch.wrapper_line is None


def test_the_step_that_a_launch_is_of_is_kept(tmp_path: Path) -> None:
    steps = (StepTraffic(100, 7), StepTraffic(100), None)
    found = make_launch_set(3)
    launches = tuple(replace(item, traffic=step) for item, step in zip(found.launches, steps, strict=False))
    write_launches(tmp_path / "a.launches", replace(found, launches=launches))
    assert tuple(item.traffic for item in read_launches(tmp_path / "a.launches").launches[:3]) == steps


def test_parts_can_be_joined_by_concatenation(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        write_launches(tmp_path / name, make_launch_set(2, seed=seed))
    (tmp_path / "both").write_bytes((tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes())
    assert len(read_launches(tmp_path / "both").launches) == 12


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    write_launches(tmp_path / "a", make_launch_set(3))
    (tmp_path / "cut").write_bytes((tmp_path / "a").read_bytes()[:-40])
    with pytest.raises(StoreError, match="is no file of launches, or is cut off"):
        read_launches(tmp_path / "cut")
    with pytest.raises(StoreError, match="does not exist"):
        read_launches(tmp_path / "none")


def test_a_ledger_gives_its_launches_with_their_profile(tmp_path: Path) -> None:
    path = tmp_path / "gpt.ledger"
    with LedgerWriter(path) as writer:
        writer.add(make_run(), make_launch(order=0), make_launch(order=1))
        writer.add(Measurement("forward_0#1", "profile", "cupti", (3.0, 5.0, 4.0)))
    found = read_launches(path)
    assert [item.duration_us for item in found.launches] == [None, 4.0]
    assert {item.program for item in found.launches} == {"gpt"} and found.device == "test device"


def test_launches_of_two_devices_are_not_joined() -> None:
    from dataclasses import replace

    with pytest.raises(StoreError, match="OTHER, TEST cannot be joined"):
        join_launches([make_launch_set(1), replace(make_launch_set(1), device="OTHER")])


def write_lines(path: Path, *lines: bytes) -> Path:
    path.write_bytes(gzip.compress(b"\n".join(lines) + b"\n"))
    return path


HEADER = b'{"format": 1, "device": "TEST", "versions": {}}'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"program": 3}', "line 2, field `program`"),
        (b'{"program": "a", "times_us": [1.0], "launch": {"graph": "g"}}', "line 2, field `launch`"),
        (b'{"program": "a", "times_us": [1.0]}', "a launch is missing in line 2"),
        (b"[1]", "line 2, expected `object`"),
    ],
)
def test_a_line_is_checked_and_named(tmp_path: Path, line: bytes, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        read_launches(write_lines(tmp_path / "a.launches", HEADER, line))


def test_a_file_that_holds_many_times_its_size_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="more than 40 times its size"):
        read_launches(write_lines(tmp_path / "a.launches", HEADER, b'{"program": "%b"}' % (b"a" * (32 << 20))))
    with pytest.raises(StoreError, match="more than 40 times its size"):
        read_launches(write_lines(tmp_path / "a.launches", *[HEADER] * 500_000))


def test_a_compressed_file_with_changed_bytes_is_refused(tmp_path: Path) -> None:
    write_launches(tmp_path / "a", make_launch_set(3))
    content = bytearray((tmp_path / "a").read_bytes())
    content[100:110] = b"\xff" * 10
    (tmp_path / "changed").write_bytes(content)
    with pytest.raises(StoreError, match="changed"):
        read_launches(tmp_path / "changed")
