"""Fitting the constants of a device's baselines to measurements: what ``constants.py`` writes and the formulas read.

A group of constants is fitted to the rows that it decides: least squares of logarithms, far rows counting less,
beginning with the constants of another device, to which those keep that the rows say nothing of. Rows of an eighth of
the shapes (programs, for fused kernels) are held out; a group that errs more on them than the one it began with is not
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import FitError
from torchledger.expecting.constants import Constants, KernelConstants, Reference
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.launch_costs import FOLDS, time_of_parts
from torchledger.expecting.launch_features import LaunchFeatures, features_of_launches
from torchledger.expecting.machine import Machine, estimate_machine
from torchledger.expecting.product_network import LAYOUTS, product_class
from torchledger.expecting.product_times import product_times
from torchledger.fitting.constant_numbers import Place, number_at, rescaled_constants, with_numbers
from torchledger.fitting.constants_data import PARAMETERS, Convolutions, Measurements, Products
from torchledger.fitting.launches import machine_of_launches
from torchledger.fitting.power_costs import fit_power
from torchledger.nouns import Device
from torchledger.store.launch_file import MeasuredLaunch
from torchledger.work.flops import matmul_flops

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

HELD_OUT = 0.125
_MOST_ROWS = 3000
_FEWEST_ROWS = 60
_LARGEST = 0.1
"""Share of the products that are large enough to reach a device's rates."""
_FAR = 0.05
_PULL = 0.03
"""How strongly a constant keeps to where it began, in the residual of one row in a hundred."""
_FARTHEST = 3.0
"""Logarithm of how far a constant may go from where it began."""

_COSTS = (
    *("launch", "start", "start_area", "step", "step_area", "step_side", "part", "part_area", "part_step", "byte"),
    *("reduce", "reduce_element", "reduce_more"),
)
_KERNEL_NUMBERS = (
    *("loaded_bytes", "scattered_bytes", "near_bytes", "gathered_bytes", "move", "divide", "unchanging"),
    *("turn_us", "turn_of_load_us", "row_turn_us", "row_atomic_us", "scattered_atomic_us", "crowded_atomic_us"),
    *("lone", "power", "floors"),
)


@dataclass(frozen=True)
class GroupFit:
    """One group of constants: rows that it was fitted to and that were held out, and the mean error in per cent on the
    latter, before and after. ``is_taken`` says which of the two stands now."""

    group: str
    rows: int
    held_out: int
    before_pct: float
    after_pct: float

    @property
    def is_taken(self) -> bool:
        """Whether the new numbers err less."""
        return self.after_pct < self.before_pct


@dataclass
class _Fitting:
    """Constants on their way: each group is fitted with those before it in place."""

    constants: Constants
    machine: Machine
    groups: list[GroupFit] = field(default_factory=list)

    def fit(
        self,
        group: str,
        paths: Sequence[Place],
        predict: Callable[[Machine, NDArray[np.int64]], Array],
        time_us: Array,
        rows: Mask,
        held: Mask,
    ) -> None:
        """Fit the numbers at some paths to rows; ``predict`` answers rows by their numbers."""
        from scipy.optimize import least_squares

        train, test = np.flatnonzero(rows & ~held), np.flatnonzero(rows & held)
        began = {path: value for path in paths if (value := number_at(self.constants, path)) > 0}
        if len(train) < _FEWEST_ROWS or len(test) < _FEWEST_ROWS // 10 or not began:
            return
        draw = np.random.default_rng(0)
        some = np.sort(draw.permutation(train)[:_MOST_ROWS])
        pull = _PULL * np.sqrt(len(some) / 100)

        def at(logarithms: Array) -> Constants:
            values = {
                path: value * float(np.exp(by)) for (path, value), by in zip(began.items(), logarithms, strict=True)
            }
            return with_numbers(self.constants, values)

        def away(logarithms: Array) -> Array:
            said = predict(replace(self.machine, own_constants=at(logarithms)), some)
            return np.concatenate([np.log(said / time_us[some]), pull * logarithms])

        found = least_squares(
            away, np.zeros(len(began)), bounds=(-_FARTHEST, _FARTHEST), loss="soft_l1", f_scale=_FAR,
            x_scale=0.3, diff_step=1e-2, max_nfev=40,
        )  # fmt: skip
        new = at(found.x)
        errors = [
            float(100 * np.mean(np.abs(predict(replace(self.machine, own_constants=one), test) / time_us[test] - 1)))
            for one in (self.constants, new)
        ]
        result = GroupFit(group, len(train), len(test), *errors)
        self.groups.append(result)
        if result.is_taken:
            self.constants = new


