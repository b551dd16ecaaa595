"""What ``strangers_cuda.py`` measured, as data to fit.

    python -m benchmarks.strangers.strangers_data FROM TO [--more TAR...]

FROM holds ``attention.json``, ``battery.tar`` and ``develop.tar``. TO gets ``attention_torch2.11.launches``: each
configuration as the launch that generated code would make of it, after a sweep of the cache and at once again, and
attention in programs; ``library_torch2.11.launches``: calls of other libraries in compiled graphs; and
``calls_torch2.11.json.gz``: eager calls with their times in a step; and ``programs_torch2.11.launches``: whole compiled
graphs with times of all but attention, which tell what ran before too. ``programs_tf32_torch2.11.launches`` are those
whose products and convolutions of float32 were rounded. ``--more`` are tars of further
ledgers. Where FROM is TO, what lies there stays, and the programs of those tars that it lacks are added; where FROM is
an ``attention.json``, attention alone is written, and where it is a tar, whole programs alone. Needs no GPU.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import statistics
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.operators.drawn_launches import Row, in_both_states, is_steady, library_launch, made_buffer, write_data
from torchledger.expecting.launch_families import family_of
from torchledger.fitting.call_costs import is_joining, is_scaler, known_name
from torchledger.nouns import Buffer, Launch, StepCall
from torchledger.predicting.step_calls import is_priced
from torchledger.store import open_ledger
from torchledger.store.launch_file import MeasuredLaunch, launches_of_ledger, read_launches

_ITEM_FIELDS = ("name", "kernels", "tensors", "elements", "bytes_moved", "flops")


def attention_launches(rows: Sequence[Row], name: str = "attention") -> Iterator[MeasuredLaunch]:
    """Two launches a row: over inputs that the cache has lost, and the same again. Rows whose times differ from one
    call to the next are left out. ``name`` tells the graphs of several files apart."""
    for number, row in enumerate(rows):
        if is_steady(row):
            pair = (_attention_launch(row, f"{name}_{number}", order) for order in range(2))
            yield from in_both_states(row, pair, f"{name}-{number - number % 2}")


def _attention_launch(row: Row, graph: str, order: int) -> Launch:
    backward = row["direction"] == "backward"
    q = (row["batch"], row["heads"], row["length"], row["d"])
    kv = (row["batch"], row["heads_kv"], row["length_kv"], row["d"])
    score = (row["batch"], row["heads"], row["length"], row["length_kv"])
    inputs = [_buffer("q", q, row), _buffer("k", kv, row), _buffer("v", kv, row)]
    if backward:
        inputs = [_buffer("grad", q, row), *inputs, _buffer("out", q, row)]
        outputs = [_buffer("dq", q, row, "output"), *(_buffer(name, kv, row, "output") for name in ("dk", "dv"))]
    else:
        outputs = [_buffer("out", q, row, "output")]
    if row["has_bias"]:
        inputs.append(_buffer("bias", score, row))
    name = f"_scaled_dot_product_{row['backend']}_attention{'_backward' if backward else ''}"
    dropout = str(row.get("dropout", 0.0))
    flags = (dropout,) if backward or row["backend"] == "flash" else (str(not row.get("forward_alone")), dropout)
    if backward and row["backend"] == "efficient":
        flags = (dropout, "True", "True", "True", "False")
    flops = round(
        4 * row["batch"] * row["heads"] * row["length"] * row["length_kv"] * row["d"] * (2.5 if backward else 1)
    )
    kwargs = {f"arg{place}": value for place, value in enumerate((*flags, str(row["is_causal"])))}
    call = f"torch.ops.aten.{name}.default"
    return library_launch(graph, order, name, call, (*inputs, *outputs), kwargs, kernel=name, flops=flops)


def _buffer(
    name: str, shape: tuple[int, int, int, int], row: Row, role: Literal["input", "output"] = "input"
) -> Buffer:
    batch, heads, length, d = shape
    stride = (length * heads * d, d, heads * d, 1) if row["packed"] else (heads * length * d, length * d, d, 1)
    numel = batch * heads * length * d
    if name == "bias":
        # Its rows begin where sixteen bytes do, as ``attention_runs`` stores them, for all heads or all of the batch.
        stored, over = -(-d // 8) * 8, row.get("bias_over", "batch")
        of_heads, of_batch = (over != "batch", over != "heads")
        per_head = length * stored
        stride = (per_head * (heads if of_heads else 1) * of_batch, per_head * of_heads, stored, 1)
        numel = (batch if of_batch else 1) * (heads if of_heads else 1) * length * d
    return made_buffer(name, row["dtype"], shape, stride, role, numel=numel)


def launches_of(path: Path, family: str) -> Iterator[MeasuredLaunch]:
    """A program's launches of a family, with their times in its steps."""
    for item in launches_of_ledger(path).launches:
        if item.duration_us is not None and (family_of(item.launch) or "").startswith(family):
            yield item


def launches_of_program(path: Path) -> Iterator[MeasuredLaunch]:
    """A program's launches; attention, which another file holds, has no times."""
    for item in launches_of_ledger(path).launches:
        if path.stem.startswith("battery"):
            # Its calls sweep the cache between its graphs.
            item = replace(item, traffic=None)
        yield replace(item, times_us=()) if (family_of(item.launch) or "").startswith("launch:attention") else item


