"""A model of times as one file: a zip of plain arrays with a JSON header.

The header holds the schema's version and, for each entry, the SHA-256 of its arrays; an entry is read and checked when
it is first asked. Nothing in the file can be executed: arrays are read without pickle.

Schema history: 1 (2026-11), first version; 2 (2026-11), the device's record instead of its name and multiprocessors,
and constants of its own where it has some.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.device.datasheets import device_of_name
from torchledger.errors import PredictError
from torchledger.fitting.generations import find_generation
from torchledger.fitting.machine import Machine
from torchledger.fitting.regressors import Blend, from_arrays, to_arrays
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.nouns import Device
from torchledger.store.codec import convert, encode
from torchledger.store.output import check_output, output_file

SCHEMA_VERSION = 2
SUFFIX = ".tlmodel"
SHIPPED = Path(__file__).parent / "models"
"""Models that come with the package."""

_HEADER = "header.json"
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # so that equal models make equal files


def save_model(model: TimeModel, path: str | os.PathLike[str], *, force: bool = False) -> int:
    """Write a model, whole or not at all; returns its size in bytes. Raises ``StoreError`` if the file exists."""
    path = Path(path)
    check_output(path, force=force)
    blobs = {key: _pack(to_arrays(entry.blend)) for key, entry in model.entries.items()}
    header = {
        "schema": SCHEMA_VERSION,
        "device": model.device,
        "machine": json.loads(encode(model.machine)),
        "created_utc": model.created_utc,
        "versions": dict(model.versions),
        "notes": list(model.notes),
        "total_memory_bytes": model.total_memory_bytes,
        "extras": dict(model.extras),
        "entries": {
            key: {
                "sha256": hashlib.sha256(blobs[key]).hexdigest(),
                "feature_names": list(entry.feature_names),
                "units": list(entry.units),
                "dtypes": list(entry.dtypes),
                "n_rows": entry.n_rows,
                "n_shapes": entry.n_shapes,
                "mape": entry.mape,
            }
            for key, entry in model.entries.items()
        },
    }
    text = json.dumps(header, sort_keys=True).encode()
    with (
        output_file(path, force=force) as partial,
        zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive,
    ):
        sealed = {"header": json.loads(text), "sha256": hashlib.sha256(text).hexdigest()}
        archive.writestr(zipfile.ZipInfo(_HEADER, _FIRST_DATE), json.dumps(sealed, sort_keys=True))
        for key, blob in blobs.items():
            info = zipfile.ZipInfo(f"entries/{key}.npz", _FIRST_DATE)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, blob)
    return path.stat().st_size


def load_model(path: str | os.PathLike[str]) -> TimeModel:
    """Read a model file; its entries are read when first asked.

    Raises ``PredictError`` in one line for a file that is absent, truncated, altered or of another schema.
    """
    path = Path(path)
    if not path.exists():
        raise PredictError(f"{path} does not exist. Fit one with `torchledger fit DATA -o {path}`.")
    try:
        with zipfile.ZipFile(path) as archive:
            sealed = json.loads(archive.read(_HEADER))
        header = sealed["header"]
        version = header["schema"]
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise PredictError(f"{path} is no model of times, or is cut off ({error}).") from error
    if version not in (1, SCHEMA_VERSION):
        raise PredictError(f"{path} has schema {version}; this version reads 1 to {SCHEMA_VERSION}. Fit it again.")
    if hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest() != sealed.get("sha256"):
        raise PredictError(f"{path} was altered: its header does not match its checksum. Fit it again.")
    return TimeModel(
        device=header["device"],
        machine=_machine(header["machine"], version),
        entries=_Entries(path, header["entries"]),
        created_utc=header["created_utc"],
        versions=header["versions"],
        notes=tuple(header["notes"]),
        total_memory_bytes=header["total_memory_bytes"],
        extras=header["extras"],
    )


def find_model(device_or_path: str | os.PathLike[str]) -> TimeModel:
    """The model of a file, or the shipped one of a device whose name holds the text (``"H200"``).

    Raises ``PredictError`` naming the models there are.
    """
    path = Path(device_or_path)
    if path.exists() or path.suffix == SUFFIX:
        return load_model(path)
    wanted = _plain(str(device_or_path))
    shipped = sorted(SHIPPED.glob(f"*{SUFFIX}"))
    for candidate in shipped:
        if wanted and wanted in _plain(candidate.stem):
            return load_model(candidate)
    known = ", ".join(candidate.stem for candidate in shipped) or "none"
    raise PredictError(
        f"no model of device {str(device_or_path)!r} is at hand; models that come with torchledger: {known}. "
        "Pass a model file, or make one with `torchledger fit DATA -o MODEL`."
    )


def _machine(plain: Mapping[str, Any], version: int) -> Machine:
    if version > 1:
        return convert(Machine, plain)
    # Models of the first schema took all devices for like the reference but for their multiprocessors and generation:
    # what their record does not hold is taken from there.
    name = plain["name"]
    device = Device(
        name=name,
        kind="cuda",
        num_multiprocessors=plain["num_multiprocessors"],
        compute_capability=_only_own(device_of_name(name).compute_capability),
    )
    return Machine(device, plain["flops_per_us"], plain["bytes_per_us"], plain["floor_us"])


def _only_own(compute_capability: tuple[int, int] | None) -> tuple[int, int] | None:
    return compute_capability if find_generation(compute_capability).constants is not None else None


class _Entries(Mapping[str, Entry]):
    """The entries of a model file, each read and checked on first use."""

    def __init__(self, path: Path, headers: Mapping[str, Mapping[str, Any]]) -> None:
        self._path, self._headers = path, headers
        self._loaded: dict[str, Entry] = {}

    def __getitem__(self, key: str) -> Entry:
        if key not in self._loaded:
            header = self._headers[key]
            self._loaded[key] = Entry(
                key=key,
                blend=self._read_blend(key, header["sha256"]),
                feature_names=tuple(header["feature_names"]),
                units=tuple(header["units"]),
                dtypes=tuple(header["dtypes"]),
                n_rows=header["n_rows"],
                n_shapes=header["n_shapes"],
                mape=header["mape"],
            )
        return self._loaded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._headers

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)

    def _read_blend(self, key: str, sha256: str) -> Blend:
        try:
            with zipfile.ZipFile(self._path) as archive:
                blob = archive.read(f"entries/{key}.npz")
            if hashlib.sha256(blob).hexdigest() != sha256:
                raise PredictError(f"{self._path} was altered: entry {key} does not match its checksum. Fit it again.")
            with np.load(io.BytesIO(blob), allow_pickle=False) as stored:
                blend: Blend = from_arrays(dict(stored))
        except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
            raise PredictError(f"{self._path} is damaged: entry {key} cannot be read ({error}).") from error
        return blend


def _pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as an uncompressed npz with fixed dates: the outer file compresses."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _FIRST_DATE), member.getvalue())
    return buffer.getvalue()


def _plain(name: str) -> str:
    return name.upper().replace(" ", "").replace("-", "").replace("_", "").removeprefix("NVIDIA")