def fit_constants(
    data: Measurements, base: Constants, *, name: str, progress: Callable[[int, int, str], None] | None = None
) -> tuple[Constants, list[GroupFit]]:
    """Constants of a device out of its measurements; what they say nothing of is taken from ``base``.

    Raises ``FitError`` if the device's multiprocessors are unknown or nothing was measured that constants follow from.
    """
    if data.device.num_multiprocessors is None:
        raise FitError(
            f"the multiprocessors of {data.device.name} are unknown: the data do not hold the device's record, and no "
            "data sheet has its name. Measure with this version of torchledger, which keeps the record."
        )
    if data.has_times:
        made, groups = _fit_times(data, base, progress)
    elif data.power is not None and base.reference.is_like(data.device):
        made, groups = base, []
    elif data.power is not None:
        raise FitError(
            f"what kernels draw on {data.device.name} makes no constants alone: give its products, convolutions "
            "and fused kernels, too, or its constants with --base."
        )
    else:
        raise FitError(_TOO_FEW)
    made_of = {"all else": f"as in {base.name}"}
    for item in groups:
        if item.is_taken:
            error = f"held-out error {item.after_pct:.1f} %"
            made_of[item.group] = f"fitted to {item.rows:,} rows of {data.device.name}, {error}"
    if data.power is not None:
        made = replace(made, power=fit_power(data.power))
        made_of["power"] = f"what {len(data.power.rows)} kinds and mixtures of kernels drew on {data.device.name}"
    return replace(made, name=name, made_of=made_of), groups


_TOO_FEW = "the data hold too few products, convolutions and fused kernels to fit constants to."


def _fit_times(
    data: Measurements, base: Constants, progress: Callable[[int, int, str], None] | None
) -> tuple[Constants, list[GroupFit]]:
    """The constants that times follow from."""
    machine = _machine_of(data, base.reference)
    reference = Reference(machine.device, machine.peak("bfloat16"), machine.peak("float32"), machine.bytes_per_us)
    # The base's times scale with the rates of this device; from here on they are counted on it.
    work = _Fitting(rescaled_constants(base, reference), machine)
    sections: list[tuple[str, Callable[[], None]]] = []
    if data.products is not None:
        sections.append(("products", partial(_fit_products, work, data.products)))
    if data.convolutions is not None:
        sections.append(("convolutions", partial(_fit_convolutions, work, data.convolutions)))
    if data.launches:
        sections.append(("fused kernels", partial(_fit_kernels, work, data.launches)))
    for done, (section, fit_section) in enumerate(sections):
        if progress is not None:
            progress(done, len(sections), section)
        fit_section()
    if not work.groups:
        raise FitError(_TOO_FEW)
    return work.constants, work.groups


# --- products --------------------------------------------------------------------------------------------------------


def _fit_products(work: _Fitting, data: Products) -> None:
    kinds = np.zeros(len(data.time_us), dtype=np.int64)
    for place, layout in enumerate(LAYOUTS):
        some = data.layout == place
        own = tuple(side[some] for side in data.sides)
        kinds[some] = product_class(layout, own, data.item_size[some])
    row_bytes = np.select([kinds == 2, kinds == 4], [2.0, 4.0], 16.0)
    held = _held_out([data.layout, *data.sides, data.item_size])
    is_vector = (data.sides[1] == 1) | (data.sides[2] == 1)

    def predict(machine: Machine, rows: NDArray[np.int64]) -> Array:
        peak = _peaks(machine, data.item_size[rows])
        own = tuple(side[rows] for side in data.sides)
        return np.minimum(*product_times(own, row_bytes[rows], data.item_size[rows], peak, machine))  # type: ignore[arg-type]

    for kind, name in ((16, "aligned_16"), (4, "aligned_4"), (2, "aligned_2"), (0, "single_precision")):
        paths = [("products", name, cost) for cost in _COSTS]
        rows = (kinds == kind) & ~is_vector
        work.fit(f"products {name}", paths, predict, data.time_us, rows, held)
    of_vectors: list[Place] = [("products", "vector_launch"), ("products", "vector_byte")]
    work.fit("products with a vector", of_vectors, predict, data.time_us, is_vector, held)


# --- convolutions ----------------------------------------------------------------------------------------------------


