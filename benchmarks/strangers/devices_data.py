"""What ``calibrate_cuda.py`` wrote, as compact data: ``python -m benchmarks.strangers.devices_data FROM data/h100``.

Writes operators (Parquet; each sample says when it was measured), launches of fused programs, the ledgers of the drawn
programs (one tar, each compressed by lzma), each if there are any, and ``calibration.json``: the device's record, the
host, the drawn programs' own times, and for each fused program when it was measured, in seconds after the ceilings.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import io
import json
import lzma
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from torchledger.nouns import Device
from torchledger.sampling.dataset import read_samples, write_samples
from torchledger.sampling.journal import JOURNAL_FOLDER
from torchledger.store.codec import decode
from torchledger.store.launch_file import join_launches, read_launches, write_launches

TORCH = "torch2.11"


def main() -> None:
    """Convert one folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    out: Path = arguments.out
    out.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = json.loads((arguments.source / "device.json").read_text())
    record = decode(Device, json.dumps(told["device"]).encode())
    with tempfile.TemporaryDirectory() as scratch:
        _operators(arguments.source, out, Path(scratch), record)
        taken_s = _fused(arguments.source, out, Path(scratch), _seconds(told["device"]["ceilings"]["measured_utc"]))
    rows = _programs(arguments.source, out)
    calibration = {**told, "taken_s": taken_s, "rows": rows}
    (out / "calibration.json").write_text(json.dumps(calibration, separators=(",", ":")))
    for path in sorted(out.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


def _seconds(utc: str) -> float:
    return datetime.datetime.fromisoformat(utc).timestamp()


def _operators(source: Path, out: Path, scratch: Path, record: Device) -> None:
    lines = gzip.decompress((source / "operators.jsonl.gz").read_bytes())
    if not lines:
        return
    journal = scratch / "operators" / JOURNAL_FOLDER
    journal.mkdir(parents=True)
    (journal / "all.jsonl").write_bytes(lines)
    samples = read_samples(scratch / "operators")
    write_samples(out / f"operators_{TORCH}.parquet", samples, devices={record.name: record})
    print(f"{len(samples):,} labels")


def _fused(source: Path, out: Path, scratch: Path, began: float) -> dict[str, float]:
    taken_s: dict[str, float] = {}
    parts = []
    with tarfile.open(source / "fused.tar") as tar:
        for member in sorted(tar.getmembers(), key=lambda one: one.mtime):
            packed = tar.extractfile(member)
            assert packed is not None
            path = scratch / member.name
            path.write_bytes(packed.read())
            parts.append(read_launches(path))
            taken_s |= {item.program: round(member.mtime - began, 1) for item in parts[-1].launches}
    found = join_launches([part for part in parts if part.launches])
    write_launches(out / f"fused_{TORCH}.launches", found, force=True)
    print(f"{len(taken_s)} programs, {sum(item.duration_us is not None for item in found.launches):,} launches")
    return taken_s


def _programs(source: Path, out: Path) -> dict[str, Any]:
    """The programs that timed their own steps."""
    told = json.loads((source / "rows.json").read_text())
    rows: dict[str, Any] = {name: row for name, row in told.items() if "step_ms" in row.get("own", {})}
    if not rows:
        return rows
    with tarfile.open(source / "programs.tar") as tar, tarfile.open(out / f"programs_{TORCH}.tar", "w") as target:
        for member in tar.getmembers():
            if member.name.partition(".")[0] not in rows:
                continue
            packed = tar.extractfile(member)
            assert packed is not None
            content = lzma.compress(lzma.decompress(packed.read()), preset=9)
            kept = tarfile.TarInfo(member.name)
            kept.size = len(content)
            target.addfile(kept, io.BytesIO(content))
    return rows


if __name__ == "__main__":
    main()
