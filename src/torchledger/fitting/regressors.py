"""The regressors that a model file holds, as arrays: asked with numpy alone.

Three kinds are blended: boosted regression trees, which follow steps, a Gaussian process with a linear trend, which is
smooth inside the data and keeps a slope outside, and, where rows are many, a few networks. ``fitting.learning`` makes
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from torchledger.expecting.trees import MAX_LEAVES, TreeEnsemble

Array = NDArray[np.float64]

EDGE = 0.02
"""A question that leaves the measured range by less (2 %, in logarithms) is answered as one inside it."""

_CHUNK = 2048
_PAIRS = 1 << 15
"""Rows times points at once in a kernel, which stay in the processor's cache."""
_NEVER_VARIED = 1e-8
"""Deviations up to this are those of a constant column, to which a fit adds 1e-9."""
_NEVER_VARIED_OF_NETWORKS = 1e-5
FARTHEST_OF_NETWORKS = 4.0
"""Standard deviations, beyond which a feature says no more to networks."""


@dataclass(frozen=True)
class GaussianProcess:
    """The mean of a Gaussian process: Matern-5/2 with one length per feature, plus a linear trend.

    ``points`` [inducing, features] and ``weights`` come from a fit to all rows through these points; features are first
    shifted by ``center`` and divided by ``scale``.
    """

    center: Array
    scale: Array
    inverse_lengths: Array
    points: NDArray[np.float32]
    weights: NDArray[np.float32]
    slope: Array
    offset: float

    def predict(self, rows: Array) -> Array:
        """One number per row of [rows, features]."""
        return np.concatenate([self._chunk(rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)])

    @cached_property
    def _of_shifted(self) -> tuple[Array, Array]:
        """What a shifted feature is multiplied by: for distances and for the trend."""
        # A feature that never varied in the fit taught nothing: another value of it later must change nothing.
        inverse_scale = np.where(self.scale > _NEVER_VARIED, 1.0 / self.scale, 0.0)
        return inverse_scale * self.inverse_lengths, inverse_scale * self.slope

    def _chunk(self, rows: Array) -> Array:
        nearness, trend = self._of_shifted
        shifted = rows - self.center
        near = np.multiply(shifted, nearness, out=np.empty_like(shifted, np.float32), casting="same_kind")
        return np.asarray(matern(near, self.points) @ self.weights + shifted @ trend + self.offset)


