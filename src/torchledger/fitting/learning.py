"""Making the regressors: boosted trees by scikit-learn, a Gaussian process by numpy, networks by torch, and their
blend.

Everything that is chosen (the weight of each member, the width of the intervals) is chosen by error on rows held out
inside the training data: groups of equal shapes for questions inside the measured range, the largest sizes for
questions beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from torchledger.errors import FitError
from torchledger.expecting.trees import MAX_LEAVES, TreeEnsemble
from torchledger.fitting.network_members import fit_networks
from torchledger.fitting.regressors import EDGE, Blend, GaussianProcess, disagreement, matern

Array = NDArray[np.float64]
Groups = NDArray[np.int64]

COVERAGE = 0.9
"""Share of measurements that an interval is meant to hold."""

FOLDS = 4
MIN_SHAPES = 12
"""Fewer distinct shapes than this are too few to learn from and to test on."""

_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
_LEARNING_RATE = 0.08
_HYPER_STEPS = 22
_PARITY = 1e-4
_LARGEST_SHIFT = 0.04
_MIN_HELD_OUT = 8
_INDUCING_HELD_OUT = 1280  # folds are six times the work, and only choose weights and widths
_RIDGES = (1e-9, 1e-7, 1e-5, 1e-3)
_NETWORKS, _PASSES, _PASSES_HELD_OUT = 3, 60, 30


@dataclass(frozen=True)
class Options:
    """Which ideas a fit uses; the ablation switches them off one at a time."""

    members: tuple[str, ...] = ("trees", "process")
    """Beside these ``"networks"``, which want thousands of rows."""
    robust: bool = True
    physics: Literal["all", "roofline", "work", "shape"] = "all"
    """``"roofline"``: no times of tiles, and the roofline as baseline; ``"work"``: nor how shapes divide and align;
    ``"shape"``: the parameters alone."""
    baseline: bool = True
    """Learn the distance from the roofline, not the time itself."""
    seed: int = 0
    inducing: int = 640
    """Points through which the process is fitted: the more, the closer it follows many columns, and the slower."""
    trees: int = 220
    hyper_rows: int = 560
    """Shapes on which the process's lengths are chosen, at most; their cost grows with the cube."""
    hyper_draws: int = 1
    """Sets of such shapes, drawn anew: with many columns each says something else, their mean is steadier."""


def fit_blend(
    features: Array,
    target: Array,
    groups: Groups,
    *,
    n_shape: int,
    options: Options | None = None,
    size_columns: tuple[int, ...] | None = None,
    log_baseline: Array | None = None,
) -> Blend:
    """Learn ``target`` (log residual) from ``features``, [rows] and [rows, columns].

    ``groups`` numbers the rows of equal shape, which never stand on both sides of a split. ``n_shape`` columns describe
    the question, and bound the measured range; ``size_columns`` of them are sizes whose largest values are held out to
    imitate extrapolation (default: the described ones). With ``log_baseline``, predictions are shifted so that held-out
    sums of time come out right: the middle of a skewed error is not its mean. Raises ``FitError`` for too few shapes.
    """
    options = options or Options()
    if len(np.unique(groups)) < MIN_SHAPES:
        raise FitError(f"{len(np.unique(groups))} distinct shapes are too few to learn from; {MIN_SHAPES} are needed")
    columns = np.flatnonzero(np.ptp(features, axis=0) > 1e-12)
    if not len(columns):
        columns = np.array([0])
    rows = features[:, columns]
    hyper = _usual_lengths(rows, target, options) if "process" in options.members else None

    inside = _Said.empty(len(rows), options)
    for fold in _fold_of(groups, options.seed):
        inside.put(fold, _held_out(rows, target, fold, hyper, options))
    weights_inside = _best_weights(inside, target, options)

    beyond, beyond_target = inside, target
    for fold in _largest_of(features, size_columns or tuple(range(n_shape)), groups):
        beyond = beyond.joined(_held_out(rows, target, fold, hyper, options))
        beyond_target = np.concatenate([beyond_target, target[fold]])
    weights_outside = _best_weights(beyond, beyond_target, options)

    shift = 0.0
    if log_baseline is not None:
        said = np.exp(log_baseline + inside.mixed(weights_inside)).sum()
        shift = float(np.clip(np.log(np.exp(log_baseline + target).sum() / said), -_LARGEST_SHIFT, _LARGEST_SHIFT))
        inside = inside.shifted(shift)
    residual = target - inside.mixed(weights_inside)
    noise = float(np.median(np.abs(residual))) + 1e-4
    trees = _fit_trees(rows, target, options) if "trees" in options.members else _no_trees(float(np.median(target)))
    process = _fit_process(rows, target, hyper, options) if hyper is not None else _no_process(rows, target)
    networks = None
    if weights_inside.networks or weights_outside.networks:
        learned = fit_networks(rows, target, count=_NETWORKS, passes=_PASSES, seed=options.seed)
        networks = replace(learned, last_bias=learned.last_bias + np.float32(shift))
    quantile_inside = _conformal(inside, target, weights_inside, noise)
    return Blend(
        held_out_mape=float(100 * np.mean(np.abs(np.expm1(-residual)))),
        columns=columns,
        low=rows.min(axis=0),
        high=rows.max(axis=0),
        shape_low=features[:, :n_shape].min(axis=0) - 1e-9,
        shape_high=features[:, :n_shape].max(axis=0) + 1e-9,
        trees=replace(trees, baseline=trees.baseline + shift),
        process=replace(process, offset=process.offset + shift),
        weight_inside=weights_inside.process,
        weight_outside=weights_outside.process,
        noise=noise,
        quantile_inside=quantile_inside,
        quantile_outside=max(_conformal(beyond, beyond_target, weights_outside, noise), quantile_inside),
        networks=networks,
        networks_inside=weights_inside.networks,
        networks_outside=weights_outside.networks,
    )


