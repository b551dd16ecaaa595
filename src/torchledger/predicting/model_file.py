"""A model of times as one file: a zip of plain arrays with a JSON header.

The header holds the schema's version and, for each entry, the SHA-256 of its arrays; an entry is read and checked when
it is first asked. Nothing in the file can be executed: arrays are read without pickle.

Schema history: 1 (2026-11), first version; 2 (2026-11), the device's record instead of its name and multiprocessors,
and constants of its own where it has some; 3 (2026-11), entries of another device with a correction, what a model was
made of and its error.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.device.datasheets import device_of_name
from torchledger.errors import PredictError
from torchledger.expecting.constants import with_later_numbers
from torchledger.expecting.generations import find_generation
from torchledger.expecting.machine import Machine
from torchledger.fitting.regressors import Blend, are_equal, from_arrays, to_arrays
from torchledger.fitting.time_model import Entry, Origin, TimeModel
from torchledger.nouns import Device
from torchledger.store.codec import FieldError, convert, encode, parse
from torchledger.store.inflate import inflated_limit
from torchledger.store.output import check_output, output_file

SCHEMA_VERSION = 4
"""Since 4, networks may be among the members of an entry."""
SUFFIX = ".tlmodel"
SHIPPED = Path(__file__).parent / "models"
"""Models that come with the package."""

_HEADER = "header.json"
_CORRECTION = "correction."
_NEXT_STEP = "Fit one with `torchledger fit`, or fetch it again."
_UNREADABLE = (
    *(OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, RecursionError),
    *(tokenize.TokenError, SyntaxError),
)
"""What damaged zips, arrays and JSON raise when they are read."""

_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # so that equal models make equal files


def save_model(
    model: TimeModel, path: str | os.PathLike[str], *, force: bool = False, beside: str | None = None
) -> int:
    """Write a model, whole or not at all; returns its size in bytes. Raises ``StoreError`` if the file exists.

    ``beside`` names a model that comes with torchledger (``"NVIDIA_H200"``): what the entries have from there is not
    written again, and the file can only be read beside it.
    """
    path = Path(path)
    check_output(path, force=force)
    borrowed = {} if beside is None else _borrowed(model, _shipped_entries(beside))
    blobs = {key: _pack(_entry_arrays(entry, key not in borrowed)) for key, entry in model.entries.items()}
    machines: list[Any] = []
    for entry in model.entries.values():
        machines += [plain for each in entry.origins if (plain := _plain(each.machine)) not in machines]
    header = {
        "schema": SCHEMA_VERSION,
        "device": model.device,
        "machine": _plain(model.machine),
        "created_utc": model.created_utc,
        "versions": dict(model.versions),
        "notes": list(model.notes),
        "total_memory_bytes": model.total_memory_bytes,
        "extras": dict(model.extras),
        "source": model.source,
        "operators_error_pct": model.operators_error_pct,
        "beside": beside,
        "origins": machines,
        "entries": {
            key: {
                "sha256": hashlib.sha256(blobs[key]).hexdigest(),
                "feature_names": list(entry.feature_names),
                "units": list(entry.units),
                "dtypes": list(entry.dtypes),
                "n_rows": entry.n_rows,
                "n_shapes": entry.n_shapes,
                "mape": entry.mape,
                "spread": entry.spread,
                "corrections": len(entry.corrections),
                "borrowed_sha256": borrowed.get(key),
                "origins": [[machines.index(_plain(each.machine)), each.corrections] for each in entry.origins],
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
        members = {_HEADER: json.dumps(sealed, sort_keys=True).encode()}
        members |= {f"entries/{key}.npz": blob for key, blob in blobs.items()}
        for name, content in members.items():
            # A member with a date of its own is stored as it is unless it is told otherwise.
            archive.writestr(zipfile.ZipInfo(name, _FIRST_DATE), content, zipfile.ZIP_DEFLATED)
    return path.stat().st_size


def rows_of(model: TimeModel, key: str) -> int:
    """The measurements that an entry of a model learned from; of a file's entries, what its header says."""
    entries = model.entries
    return entries.n_rows(key) if isinstance(entries, _Entries) else entries[key].n_rows


