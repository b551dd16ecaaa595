"""The devices whose times can be predicted: those with a model that comes with torchledger, and those with a data
sheet, which get the nearest of these at their own rates."""

from __future__ import annotations

import difflib
import functools
import math
import os
import re
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torchledger.device.datasheets import (
    HALF_PRECISION,
    DataSheet,
    data_sheets,
    find_data_sheet,
    plain_name,
    read_data_sheets,
)
from torchledger.errors import PredictError
from torchledger.fitting.time_model import Entry, TimeModel
from torchledger.fitting.transfer import transfer_model
from torchledger.nouns import Device
from torchledger.predicting.model_file import SHIPPED, SUFFIX, load_model, rows_of

_SHEET_SUFFIXES = (".yml", ".yaml")
_WHOLE = "launch:fused/"
"""How the entries begin that a model has if it knows fused kernels too, and so can stand in for another device's."""


@dataclass(frozen=True)
class KnownDevice:
    """A device to predict for: ``source`` says what its model was made of, ``rows`` how many of its own measurements it
    learned from, ``operators_error_pct`` its mean error at shapes that it did not learn from (``None``: not measured),
    ``made_utc`` when (``None`` for a data sheet)."""

    name: str
    source: str
    rows: int
    operators_error_pct: float | None
    made_utc: str | None


def find_model(device_or_path: str | os.PathLike[str]) -> TimeModel:
    """The model of a file, of a device that comes with torchledger, or of one with a data sheet: transferred, and
    marked as such in ``source``. A YAML file is a data sheet.

    A device is found by its name or the beginning of it (``"H200"``, ``"A100"``), of several that begin so the first
    of `torchledger devices`, or by other words of it that no other has (``"4090"``). What a shipped model has not
    learned is transferred too. Raises ``PredictError`` naming the nearest for a name that nothing has, and all for one
    that several have.
    """
    path = Path(device_or_path)
    if path.suffix in _SHEET_SUFFIXES:
        sheets = read_data_sheets(path)
        if len(sheets) != 1:
            names = ", ".join(sheet.names[0] for sheet in sheets)
            raise PredictError(f"{path} holds {len(sheets)} data sheets ({names}). Put the one to ask in its own file.")
        own = sheets[0]
        return transfer_model(nearest_model(own.device), own.device, own.reached)
    if path.suffix == SUFFIX or (path.exists() and not path.is_dir()):
        return load_model(path)
    name = _find_name(str(device_or_path))
    shipped = _shipped().get(plain_name(name))
    if shipped is not None:
        model = _load_shipped(shipped)
        return model if _is_whole(model) else _filled(model)
    sheet = find_data_sheet(name)
    assert sheet is not None
    return transfer_model(nearest_model(sheet.device), sheet.device)


def nearest_model(device: Device) -> TimeModel:
    """The shipped model from which to start for a device: of its generation if there is one, and of those the one
    whose ratio of products to memory bandwidth is most like its own. A device's own model is not taken.

    Raises ``PredictError`` if none comes with torchledger.
    """
    candidates = [model for model in _whole_models() if plain_name(model.device) != plain_name(device.name)]
    if not candidates:
        raise PredictError("no model to start from comes with this torchledger. Fit one with `torchledger fit`.")
    return min(candidates, key=lambda model: _distance(model.machine.device, device))


def known_devices() -> list[KnownDevice]:
    """What `torchledger devices` lists: shipped models first, then data sheets."""
    found = []
    for path in sorted(_shipped().values(), key=lambda path: path.stem):
        model = _load_shipped(path)
        found.append(
            KnownDevice(
                name=model.device,
                source=model.source or "measured",
                rows=model.n_rows,
                operators_error_pct=model.operators_error_pct,
                made_utc=model.created_utc or None,
            )
        )
    own = {plain_name(one.name) for one in found}
    for sheet in data_sheets():
        if not own & {plain_name(name) for name in sheet.names}:
            found.append(KnownDevice(sheet.device.name, f"data sheet ({sheet.source})", 0, None, None))
    return found


def _shipped() -> dict[str, Path]:
    return {plain_name(path.stem): path for path in SHIPPED.glob(f"*{SUFFIX}")}