def _fit_convolutions(work: _Fitting, data: Convolutions) -> None:
    p = data.parameters
    held = _held_out([*(p[name] for name in PARAMETERS), data.item_size])
    inside = p["c_in"] / p["groups"]
    is_last = p["channels_last"] > 0
    is_depthwise = (p["groups"] == p["c_in"]) & (p["groups"] > 1)
    is_product = (p["kernel"] == 1) & (p["stride"] == 1) & (p["groups"] == 1)
    is_grouped = (p["groups"] > 1) & ~is_depthwise
    is_few = (p["groups"] == 1) & (inside <= 4) & ~is_product
    is_filter = (p["groups"] == 1) & ~is_few & ~is_product

    def predict(machine: Machine, rows: NDArray[np.int64]) -> Array:
        said = np.empty(len(rows))
        for direction in np.unique(data.direction[rows]):
            some = data.direction[rows] == direction
            own = {name: column[rows[some]] for name, column in p.items()}
            size = data.item_size[rows[some]]
            said[some] = convolution_times(own, str(direction), size, _peaks(machine, size), machine)["expected"]
        return said

    def fit(group: str, numbers: Sequence[Place], rows: Mask) -> None:
        paths = [("convolutions", *number) for number in numbers]
        work.fit(f"convolutions {group}", paths, predict, data.time_us, rows, held)

    changes: list[Place] = [
        ("change_launches",),
        ("change_in_byte",),
        ("change_out_byte",),
        ("pad_launches",),
        ("pad_byte",),
    ]
    is_forward, is_backward = data.direction == "forward", data.direction != "forward"
    fit("forward", [*(("forward", cost) for cost in _COSTS[:10]), *changes], is_filter & is_forward)
    for one, name in (("image", "of_image"), ("weight", "of_weight")):
        rows = is_filter & ((data.direction == one) | (data.direction == "backward"))
        fit(one, [(name, cost) for cost in _COSTS], rows)
    numbers = ("launch", "multiply", "row", "byte", "position", "tap", "strided")
    for measured, of_direction in (("forward", is_forward), ("backward", is_backward)):
        for layout, of_layout in (("last", is_last), ("first", ~is_last)):
            where = f"depthwise_{layout}"
            paths: list[Place] = [(where, measured, number) for number in numbers]
            if layout == "last":
                paths += [(where, measured, "widest", place) for place in ("0", "1")]
            fit(f"depthwise, channels {layout}, {measured}", paths, is_depthwise & of_direction & of_layout)
            paths = [(f"few_{layout}", measured, number) for number in ("launch", "multiply", "byte")]
            fit(f"few channels, {layout}, {measured}", paths, is_few & of_direction & of_layout)
        paths = [("grouped", measured, number) for number in ("launch", "multiply", "byte")]
        fit(f"grouped, {measured}", paths, is_grouped & of_direction)


# --- fused kernels ---------------------------------------------------------------------------------------------------


def _fit_kernels(work: _Fitting, launches: Sequence[MeasuredLaunch]) -> None:
    parts, time_us, programs = _parts_of_launches(work, launches)
    if not len(time_us):
        return
    began, floor_us = work.constants.kernels, work.machine.floor_us
    held = _held_out([np.unique(programs, return_inverse=True)[1].ravel()])

    def predict(machine: Machine, rows: NDArray[np.int64]) -> Array:
        own = {name: column[rows] for name, column in parts.items()}
        return time_of_parts(_scaled_parts(own, began, machine.constants.kernels), machine.constants.kernels, floor_us)

    paths: list[Place] = [("kernels", number) for number in _KERNEL_NUMBERS]
    paths += [("kernels", "folded", kind) for kind in FOLDS]
    work.fit("fused kernels", paths, predict, time_us, np.full(len(time_us), True), held)


def _parts_of_launches(
    work: _Fitting, launches: Sequence[MeasuredLaunch]
) -> tuple[dict[str, Array], Array, NDArray[np.str_]]:
    """Microseconds of the parts of the measured fused kernels, those apart that are two constants' (``"turn of load"``,
    ``"unchanging"``), with times and programs."""
    records = [item.launch for item in launches]
    kernels = work.constants.kernels

    def described(**changes: float) -> list[LaunchFeatures | None]:
        own = replace(work.constants, kernels=replace(kernels, **changes))  # type: ignore[arg-type]
        return features_of_launches(records, replace(work.machine, own_constants=own))

    whole, without_loads, without_rest = described(), described(turn_of_load_us=0.0), described(unchanging=0.0)
    kept = [
        place
        for place, (item, features) in enumerate(zip(launches, whole, strict=True))
        if features is not None and features.parts_us is not None and (item.duration_us or 0) > 0
    ]

    def column(found: list[LaunchFeatures | None], name: str) -> Array:
        return np.array([found[place].parts_us[name] for place in kept])  # type: ignore[union-attr,index]

    names = whole[kept[0]].parts_us if kept else {}  # type: ignore[union-attr]
    parts = {name: column(whole, name) for name in names or {}}
    if kept:
        parts["turn of load"] = parts["turn"] - column(without_loads, "turn")
        parts["turn"] = parts["turn"] - parts["turn of load"]
        parts["unchanging"] = parts["vector"] - column(without_rest, "vector")
        parts["vector"] = parts["vector"] - parts["unchanging"]
    times = np.array([launches[place].duration_us for place in kept], dtype=np.float64)
    return parts, times, np.array([launches[place].program for place in kept])