def constant_blend(features: Array, target: Array, value: float, *, n_shape: int, coverage: float) -> Blend:
    """A regressor that answers ``value`` to everything, with an interval that holds so much of ``target``."""
    columns = np.array([0])
    away = np.abs(target - value)
    noise = float(np.median(away)) + 1e-4
    level = min(1.0, coverage * (1 + 1 / len(target)))
    quantile = float(np.quantile(away / noise, level))
    rows = features[:, columns]
    return Blend(
        held_out_mape=float(100 * np.mean(np.abs(np.expm1(value - target)))),
        columns=columns,
        low=rows.min(axis=0),
        high=rows.max(axis=0),
        shape_low=features[:, :n_shape].min(axis=0) - 1e-9,
        shape_high=features[:, :n_shape].max(axis=0) + 1e-9,
        trees=_no_trees(value),
        process=_no_process(rows, np.array([value])),
        weight_inside=0.0,
        weight_outside=0.0,
        noise=noise,
        quantile_inside=quantile,
        quantile_outside=quantile,
    )


@dataclass(frozen=True)
class _Weights:
    """That of the process beside the trees, and of the networks beside both."""

    process: float
    networks: float = 0.0


@dataclass(frozen=True)
class _Said:
    """What each member says of the same rows; ``networks`` is ``None`` where there are none."""

    trees: Array
    process: Array
    networks: Array | None

    @staticmethod
    def empty(count: int, options: Options) -> _Said:
        networks = np.full(count, np.nan) if "networks" in options.members else None
        return _Said(np.full(count, np.nan), np.full(count, np.nan), networks)

    def put(self, fold: NDArray[np.bool_], said: _Said) -> None:
        """Fill in what was said of the rows of a fold."""
        self.trees[fold], self.process[fold] = said.trees, said.process
        if self.networks is not None:
            self.networks[fold] = said.networks

    def joined(self, other: _Said) -> _Said:
        """The rows of both."""
        networks = None
        if self.networks is not None and other.networks is not None:
            networks = np.concatenate([self.networks, other.networks])
        trees, process = np.concatenate([self.trees, other.trees]), np.concatenate([self.process, other.process])
        return _Said(trees, process, networks)

    def shifted(self, by: float) -> _Said:
        """The same, each so much more."""
        networks = None if self.networks is None else self.networks + by
        return _Said(self.trees + by, self.process + by, networks)

    def mixed(self, weights: _Weights) -> Array:
        """What the blend says."""
        said = weights.process * self.process + (1 - weights.process) * self.trees
        return said if self.networks is None else weights.networks * self.networks + (1 - weights.networks) * said