def _load_shipped(path: Path) -> TimeModel:
    return _load_once(path, path.stat().st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _load_once(path: Path, modified_ns: int) -> TimeModel:
    """A model is asked for anew by each prediction of a program that makes many."""
    return _with_memory(load_model(path))


def _with_memory(model: TimeModel) -> TimeModel:
    """The model with the memory that its device's sheet says: models learned of data that knew the device's name, and
    what makers print beside it is less than programs are told there is."""
    sheet = find_data_sheet(model.device)
    if sheet is None or (memory := sheet.device.total_memory_bytes) is None:
        return model
    machine = replace(model.machine, device=replace(model.machine.device, total_memory_bytes=memory))
    return replace(model, machine=machine, total_memory_bytes=memory)


def _whole_models() -> Iterator[TimeModel]:
    for path in sorted(_shipped().values()):
        model = _load_shipped(path)
        if _is_whole(model):
            yield model


def _is_whole(model: TimeModel) -> bool:
    """Whether its device's compiled kernels taught it; entries that were carried over have no rows."""
    return any(key.startswith(_WHOLE) and rows_of(model, key) for key in model.entries)


def _filled(model: TimeModel) -> TimeModel:
    """A model of some operators with the entries that it lacks, transferred from the nearest that has them."""
    rest = transfer_model(nearest_model(model.machine.device), model.machine.device)
    # Neither's entries are read before they are asked for.
    entries = ChainMap(dict[str, Entry](), cast(Any, model.entries), cast(Any, rest.entries))
    return replace(model, entries=entries, extras={**rest.extras, **model.extras})


def _distance(one: Device, other: Device) -> tuple[bool, float]:
    same = one.compute_capability is not None and one.compute_capability == other.compute_capability
    ratios = [_ratio(one), _ratio(other)]
    known = [ratio for ratio in ratios if ratio is not None]
    return not same, abs(math.log(known[0] / known[1])) if len(known) == 2 else math.inf


def _ratio(device: Device) -> float | None:
    """FLOP of half precision for a byte of memory traffic."""
    sheet: DataSheet | None = find_data_sheet(device.name)
    ceilings = sheet.device.ceilings if sheet is not None else device.ceilings
    if ceilings is None or not ceilings.copy_gb_per_s:
        return None
    half = next((ceilings.tflops_per_s[one] for one in HALF_PRECISION if one in ceilings.tflops_per_s), None)
    return None if half is None else half * 1e3 / ceilings.copy_gb_per_s


def _find_name(text: str) -> str:
    """The known name that is or begins with the text, or the only one with words that do."""
    names = [path.stem for path in sorted(_shipped().values())]
    names += [name for sheet in data_sheets() for name in sheet.names]
    wanted = plain_name(text)
    for fits in (str.__eq__, str.startswith):
        for name in names:
            if wanted and fits(plain_name(name), wanted):
                return name
    inside = {_device_of(name): name for name in names if wanted and _has_words(name, wanted)}
    if len(inside) == 1:
        return next(iter(inside.values()))
    if inside:
        raise PredictError(f"{text!r} may be any of {', '.join(inside)}. Say which.")
    spelled = {plain_name(name): name.replace("_", " ") for name in names}
    nearest = [spelled[key] for key in difflib.get_close_matches(wanted, spelled, n=3, cutoff=0.3)]
    nearest = nearest or sorted(path.stem.replace("_", " ") for path in _shipped().values())
    raise PredictError(
        f"no device is called {text!r}; the nearest known {'are' if len(nearest) > 1 else 'is'} "
        f"{', '.join(nearest)} (`torchledger devices` lists them). Pass a model file, a data sheet as YAML, or make a "
        "model with `torchledger calibrate`."
    )


def _device_of(name: str) -> str:
    sheet = find_data_sheet(name)
    return name.replace("_", " ") if sheet is None else sheet.device.name


def _has_words(name: str, wanted: str) -> bool:
    """Whether the text begins where a word of the name does: a "4090" is one, and an "X" none for its "SXM4"."""
    words = re.findall("[a-z0-9]+", name.lower())
    return any("".join(words[place:]).startswith(wanted) for place in range(1, len(words)))
