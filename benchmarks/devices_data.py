"""What ``calibrate_cuda.py`` wrote, as compact data: ``python benchmarks/devices_data.py FROM data/h100``.

Writes operators (Parquet; each sample says when it was measured), launches of fused programs, ``taken_s.json`` (for
each of these programs, seconds after the first sample), the ledgers of the drawn programs (one tar, each compressed by
lzma) and ``programs.json`` (their own times, the device's record and the host).
"""

from __future__ import annotations

import argparse
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
    told = json.loads((arguments.source / "device.json").read_text())
    record = decode(Device, json.dumps(told["device"]).encode())
    with tempfile.TemporaryDirectory() as scratch:
        first_utc = _operators(arguments.source, out, Path(scratch), record)
        _fused(arguments.source, out, Path(scratch), first_utc)
        _programs(arguments.source, out, told)
    for path in sorted(out.iterdir()):
        print(f"{path}: {path.stat().st_size:,} bytes")


def _operators(source: Path, out: Path, scratch: Path, record: Device) -> float:
    journal = scratch / "operators" / JOURNAL_FOLDER
    journal.mkdir(parents=True)
    (journal / "all.jsonl").write_bytes(gzip.decompress((source / "operators.jsonl.gz").read_bytes()))
    samples = read_samples(scratch / "operators")
    times = [sample.measured_utc for sample in samples if sample.measured_utc]
    write_samples(out / f"operators_{TORCH}.parquet", samples, devices={record.name: record})
    print(f"{len(samples):,} labels over {max(times) - min(times):.0f} s")
    return min(times)


def _fused(source: Path, out: Path, scratch: Path, first_utc: float) -> None:
    taken_s: dict[str, float] = {}
    parts = []
    with tarfile.open(source / "fused.tar") as tar:
        for member in sorted(tar.getmembers(), key=lambda one: one.mtime):
            packed = tar.extractfile(member)
            assert packed is not None
            path = scratch / member.name
            path.write_bytes(packed.read())
            parts.append(read_launches(path))
            taken_s |= {item.program: round(member.mtime - first_utc, 1) for item in parts[-1].launches}
    found = join_launches([part for part in parts if part.launches])
    write_launches(out / f"fused_{TORCH}.launches", found, force=True)
    (out / "taken_s.json").write_text(json.dumps(taken_s, separators=(",", ":")))
    print(f"{len(taken_s)} programs, {sum(item.duration_us is not None for item in found.launches):,} launches")


def _programs(source: Path, out: Path, told: dict[str, Any]) -> None:
    rows = json.loads((source / "rows.json").read_text())
    (out / "programs.json").write_text(json.dumps({"rows": rows, **told}, separators=(",", ":")))
    with tarfile.open(source / "programs.tar") as tar, tarfile.open(out / f"programs_{TORCH}.tar", "w") as target:
        for member in tar.getmembers():
            packed = tar.extractfile(member)
            assert packed is not None
            content = lzma.compress(lzma.decompress(packed.read()), preset=9)
            kept = tarfile.TarInfo(member.name)
            kept.size = len(content)
            target.addfile(kept, io.BytesIO(content))


if __name__ == "__main__":
    main()