def _held_out(rows: Array, target: Array, fold: NDArray[np.bool_], hyper: _Lengths | None, options: Options) -> _Said:
    """What each member says of the rows of ``fold`` after learning from the others."""
    rest = ~fold
    trees = process = np.full(int(fold.sum()), float(np.median(target[rest])))
    networks = None
    within = np.clip(rows[fold], rows[rest].min(axis=0), rows[rest].max(axis=0))
    if "trees" in options.members:
        trees = _boosted(options).fit(rows[rest], target[rest]).predict(within)
    if hyper is not None:
        quicker = replace(options, inducing=min(options.inducing, _INDUCING_HELD_OUT))
        process = _fit_process(rows[rest], target[rest], hyper, quicker).predict(rows[fold])
    if "networks" in options.members:
        learned = fit_networks(rows[rest], target[rest], count=1, passes=_PASSES_HELD_OUT, seed=options.seed)
        networks = learned.predict(within)
    return _Said(trees, process, networks)


def _best_weights(said: _Said, target: Array, options: Options) -> _Weights:
    """The weights with the least mean error (relative, in time): of the process first, then of the networks."""

    def error(weights: _Weights) -> float:
        return float(np.mean(np.abs(np.expm1(said.mixed(weights) - target))))

    process: tuple[float, ...] = _WEIGHTS
    if "trees" not in options.members:
        process = (1.0,)
    elif "process" not in options.members:
        process = (0.0,)
    best = min((_Weights(weight) for weight in process), key=error)
    if said.networks is None:
        return best
    return min((replace(best, networks=weight) for weight in _WEIGHTS), key=error)


def _conformal(said: _Said, target: Array, weights: _Weights, noise: float) -> float:
    """Split conformal quantile of |error| / spread on held-out rows (Lei et al., JASA 2018)."""
    spread = noise + disagreement(said.trees, said.process, said.networks)
    score = np.abs(said.mixed(weights) - target) / spread
    level = min(1.0, COVERAGE * (1 + 1 / len(score)))
    return float(np.quantile(score, level))


def _fold_of(groups: Groups, seed: int) -> list[NDArray[np.bool_]]:
    distinct, code = np.unique(groups, return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(distinct)) % FOLDS
    return [fold[code] == number for number in range(FOLDS)]


def _largest_of(features: Array, size_columns: tuple[int, ...], groups: Groups) -> list[NDArray[np.bool_]]:
    """Rows with the largest values of a size, for up to two sizes: those with the most distinct values."""
    counted = [(len(np.unique(np.round(features[:, column], 6))), column) for column in size_columns]
    counted = [(number, column) for number, column in counted if number >= 5]
    folds = []
    for _, column in sorted(counted, reverse=True):
        value = features[:, column]
        fold = value > np.quantile(value, 0.85) + EDGE / 2
        if _MIN_HELD_OUT <= fold.sum() <= 0.4 * len(fold) and len(np.unique(groups[~fold])) >= MIN_SHAPES:
            folds.append(fold)
        if len(folds) == 2:
            break
    return folds


# Trees


def _boosted(options: Options) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    return HistGradientBoostingRegressor(
        loss="absolute_error" if options.robust else "squared_error",
        max_iter=options.trees,
        learning_rate=_LEARNING_RATE,
        max_leaf_nodes=MAX_LEAVES,
        min_samples_leaf=4,
        max_bins=128,
        max_features=0.5,
        l2_regularization=1.0,
        early_stopping=False,
        random_state=options.seed,
    )


def _fit_trees(rows: Array, target: Array, options: Options) -> TreeEnsemble:
    return checked_trees(_boosted(options).fit(rows, target), rows)


def checked_trees(model: Any, rows: Array) -> TreeEnsemble:
    """``export_trees``, which say of some rows what the model says; raises ``FitError`` if they do not."""
    trees = export_trees(model)
    worst = float(np.max(np.abs(trees.predict(rows) - model.predict(rows))))
    if worst > _PARITY:
        raise FitError(
            f"the exported trees differ from scikit-learn's by {worst:.2g} (at most {_PARITY} is allowed); "
            "this scikit-learn keeps its trees in another form. Use 1.4 to 1.9."
        )
    return trees