def load_model(path: str | os.PathLike[str]) -> TimeModel:
    """Read a model file; its entries are read when first asked.

    Raises ``PredictError`` in one line for a file that is absent, truncated, altered or of another schema.
    """
    path = Path(path)
    if not path.exists():
        raise PredictError(f"{path} does not exist. Fit one with `torchledger fit DATA -o {path}`.")
    try:
        budget = inflated_limit(path.stat().st_size)
        with zipfile.ZipFile(path) as archive:
            text, _ = _read_member(archive, _HEADER, budget)
        sealed = parse(text)
        version = sealed["header"]["schema"]
        found = sealed.get("sha256")
    except (*_UNREADABLE, KeyError, TypeError, AttributeError) as error:
        raise PredictError(f"{path} is no model of times, or is cut off ({error}). {_NEXT_STEP}") from error
    if version not in range(1, SCHEMA_VERSION + 1):
        raise PredictError(f"{path} has schema {version}; this version reads 1 to {SCHEMA_VERSION}. Fit it again.")
    if hashlib.sha256(json.dumps(sealed["header"], sort_keys=True).encode()).hexdigest() != found:
        raise PredictError(f"{path} was altered: its header does not match its checksum. Fit it again.")
    try:
        header = convert(_Header, sealed["header"])
        machine = _machine(header.machine, version)
        machines = [_machine(each, version) for each in header.origins]
        if any(not 0 <= place < len(machines) for own in header.entries.values() for place, _ in own.origins):
            raise FieldError("field `entries`: an origin is no machine of the file")
        for field, each in (("machine", machine), *((f"origins[{n}]", one) for n, one in enumerate(machines))):
            _check_scales(field, each)
    except FieldError as error:
        raise PredictError(f"{path} is no model of times: its header, {error}. {_NEXT_STEP}") from error
    return TimeModel(
        device=header.device,
        machine=machine,
        entries=_Entries(path, header.entries, header.beside, machines),
        created_utc=header.created_utc,
        versions=header.versions,
        notes=header.notes,
        total_memory_bytes=header.total_memory_bytes,
        extras=header.extras,
        source=header.source,
        operators_error_pct=header.operators_error_pct,
    )


_LEAST_SCALE, _LARGEST_SCALE = 1e-9, 1e15
"""Between which every device's rates, times and counts lie, by many orders of magnitude."""


def _check_scales(field: str, machine: Machine) -> None:
    """Raise ``FieldError`` for a rate, a time or a count that is divided by and is no device's."""
    scales: dict[str, float] = {"num_multiprocessors": machine.num_multiprocessors}
    scales |= {"bytes_per_us": machine.bytes_per_us, "floor_us": machine.floor_us, **machine.flops_per_us}
    if clock_mhz := machine.device.clock_rate_mhz:
        scales["clock_rate_mhz"] = clock_mhz
    for name, scale in scales.items():
        if not 0 < scale < math.inf:
            raise FieldError(f"field `{field}`: {name} must be above zero, got {scale}")
        if not _LEAST_SCALE < scale < _LARGEST_SCALE:
            raise FieldError(f"field `{field}`: no device has a {name} of {str(scale)[:20]}")


def _borrowed(model: TimeModel, theirs: _Entries) -> dict[str, str]:
    """The checksums of the shipped entries whose regressor a model's entry has, by key."""
    same = {}
    for key in model.entries.keys() & theirs.keys():
        if are_equal(model.entries[key].blend, theirs[key].blend):
            same[key] = theirs.checksum(key)
    return same


def _shipped_entries(name: str) -> _Entries:
    entries = load_model(SHIPPED / f"{name}{SUFFIX}").entries
    assert isinstance(entries, _Entries)
    return entries


def _entry_arrays(entry: Entry, is_whole: bool) -> dict[str, NDArray[Any]]:
    arrays = to_arrays(entry.blend) if is_whole else {}
    for number, correction in enumerate(entry.corrections):
        arrays |= to_arrays(correction, f"{_CORRECTION}{number}.")
    return arrays


@dataclass(frozen=True)
class _EntryHeader:
    sha256: str
    feature_names: tuple[str, ...]
    units: tuple[str, ...]
    dtypes: tuple[str, ...]
    n_rows: int
    n_shapes: int
    mape: float | None
    spread: float = 0.0
    corrections: int = 0
    borrowed_sha256: str | None = None
    origins: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class _Header:
    """The header as it stands in the file, whichever schema it is of."""

    schema: int
    device: str
    machine: Mapping[str, Any]
    entries: Mapping[str, _EntryHeader]
    created_utc: str
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    total_memory_bytes: int | None
    extras: Mapping[str, float]
    source: str = ""
    operators_error_pct: float | None = None
    beside: str | None = None
    origins: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class _FirstMachine:
    """A machine as the first schema held it."""

    name: str
    num_multiprocessors: int
    flops_per_us: Mapping[str, float]
    bytes_per_us: float
    floor_us: float


def _plain(machine: Machine) -> Any:
    return json.loads(encode(machine))


def _machine(plain: Mapping[str, Any], version: int) -> Machine:
    if version > 1:
        own = plain.get("own_constants")
        return convert(Machine, plain if own is None else {**plain, "own_constants": with_later_numbers(own)})
    # Models of the first schema took all devices for like the reference but for their multiprocessors and generation:
    # what their record does not hold is taken from there.
    first = convert(_FirstMachine, plain)
    sheet = device_of_name(first.name)
    device = Device(
        name=first.name,
        kind=sheet.kind,
        num_multiprocessors=first.num_multiprocessors,
        compute_capability=_only_own(sheet.compute_capability),
    )
    return Machine(device, first.flops_per_us, first.bytes_per_us, first.floor_us)