def is_rounded(path: Path) -> bool:
    """Whether products and convolutions of float32 were rounded for the tensor cores in a program."""
    with open_ledger(path) as reader:
        return reader.run().environment.settings.get("float32_matmul_precision", "highest") != "highest"


def ledgers_of(tar_path: Path) -> Iterator[Path]:
    """The ledgers of a tar, unpacked one at a time, and gone when all were seen."""
    with tempfile.TemporaryDirectory() as folder:
        yield from unpack(tar_path, Path(folder))


def unpack(tar_path: Path, folder: Path) -> Iterator[Path]:
    """The ledgers of a tar, unpacked into ``folder`` one at a time."""
    with tarfile.open(tar_path) as tar:
        for member in tar.getmembers():
            packed = tar.extractfile(member)
            assert packed is not None
            path = folder / Path(member.name).stem
            path.write_bytes(lzma.decompress(packed.read()))
            yield path


def _names_places(name: str) -> bool:
    """Whether a call's list is of few tensors that say where or are joined, and not of one kind as optimizers'."""
    return is_joining(name) or name.removeprefix("aten::").startswith(("index", "_index", "_unsafe_index"))


def calls_of(path: Path) -> Iterator[dict[str, Any]]:
    """The priced eager calls of a ledger, alike ones once with their median time."""
    with open_ledger(path) as reader:
        calls = reader.read(StepCall)
    found: dict[str, list[float]] = {}
    beside_scaler = any(is_scaler(call.name) for call in calls)
    for call in calls:
        if call.kind == "collective" or not is_priced(call, ran_on_cpu=False) or not call.samples_us:
            continue  # how long ranks wait for one another is in what a collective takes
        item = {name: getattr(call, name) for name in _ITEM_FIELDS}
        item["name"] = known_name(call.name, beside_scaler=beside_scaler)
        item["arguments"] = [
            (each.shape, each.dtype, each.stride, *(() if each.held_bytes is None else (each.held_bytes,)))
            for each in (call.arguments if call.tensors is None or _names_places(call.name) else call.arguments[:1])
        ]
        if call.settings is not None:
            item["settings"] = dict(call.settings)
        found.setdefault(json.dumps(item), []).append(statistics.median(call.samples_us))
    for text, times in found.items():
        yield {"program": path.stem, **json.loads(text), "us": round(statistics.median(times), 3)}


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--more", nargs="*", type=Path, default=[], metavar="TAR", help="or attention.json")
    parser.add_argument("--device", default="NVIDIA H200", help="which one measured FROM, where that is one file")
    arguments = parser.parse_args()
    target: Path = arguments.target
    if arguments.source.suffix == ".json":
        sources = [arguments.source, *arguments.more]
        rows = [each for path in sources for each in attention_launches(json.loads(path.read_text()), path.stem)]
        print(f"{write_data(target / 'attention_torch2.11.launches', rows, arguments.device):,} launches of attention")
        return
    if arguments.source.suffix == ".tar":
        paths = (path for tar in (arguments.source, *arguments.more) for path in ledgers_of(tar))
        found: dict[str, list[MeasuredLaunch]] = {"programs": [], "programs_tf32": []}
        for path in paths:
            found["programs_tf32" if is_rounded(path) else "programs"] += launches_of_program(path)
        for name, own in found.items():
            print(f"{write_data(target / f'{name}_torch2.11.launches', own, arguments.device):,} launches of {name}")
        return
    launches: list[MeasuredLaunch] = []
    others: list[MeasuredLaunch] = []
    calls: list[dict[str, Any]] = []
    programs: list[MeasuredLaunch] = []
    programs_tf32: list[MeasuredLaunch] = []
    kinds = {"attention": launches, "library": others, "programs": programs, "programs_tf32": programs_tf32}
    calls_path = target / "calls_torch2.11.json.gz"
    sources = [arguments.source / name for name in ("battery.tar", "develop.tar")]
    if arguments.source.resolve() == target.resolve():
        sources = []
        for name, own in kinds.items():
            own += read_launches(target / f"{name}_torch2.11.launches").launches
        calls += json.loads(gzip.decompress(calls_path.read_bytes()))
    else:
        launches += attention_launches(json.loads((arguments.source / "attention.json").read_text()))
    seen = {item.program for item in (*programs, *programs_tf32)}
    for source in (*sources, *arguments.more):
        if source.suffix == ".json":
            there = {item.program for item in launches}
            rows = attention_launches(json.loads(source.read_text()), source.stem)
            launches += [item for item in rows if item.program not in there]
            continue
        for path in ledgers_of(source):
            if path.stem in seen:
                continue
            seen.add(path.stem)
            calls += calls_of(path)
            launches += launches_of(path, "launch:attention")
            others += launches_of(path, "launch:library")
            (programs_tf32 if is_rounded(path) else programs).extend(launches_of_program(path))
    for name, own in kinds.items():
        write_data(target / f"{name}_torch2.11.launches", own)
    text = json.dumps(calls, separators=(",", ":")).encode()
    calls_path.write_bytes(gzip.compress(text, mtime=0))
    print(
        f"{len(launches):,} launches of attention, {len(others):,} of other libraries, {len(calls):,} eager calls, "
        f"{len(programs) + len(programs_tf32):,} launches of {len(seen)} programs"
    )


if __name__ == "__main__":
    main()
