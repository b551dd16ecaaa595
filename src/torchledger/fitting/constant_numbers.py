"""Numbers of a device's constants by their place, and the constants of one device as they are on another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torchledger.expecting.attention_schedules import rescaled_kernel
from torchledger.expecting.attention_times import rescaled
from torchledger.expecting.constants import Constants, Reference

Place = tuple[str, ...]
"""Where a number stands in ``Constants``: names of fields and keys."""


def rescaled_constants(base: Constants, reference: Reference) -> Constants:
    """The base's constants as they are on the device of ``reference``."""
    per_multiprocessor = _ratio(base.reference.half_flops_per_us, reference.half_flops_per_us, base, reference)
    single = _ratio(base.reference.single_flops_per_us, reference.single_flops_per_us, base, reference)
    slower_memory = base.reference.bytes_per_us / reference.bytes_per_us
    values: dict[Place, float] = {}
    libraries: list[Place] = [
        ("products", name) for name in ("aligned_16", "aligned_4", "aligned_2", "single_precision")
    ]
    libraries += [("convolutions", name) for name in ("forward", "of_image", "of_weight")]
    for where in libraries:
        by = single if where[1] == "single_precision" else per_multiprocessor
        for cost in ("step", "step_area", "step_side", "part_step"):
            values[(*where, cost)] = number_at(base, (*where, cost)) * by
        values[(*where, "byte")] = number_at(base, (*where, "byte")) * slower_memory
    values["products", "vector_byte"] = base.products.vector_byte * slower_memory
    for cost in ("change_in_byte", "change_out_byte", "pad_byte"):
        values["convolutions", cost] = number_at(base, ("convolutions", cost)) * slower_memory
    for layout in ("depthwise_last", "depthwise_first"):
        for direction in ("forward", "backward"):
            path = ("convolutions", layout, direction, "byte")
            values[path] = number_at(base, path) * slower_memory
    attention = {
        kind: rescaled(costs, single if kind.endswith("float32") else per_multiprocessor, slower_memory)
        for kind, costs in (base.attention or {}).items()
    }
    kernels = {
        kind: rescaled_kernel(costs, single if "/float32/" in kind else per_multiprocessor, slower_memory)
        for kind, costs in (base.attention_kernels or {}).items()
    }
    return replace(
        with_numbers(base, values),
        reference=reference,
        attention=attention or None,
        attention_kernels=kernels or None,
        power=base.power if base.reference.is_like(reference.device) else None,
    )


def _ratio(fitted: float, here: float, base: Constants, reference: Reference) -> float:
    """By how much one multiprocessor is slower than one of the base's device."""
    ours = reference.device.num_multiprocessors or 1
    return fitted / (base.reference.device.num_multiprocessors or ours) / (here / ours)


def number_at(record: Any, path: Place) -> float:
    for name in path:
        if isinstance(record, Mapping):
            record = record[name]
        elif isinstance(record, tuple):
            record = record[int(name)]
        elif record is not None:
            record = getattr(record, name)
    return float(record or 0.0)


def with_numbers(constants: Constants, values: Mapping[Place, float]) -> Constants:
    for path, value in values.items():
        constants = _with_number(constants, path, value)
    return constants


def _with_number(record: Any, path: Place, value: float) -> Any:
    if not path:
        return value
    name, rest = path[0], path[1:]
    if isinstance(record, Mapping):
        return {**record, name: _with_number(record[name], rest, value)}
    if isinstance(record, tuple):
        return tuple(
            _with_number(item, rest, value) if place == int(name) else item for place, item in enumerate(record)
        )
    return replace(record, **{name: _with_number(getattr(record, name), rest, value)})