def _only_own(compute_capability: tuple[int, int] | None) -> tuple[int, int] | None:
    return compute_capability if find_generation(compute_capability).constants is not None else None


class _Entries(Mapping[str, Entry]):
    """The entries of a model file, each read and checked on first use."""

    def __init__(
        self, path: Path, headers: Mapping[str, _EntryHeader], beside: str | None, machines: Sequence[Machine]
    ) -> None:
        self._path, self._headers, self._beside, self._machines = path, headers, beside, machines
        self._loaded: dict[str, Entry] = {}
        self._bytes_left = inflated_limit(path.stat().st_size)

    def __getitem__(self, key: str) -> Entry:
        if key not in self._loaded:
            header = self._headers[key]
            blend, corrections = self._read_blends(key, header)
            self._loaded[key] = Entry(
                key=key,
                blend=blend,
                corrections=corrections,
                spread=header.spread,
                origins=tuple(Origin(self._machines[place], count) for place, count in header.origins),
                feature_names=header.feature_names,
                units=header.units,
                dtypes=header.dtypes,
                n_rows=header.n_rows,
                n_shapes=header.n_shapes,
                mape=header.mape,
            )
        return self._loaded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._headers

    def __iter__(self) -> Iterator[str]:
        return iter(self._headers)

    def __len__(self) -> int:
        return len(self._headers)

    def n_rows(self, key: str) -> int:
        """The measurements that an entry learned from, without reading it."""
        return self._headers[key].n_rows

    def checksum(self, key: str) -> str:
        """The SHA-256 of an entry's arrays."""
        return self._headers[key].sha256

    @cached_property
    def _lender(self) -> _Entries:
        if self._beside is None or not self._beside.isidentifier():
            raise ValueError("it does not name the model that it was made beside")
        return _shipped_entries(self._beside)

    def _lent(self, key: str, checksum: str) -> Blend:
        if self._lender.checksum(key) != checksum:
            raise PredictError(
                f"{self._path} was made beside another {self._beside}{SUFFIX} than the one that is here. Make it again."
            )
        return self._lender[key].blend

    def _read_blends(self, key: str, header: _EntryHeader) -> tuple[Blend, tuple[Blend, ...]]:
        try:
            with zipfile.ZipFile(self._path) as archive:
                blob, self._bytes_left = _read_member(archive, f"entries/{key}.npz", self._bytes_left)
            if hashlib.sha256(blob).hexdigest() != header.sha256:
                raise PredictError(f"{self._path} was altered: entry {key} does not match its checksum. Fit it again.")
            arrays = _unpack(blob)
            features = len(header.feature_names)
            corrections = tuple(
                from_arrays(_named(arrays, f"{_CORRECTION}{number}."), features=features - len(header.units) + 1)
                for number in range(header.corrections)
            )
            if header.borrowed_sha256 is not None:
                return self._lent(key, header.borrowed_sha256), corrections
            return from_arrays(arrays, features=features), corrections
        except (*_UNREADABLE, KeyError) as error:
            raise PredictError(
                f"{self._path} is damaged: entry {key} cannot be read ({error}). {_NEXT_STEP}"
            ) from error


def _named(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _read_member(archive: zipfile.ZipFile, name: str, limit: int) -> tuple[bytes, int]:
    """A member of a zip and how much of the limit in bytes it leaves; raises ``ValueError`` if it is too large."""
    size = archive.getinfo(name).file_size
    if size > limit:
        raise ValueError(f"{name} claims {size:,} bytes, of which {limit:,} are left to a file of this size")
    return archive.read(name), limit - size


def _unpack(blob: bytes) -> dict[str, NDArray[Any]]:
    """The arrays that ``_pack`` wrote; raises ``ValueError`` before memory is taken for more than there is."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        left = len(blob)
        for member in archive.infolist():
            content, left = _read_member(archive, member.filename, left)
            name = member.filename.removesuffix(".npy")
            file = io.BytesIO(content)
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError(f"array {name} is of another format")
            shape, is_fortran, dtype = np.lib.format.read_array_header_1_0(file)
            data = content[file.tell() :]
            if is_fortran or dtype.kind not in "fiu" or math.prod(shape) * dtype.itemsize != len(data):
                raise ValueError(f"array {name} of {dtype} {shape} does not fit its {len(data):,} bytes")
            arrays[name] = np.frombuffer(data, dtype).reshape(shape)
    return arrays


def _pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """The arrays as an uncompressed npz with fixed dates: the outer file compresses."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy", _FIRST_DATE), member.getvalue())
    return buffer.getvalue()