def export_trees(model: Any) -> TreeEnsemble:
    """The arrays of a fitted ``HistGradientBoostingRegressor``.

    Its trees have no public form, so that every export is checked against the model's own predictions.
    """
    trees = [iteration[0].nodes for iteration in model._predictors]
    width = max((len(nodes) for nodes in trees), default=1)
    shape = (len(trees), width)
    feature, left = np.zeros(shape, np.int16), np.full(shape, -1, np.int16)
    right, threshold, value = np.full(shape, -1, np.int16), np.zeros(shape), np.zeros(shape, np.float32)
    for index, nodes in enumerate(trees):
        size, inner = len(nodes), nodes["is_leaf"] == 0
        feature[index, :size] = np.where(inner, nodes["feature_idx"], 0)
        threshold[index, :size] = np.where(inner, nodes["num_threshold"], 0.0)
        left[index, :size] = np.where(inner, nodes["left"].astype(np.int64), -1)
        right[index, :size] = np.where(inner, nodes["right"].astype(np.int64), -1)
        value[index, :size] = np.where(inner, 0.0, nodes["value"])
    baseline = float(np.ravel(model._baseline_prediction)[0])
    return TreeEnsemble(baseline, feature, threshold, left, right, value)


def _no_trees(value: float) -> TreeEnsemble:
    empty = np.full((1, 1), -1, np.int16)
    return TreeEnsemble(value, np.zeros((1, 1), np.int16), np.zeros((1, 1)), empty, empty, np.zeros((1, 1), np.float32))


# Gaussian process


@dataclass(frozen=True)
class _Lengths:
    """Hyper-parameters: inverse lengths of the scaled features, and the variances of signal, trend and noise."""

    center: Array
    scale: Array
    inverse_lengths: Array
    signal: float
    trend: float
    noise: float


def _usual_lengths(rows: Array, target: Array, options: Options) -> _Lengths:
    """The geometric mean of what several sets of shapes say."""
    found = [
        _choose_lengths(rows, target, options.seed + draw, options.hyper_rows) for draw in range(options.hyper_draws)
    ]

    def mean(name: str) -> Array:
        return np.asarray(np.exp(np.mean([np.log(getattr(lengths, name)) for lengths in found], axis=0)))

    return _Lengths(
        found[0].center,
        found[0].scale,
        mean("inverse_lengths"),
        float(mean("signal")),
        float(mean("trend")),
        float(mean("noise")),
    )


def _choose_lengths(rows: Array, target: Array, seed: int, hyper_rows: int) -> _Lengths:
    """Maximise the marginal likelihood on a subset of the shapes (Rasmussen and Williams 2006, chapter 5)."""
    from scipy.optimize import minimize

    shapes, values, _ = _merge(rows, target)
    center, scale = shapes.mean(axis=0), shapes.std(axis=0) + 1e-9
    pick = np.random.default_rng(seed).permutation(len(shapes))[:hyper_rows]
    normal = (shapes[pick] - center) / scale
    spread = float(np.std(values)) + 1e-9
    goal = (values[pick] - np.mean(values)) / spread
    count, width = normal.shape
    linear = normal @ normal.T + 1.0
    prior = 1.0 + 0.5 * np.log(max(width, 1) / 8 + 1)

    def loss(parameters: Array) -> tuple[float, Array]:
        lengths = np.exp(parameters[:width])
        signal, noise, trend = np.exp(2 * parameters[width:])
        near = normal / lengths
        squares = np.einsum("ij,ij->i", near, near)
        distance = np.sqrt(5 * np.maximum(squares[:, None] + squares[None] - 2 * near @ near.T, 0))
        decay = np.exp(-distance)
        smooth = (1 + distance + distance**2 / 3) * decay
        kernel = signal * smooth + trend * linear
        kernel[np.diag_indices(count)] += noise + 1e-7
        factor = np.linalg.cholesky(kernel)
        inverse = np.linalg.inv(factor)
        inverse = inverse.T @ inverse
        alpha = inverse @ goal
        away = parameters[:width] - prior
        value = 0.5 * goal @ alpha + np.log(np.diag(factor)).sum() + 0.5 * np.sum((away / 1.5) ** 2)
        slope = 0.5 * (inverse - np.outer(alpha, alpha))
        pull = slope * (signal * 5 / 3 * (1 + distance) * decay)
        rates = 2 * (near**2).T @ pull.sum(axis=1) - 2 * np.einsum("ij,ij->j", near, pull @ near)
        gradient = np.concatenate(
            [
                rates + away / 1.5**2,
                [2 * signal * np.sum(slope * smooth), 2 * noise * np.trace(slope), 2 * trend * np.sum(slope * linear)],
            ]
        )
        return float(value), gradient

    start = np.concatenate([np.full(width, prior), [0.0, -2.5, -1.0]])
    bounds = [(-2.0, 6.0)] * width + [(-3.0, 2.0), (-5.0, 0.5), (-6.0, 2.0)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _HYPER_STEPS}).x
    signal, noise, trend = np.exp(2 * found[width:]) * spread**2
    return _Lengths(center, scale, np.exp(-found[:width]), float(signal), float(trend), float(noise))