_RATES = {"load": "loaded_bytes", "store": "scattered_bytes", "near": "near_bytes", "gather": "gathered_bytes"}
_COSTS_OF_PARTS = {
    "lone": "lone",
    "move": "move",
    "divide": "divide",
    "unchanging": "unchanging",
    "turn": "turn_us",
    "turn of load": "turn_of_load_us",
    "row turn": "row_turn_us",
    "row atomic": "row_atomic_us",
    "scattered atomic": "scattered_atomic_us",
    "crowded atomic": "crowded_atomic_us",
}


def _scaled_parts(parts: Mapping[str, Array], began: KernelConstants, now: KernelConstants) -> dict[str, Array]:
    """The parts with other constants: each is in proportion to one of them."""
    scaled = dict(parts)
    for part, number in _RATES.items():
        scaled[part] = parts[part] * (getattr(began, number) / getattr(now, number))
    for part, number in _COSTS_OF_PARTS.items():
        scaled[part] = parts[part] * (getattr(now, number) / getattr(began, number))
    for kind in FOLDS:
        scaled[f"fold {kind}"] = parts[f"fold {kind}"] * (began.folded[kind] / now.folded[kind])
    scaled["turn"] = scaled["turn"] + scaled.pop("turn of load")
    scaled["vector"] = scaled["vector"] + scaled.pop("unchanging")
    return scaled


# --- the device ------------------------------------------------------------------------------------------------------


def _machine_of(data: Measurements, base: Reference) -> Machine:
    """The device's scales: those of the base where it is the same device, else what its own largest products, or
    launches, reached. The launch floor is the least of all."""
    machines = []
    if data.launches:
        machines.append(machine_of_launches(data.device, data.launches))
    if data.products is not None:
        batch, m, n, k = data.products.sides
        flops = matmul_flops(m, k, n, batch)
        large = flops >= np.quantile(flops, 1 - _LARGEST)
        machines.append(
            estimate_machine(
                data.device,
                dtype=np.where(data.products.item_size >= 4, "float32", "bfloat16")[large],
                flops=flops[large],
                bytes_moved=(batch * (m * k + k * n + m * n) * data.products.item_size)[large],
                times_us=data.products.time_us[large],
            )
        )
    floors = [
        float(np.quantile(some.time_us, 0.002)) for some in (data.products, data.convolutions) if some is not None
    ]
    floors += [one.floor_us for one in machines[:1] if data.launches]
    if _is_same(data.device, base.device):
        rates = {"bfloat16": base.half_flops_per_us, "float16": base.half_flops_per_us}
        rates["float32"] = base.single_flops_per_us
        return Machine(base.device, rates, base.bytes_per_us, min(floors))
    if not machines:
        raise FitError("the data hold neither products nor launches, by which a device's rates are known.")
    rates = {name: rate for machine in machines for name, rate in machine.flops_per_us.items()}
    return Machine(data.device, rates, max(machine.bytes_per_us for machine in machines), min(floors))


def _is_same(one: Device, other: Device) -> bool:
    """Whether two records are of devices of one kind."""
    return (one.name, one.num_multiprocessors, one.clock_rate_mhz) == (
        other.name,
        other.num_multiprocessors,
        other.clock_rate_mhz,
    )


def _peaks(machine: Machine, item_size: Array) -> Array:
    return np.where(item_size >= 4, machine.peak("float32"), machine.peak("bfloat16"))


def _held_out(columns: Sequence[Any]) -> Mask:
    """Which rows are held out: all those of an eighth of what ``columns`` tell apart."""
    _, shape = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return np.asarray((np.random.default_rng(0).random(shape.max() + 1) < HELD_OUT)[shape.ravel()])