def matern(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    """The Matern-5/2 kernel between rows that are already divided by their lengths."""
    number = left.dtype.type
    kernel: NDArray[np.float32] = left @ right.T
    of_left = (number(5.0) * np.einsum("ij,ij->i", left, left))[:, None]
    of_right = number(5.0) * np.einsum("ij,ij->i", right, right)
    step = max(_PAIRS // max(len(right), 1), 1)
    room = np.empty((min(step, len(left)), len(right)), left.dtype)
    # By a number alone, instead of as many zeros as there are values, the larger one is found four times as slowly.
    zeros = np.zeros_like(room)
    # A dozen passes over some rows each, which stay in the processor's cache meanwhile.
    for start in range(0, len(left), step):
        squared = kernel[start : start + step]
        distance = room[: len(squared)]
        squared *= number(-10.0)
        squared += of_left[start : start + step]
        squared += of_right
        np.maximum(squared, zeros[: len(squared)], out=squared)
        np.sqrt(squared, out=distance)
        squared *= number(1.0 / 3.0)
        squared += distance
        squared += number(1.0)
        np.negative(distance, out=distance)
        np.exp(distance, out=distance)
        squared *= distance
    return kernel


@dataclass(frozen=True)
class NetworkEnsemble:
    """The mean of a few networks of three layers with max(x, 0) behind each, and one output.

    Features are shifted by ``center``, divided by ``scale`` and say no more beyond four of it. Weights are [networks,
    in, out], biases [networks, out]; ``last`` is [networks, in].
    """

    center: NDArray[np.float32]
    scale: NDArray[np.float32]
    first: NDArray[np.float16]
    first_bias: NDArray[np.float32]
    second: NDArray[np.float16]
    second_bias: NDArray[np.float32]
    third: NDArray[np.float16]
    third_bias: NDArray[np.float32]
    last: NDArray[np.float16]
    last_bias: NDArray[np.float32]

    def predict(self, rows: Array) -> Array:
        """One number per row of [rows, features]."""
        return np.concatenate([self._chunk(rows[start : start + _CHUNK]) for start in range(0, len(rows), _CHUNK)])

    @cached_property
    def _layers(self) -> list[list[tuple[NDArray[np.float32], NDArray[np.float32]]]]:
        """Weights and biases by network."""
        weights = (self.first, self.second, self.third, self.last[:, :, None])
        biases = (self.first_bias, self.second_bias, self.third_bias, self.last_bias[:, None])
        layers = [(weight.astype(np.float32), bias) for weight, bias in zip(weights, biases, strict=True)]
        return [[(weight[number], bias[number]) for weight, bias in layers] for number in range(len(self.last_bias))]

    def _chunk(self, rows: Array) -> Array:
        given, said = as_networks_see(rows, self.center, self.scale), np.zeros(len(rows))
        for layers in self._layers:
            value = given
            for place, (weight, bias) in enumerate(layers):
                value = value @ weight + bias
                if place < len(layers) - 1:
                    np.maximum(value, np.float32(0.0), out=value)
            said += value[:, 0]
        return said / len(self._layers)


def as_networks_see(rows: Array, center: NDArray[np.float32], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features shifted and divided, those that never varied in the fit as 0."""
    # What never varied taught nothing: another value of it later must change nothing.
    inverse_scale = np.where(scale > _NEVER_VARIED_OF_NETWORKS, 1.0 / scale, 0.0)
    within = np.clip((rows - center) * inverse_scale, -FARTHEST_OF_NETWORKS, FARTHEST_OF_NETWORKS)
    return np.asarray(within, dtype=np.float32)


@dataclass(frozen=True)
class Blend:
    """The members together, with what is known of their error.

    ``*_inside`` hold where a question lies within the measured range, ``*_outside`` beyond it: the weight of the
    process beside the trees, that of the networks beside both, and the quantile of |error| / spread, where spread is
    ``noise`` plus how far the members disagree.
    """

    columns: NDArray[np.int64]
    low: Array
    high: Array
    shape_low: Array
    shape_high: Array
    trees: TreeEnsemble
    process: GaussianProcess
    weight_inside: float
    weight_outside: float
    noise: float
    quantile_inside: float
    quantile_outside: float
    held_out_mape: float = float("nan")
    networks: NetworkEnsemble | None = None
    networks_inside: float = 0.0
    networks_outside: float = 0.0

    def predict(self, features: Array) -> tuple[Array, Array, Array]:
        """Log residual, half width of its interval, and how far outside the measured range (0: inside), per row.

        ``features`` are all columns of the feature table; ``columns`` picks those in use.
        """
        # Column after column, as the trees ask for them.
        rows = features.T[self.columns].T
        outside = self.distance(features)
        by_trees = self.trees.predict(np.clip(rows, self.low, self.high))
        by_process = self.process.predict(rows)
        is_outside = outside > EDGE
        weight = np.where(is_outside, self.weight_outside, self.weight_inside)
        quantile = np.where(is_outside, self.quantile_outside, self.quantile_inside)
        said = weight * by_process + (1 - weight) * by_trees
        by_networks = None
        if self.networks is not None:
            by_networks = self.networks.predict(np.clip(rows, self.low, self.high))
            share = np.where(is_outside, self.networks_outside, self.networks_inside)
            said = share * by_networks + (1 - share) * said
        return said, quantile * (self.noise + disagreement(by_trees, by_process, by_networks)), outside

    def distance(self, features: Array) -> Array:
        """By how much (in the features' own units: logarithms) a row leaves the box of the rows learned from."""
        described = features[:, : len(self.shape_low)]
        beyond = np.maximum(self.shape_low - described, described - self.shape_high)
        return np.asarray(np.maximum(beyond, 0).max(axis=1))


def disagreement(by_trees: Array, by_process: Array, by_networks: Array | None = None) -> Array:
    """How far the members of a blend are apart, [rows]."""
    if by_networks is None:
        return np.abs(by_process - by_trees)
    members = np.stack([by_trees, by_process, by_networks])
    return np.asarray(members.max(axis=0) - members.min(axis=0))


def to_arrays(record: Any, prefix: str = "") -> dict[str, NDArray[Any]]:
    """The fields of a regressor, nested ones with a dotted name, as arrays. A blend without networks has no fields of
    theirs, so that files are what they were."""
    arrays: dict[str, NDArray[Any]] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name.startswith("networks") and getattr(record, "networks", None) is None:
            continue
        if field.name in _NESTED:
            arrays.update(to_arrays(value, f"{prefix}{field.name}."))
        else:
            arrays[prefix + field.name] = np.asarray(value)
    return arrays


def are_equal(one: Blend, other: Blend) -> bool:
    """Whether two regressors are the same numbers."""
    left, right = to_arrays(one), to_arrays(other)
    return left.keys() == right.keys() and all(
        np.array_equal(left[name], right[name], equal_nan=left[name].dtype.kind == "f") for name in left
    )


def from_arrays(arrays: Mapping[str, NDArray[Any]], *, features: int) -> Blend:
    """The regressor whose ``to_arrays`` these are, of rows of so many features.

    Raises ``KeyError`` for an array that is missing and ``ValueError`` for arrays that are no such regressor.
    """
    blend: Blend = _from_arrays(arrays, Blend, "")
    _check_blend(blend, features)
    return blend


def _from_arrays(arrays: Mapping[str, NDArray[Any]], kind: type[Any], prefix: str) -> Any:
    values: dict[str, Any] = {}
    hints = get_type_hints(kind)
    has_networks = any(name.startswith(f"{prefix}networks.") for name in arrays)
    for field in fields(kind):
        name = prefix + field.name
        if field.name.startswith("networks") and not has_networks:
            continue
        if field.name in _NESTED:
            values[field.name] = _from_arrays(arrays, _NESTED[field.name], f"{name}.")
            continue
        array, is_number = arrays[name], hints[field.name] is float
        dtype = np.dtype(_DTYPES.get((kind, field.name), np.float64))
        if array.dtype != dtype or (array.ndim == 0) != is_number:
            raise ValueError(f"array {name} is {array.dtype} of {array.ndim} dimensions, not {dtype}")
        if array.dtype.kind == "f" and np.isnan(array).any() and field.name != "held_out_mape":
            raise ValueError(f"array {name} holds NaN")
        values[field.name] = array.item() if is_number else array
    return kind(**values)


def _check_blend(blend: Blend, features: int) -> None:
    """Raise ``ValueError`` unless every index lies inside what it points into and the shapes fit each other."""
    trees, process, used = blend.trees, blend.process, len(blend.columns)
    of_columns = (blend.low, blend.high, process.center, process.scale, process.inverse_lengths, process.slope)
    of_nodes = (trees.threshold, trees.left, trees.right, trees.value)
    is_sound = (
        _within(blend.columns, 0, features)
        and all(array.shape == (used,) for array in (blend.columns, *of_columns))
        and blend.shape_low.shape == blend.shape_high.shape
        and blend.shape_low.ndim == 1
        and len(blend.shape_low) <= features
        and process.points.shape == (len(process.weights), used)
        and process.weights.ndim == 1
        and trees.feature.ndim == 2
        and 0 < trees.feature.shape[1] < 2 * MAX_LEAVES
        and all(array.shape == trees.feature.shape for array in of_nodes)
    )
    if not is_sound or not (blend.networks is None or _fits(blend.networks, used)):
        raise ValueError("its arrays do not fit each other")
    is_inner = trees.left >= 0
    tree, node = np.nonzero(is_inner)
    nodes = trees.feature.shape[1]
    children = np.concatenate([trees.left[is_inner], trees.right[is_inner]]).astype(np.int64)
    # A child stands after its parent and has one, so that every walk down ends in one of at most 16 leaves.
    if (
        not _within(children, 1, nodes)
        or not (children > np.tile(node, 2)).all()
        or len(np.unique(np.tile(tree, 2) * nodes + children)) != len(children)
        or not _within(trees.feature[is_inner], 0, used)
    ):
        raise ValueError("its trees are none")


def _fits(networks: NetworkEnsemble, used: int) -> bool:
    """Whether the layers of networks that see so many features follow one another."""
    if networks.first.ndim != 3 or not len(networks.first):
        return False
    count, _, width = networks.first.shape
    wanted = {
        "center": (used,),
        "scale": (used,),
        "first": (count, used, width),
        "second": (count, width, width),
        "third": (count, width, width),
        "last": (count, width),
        **dict.fromkeys(("first_bias", "second_bias", "third_bias"), (count, width)),
        "last_bias": (count,),
    }
    return all(getattr(networks, name).shape == shape for name, shape in wanted.items())


def _within(numbers: NDArray[Any], low: int, end: int) -> bool:
    return bool(((numbers >= low) & (numbers < end)).all())


_NESTED: Mapping[str, type[Any]] = {"trees": TreeEnsemble, "process": GaussianProcess, "networks": NetworkEnsemble}
_DTYPES: Mapping[tuple[type[Any], str], type[np.generic]] = {
    (TreeEnsemble, "feature"): np.int16,
    (TreeEnsemble, "left"): np.int16,
    (TreeEnsemble, "right"): np.int16,
    (TreeEnsemble, "value"): np.float32,
    (GaussianProcess, "points"): np.float32,
    (GaussianProcess, "weights"): np.float32,
    **{(NetworkEnsemble, name): np.float16 for name in ("first", "second", "third", "last")},
    **{
        (NetworkEnsemble, name): np.float32
        for name in ("center", "scale", "first_bias", "second_bias", "third_bias", "last_bias")
    },
    (Blend, "columns"): np.int64,
}
"""Arrays that are not float64, by the record that holds them."""