def _fit_process(rows: Array, target: Array, hyper: _Lengths, options: Options) -> GaussianProcess:
    """Regress through a subset of the shapes (subset of regressors), the trend as ordinary features beside them."""
    shapes, values, weight = _merge(rows, target)
    normal = (shapes - hyper.center) / hyper.scale
    near = (normal * hyper.inverse_lengths).astype(np.float32)
    chosen = _spread_out(near, options.inducing, options.seed)
    points = near[chosen]
    offset = float(np.median(values))
    cross = hyper.signal * matern(near, points).astype(np.float64)
    design = np.concatenate([cross, normal, np.ones((len(normal), 1))], axis=1)
    prior = np.zeros((design.shape[1], design.shape[1]))
    size = len(points)
    prior[:size, :size] = hyper.signal * matern(points, points) + 1e-6 * hyper.signal * np.eye(size)
    prior[size:, size:] = np.eye(design.shape[1] - size) / max(hyper.trend, 1e-9)
    goal = values - offset
    solution = np.zeros(design.shape[1])
    for _ in range(2 if options.robust else 1):
        scaled = design * weight[:, None]
        system = design.T @ scaled / hyper.noise + prior
        solution = _solve(system, scaled.T @ goal / hyper.noise)
        # Huber weights: rows far off count less in the second pass.
        away = np.abs(goal - design @ solution)
        limit = 2.0 * np.median(away) + 1e-6
        weight = weight * np.minimum(1.0, limit / np.maximum(away, 1e-12))
    slope, constant = solution[size:-1], solution[-1]
    return GaussianProcess(
        center=hyper.center,
        scale=hyper.scale,
        inverse_lengths=hyper.inverse_lengths,
        points=points,
        weights=(hyper.signal * solution[:size]).astype(np.float32),
        slope=slope,
        offset=offset + float(constant),
    )


def _solve(system: Array, goal: Array) -> Array:
    """Solve a positive definite system; one that rounding has made indefinite gets a larger ridge until it is not."""
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    scale = np.trace(system) / len(system)
    for ridge in _RIDGES:
        try:
            return np.asarray(cho_solve(cho_factor(system + ridge * scale * np.eye(len(system))), goal))
        except LinAlgError:
            continue
    raise FitError("the Gaussian process cannot be fitted: its rows are too alike. Leave it out (members=('trees',)).")


def _merge(rows: Array, target: Array) -> tuple[Array, Array, Array]:
    """One row per distinct row of features: the median of its targets, and how many there were."""
    distinct, code, count = np.unique(np.round(rows, 9), axis=0, return_inverse=True, return_counts=True)
    order = np.argsort(code.ravel(), kind="stable")
    first = np.concatenate([[0], np.cumsum(count)[:-1]])
    values = np.array([np.median(target[order[a : a + n]]) for a, n in zip(first, count, strict=True)])
    return distinct, values, count.astype(np.float64)


def _spread_out(points: NDArray[np.float32], count: int, seed: int) -> NDArray[np.int64]:
    """Half of the points farthest from one another (greedy), half drawn at random."""
    if len(points) <= count:
        return np.arange(len(points))
    generator = np.random.default_rng(seed)
    chosen = [int(generator.integers(len(points)))]
    nearest = np.full(len(points), np.inf)
    for _ in range(count // 2 - 1):
        away = points - points[chosen[-1]]
        nearest = np.minimum(nearest, np.einsum("ij,ij->i", away, away))
        chosen.append(int(np.argmax(nearest)))
    rest = np.setdiff1d(np.arange(len(points)), chosen)
    return np.concatenate([np.unique(chosen), generator.permutation(rest)[: count - len(set(chosen))]])


def _no_process(rows: Array, target: Array) -> GaussianProcess:
    width = rows.shape[1]
    return GaussianProcess(
        center=np.zeros(width),
        scale=np.ones(width),
        inverse_lengths=np.ones(width),
        points=np.zeros((1, width), np.float32),
        weights=np.zeros(1, np.float32),
        slope=np.zeros(width),
        offset=float(np.median(target)),
    )
