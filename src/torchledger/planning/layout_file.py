"""A model's sizes and the choices of layouts as a YAML file, and the ranked table of it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torchledger.errors import PredictError
from torchledger.nouns import Fabric, Layout, PricedLayout
from torchledger.planning.device_memory import memory_of
from torchledger.planning.fabric import find_fabric
from torchledger.planning.layouts import Progress, find_layouts, price_layouts
from torchledger.planning.prices import ModelPrices
from torchledger.planning.schedules import SCHEDULES
from torchledger.planning.transformer import Transformer
from torchledger.predicting.devices import find_model
from torchledger.store.yaml_file import YamlError, read_yaml
from torchledger.work.element_sizes import ELEMENT_SIZES

_TYPES: Mapping[str, tuple[type, ...]] = {"int": (int,), "bool": (bool,), "str": (str,), "float": (int, float)}

_AXES: Mapping[str, tuple[str, type]] = {
    "schedules": ("schedule", str),
    "micro_batches": ("micro_batch", int),
    "recomputations": ("recomputation", str),
    "zeros": ("zero", int),
}
"""What a file may give choices of, and the field of a layout that each is."""

CHOICES = tuple(_AXES)

_WORDS: Mapping[str, tuple[str, ...]] = {
    "norm": ("rms", "layer"),
    "attention": ("flash", "unfused"),
    "dtype": tuple(ELEMENT_SIZES),
    "schedule": SCHEDULES,
    "recomputation": ("none", "attention", "full"),
}

_USUAL_RANGE = (1, 2**31)
_RANGES: Mapping[str, tuple[int, int]] = {
    "layers": (1, 1_000),
    "head_layers": (0, 1_000),
    "kv_heads": (0, 2**31),
    "gradient_bytes": (0, 64),
    "spare_gradient_bytes": (0, 64),
    "optimizer_bytes": (0, 1_024),
    "zero": (0, 3),
    "stages_per_rank": (1, 1_000),
}

_MOST_CHOICES, _MOST_LAYOUTS = 64, 500
"""Pricing a layout takes some ten milliseconds."""

_LONGEST_SHOWN = 60


@dataclass(frozen=True)
class LayoutFile:
    """What a file asks: a model, the choices of each axis that it names, or the very layouts."""

    model: Transformer
    choices: Mapping[str, Any]
    layouts: tuple[Layout, ...] = ()


def plan_layouts(
    path: str | os.PathLike[str],
    *,
    world: int,
    device: str = "H200",
    fabric: str | None = None,
    ranks_per_node: int | None = None,
    progress: Progress = lambda done, total, what: None,
) -> list[PricedLayout]:
    """The layouts of a file over ``world`` ranks of a device, the quickest first; those that do not fit stand last.

    ``fabric`` is of ``find_fabric`` (``None``: nodes of the device); ``progress`` is told of each layout in turn.
    Raises ``PredictError`` for a file, a device, a fabric or a world that cannot be, with the nearest that can.
    """
    asked = read_layout_file(path)
    model = find_model(device)
    found: Fabric | None = None
    if world > 1:
        found = find_fabric(fabric, device=model.device, ranks_per_node=ranks_per_node)
    per_node = ranks_per_node or (found.ranks_per_node if found is not None else 1)
    layouts = asked.layouts
    if not layouts:
        layouts = tuple(find_layouts(asked.model, world, ranks_per_node=per_node, **asked.choices))
    for layout in layouts:
        if layout.world_size != world:
            raise PredictError(
                f"{path}: dp={layout.dp} tp={layout.tp} pp={layout.pp} cp={layout.cp} are {layout.world_size} ranks, "
                f"not {world}; dp={max(1, world // (layout.tp * layout.pp * layout.cp))} fills them."
            )
    prices = ModelPrices(model, asked.model.dtype)
    return price_layouts(asked.model, layouts, prices, found, memory_bytes=memory_of(model), progress=progress)


def read_layout_file(path: str | os.PathLike[str]) -> LayoutFile:
    """A YAML file: ``model`` holds sizes, and beside it stand choices (``micro_batches: [1, 2]``) or ``layouts``.

    Raises ``PredictError`` naming a key that is unknown, with the nearest known, and what is missing.
    """
    path = Path(path)
    try:
        content = read_yaml(path).content
    except YamlError as error:
        raise PredictError(f"cannot read the layouts: {error}") from error
    if not isinstance(content.get("model"), dict):
        raise PredictError(f"{path} holds no `model:` with its sizes, such as layers, hidden, heads and ffn.")
    _check_keys(path, content, ("model", "layouts", *CHOICES))
    model = _record(path, Transformer, content["model"])
    choices = {}
    for key in CHOICES:
        if key in content:
            value = content[key]
            choices[key] = tuple(_choices(path, key, value if isinstance(value, list) else [value]))
    given = content.get("layouts") or []
    if not isinstance(given, list) or not all(isinstance(each, dict) for each in given):
        raise PredictError(f"{path}: `layouts` must be a list of axes, such as - {{dp: 8, tp: 8}}.")
    if len(given) > _MOST_LAYOUTS:
        raise PredictError(f"{path}: it names {len(given):,} layouts; {_MOST_LAYOUTS} are the most at once.")
    return LayoutFile(model, choices, tuple(_record(path, Layout, each) for each in given))


def _record(path: Path, kind: type[Any], values: Mapping[str, Any]) -> Any:
    known = [field.name for field in fields(kind)]
    _check_keys(path, values, known)
    for field in fields(kind):
        if field.name not in values:
            continue
        value = values[field.name]
        if type(value) not in _TYPES[str(field.type)]:
            raise PredictError(f"{path}: {field.name}={_shown(value)} must be of type {field.type}.")
        _check_value(path, field.name, value)
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).partition("argument")[2].strip(": s") or str(error)
        raise PredictError(f"{path}: the sizes of the model lack {missing}.") from error


def _choices(path: Path, key: str, values: list[Any]) -> Iterator[Any]:
    """The values of one axis, each once."""
    if len(values) > _MOST_CHOICES:
        raise PredictError(f"{path}: {key} names {len(values):,} choices; {_MOST_CHOICES} are the most.")
    name, kind = _AXES[key]
    for value in values:
        if type(value) is not kind:
            raise PredictError(f"{path}: {key} holds {_shown(value)}, which must be of type {kind.__name__}.")
        _check_value(path, name, value)
    yield from dict.fromkeys(values)


def _check_value(path: Path, name: str, value: Any) -> None:
    """Raise ``PredictError`` for a word that is none of a field's, or a number that no model and no layout has."""
    if isinstance(value, str):
        if value not in _WORDS[name]:
            near = difflib.get_close_matches(value[:_LONGEST_SHOWN], _WORDS[name], n=1)
            hint = f"nearest: {near[0]}" if near else f"there are {', '.join(_WORDS[name])}"
            raise PredictError(f"{path}: {name}={_shown(value)} is unknown; {hint}.")
        return
    least, most = _RANGES.get(name, _USUAL_RANGE)
    if not least <= value <= most:
        raise PredictError(f"{path}: {name}={_shown(value)} must be {least:,} to {most:,}.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


def _check_keys(path: Path, values: Mapping[Any, Any], known: tuple[str, ...] | list[str]) -> None:
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"nearest: {near[0]}" if near else f"there are {', '.join(known)}"
            raise PredictError(f"{path}: {str(key)!r} is unknown; {hint}.")
