"""The launches of a ledger: a time for each, measured nowhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from torchledger.fitting.convolution_factors import is_single_convolution
from torchledger.fitting.launch_families import family_of
from torchledger.fitting.launch_features import LaunchFeatures, features_of_launches
from torchledger.fitting.launch_library import EXACT_FLOAT32
from torchledger.fitting.launches import as_matrix
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Buffer, Launch, Prediction
from torchledger.predicting.operators import by_roofline, range_of


def predict_launches(
    model: TimeModel,
    launches: Sequence[Launch],
    *,
    allow_tf32: bool = False,
    convolution_tf32: bool = True,
    step_bytes: int | None = None,
) -> list[Prediction]:
    """A prediction for every launch that runs something, in the order of the graphs.

    ``allow_tf32`` says that products of float32 matrices may be rounded for the tensor cores (the setting
    ``float32_matmul_precision`` of the run is then not ``"highest"``); ``convolution_tf32`` says it of convolutions
    (``torch.backends.cudnn.allow_tf32``, which PyTorch leaves on). ``step_bytes`` are what the step moves that they are
    of, where one step follows the other (``None``: each graph finds a swept cache).

    A launch of a family that the model has not learned gets its roofline plus the launch floor, and says so; one whose
    bytes, or whose elements' size, are unknown gets the floor alone. A kernel of another kind of device is never inside
    what was measured.
    """
    asked = [as_bfloat16(item) for item in launches] if allow_tf32 else list(launches)
    described = features_of_launches(
        asked, model.machine, convolution_tf32=convolution_tf32, step_bytes=[step_bytes] * len(asked)
    )
    found: dict[int, Prediction] = {}
    by_family: dict[str, list[int]] = {}
    for index, (launch, features) in enumerate(zip(launches, described, strict=True)):
        if launch.category == "nop":
            continue
        if features is None or features.family not in model.entries:
            found[index] = _by_baseline(model, launch, features)
        elif (own := _by_library(model, launch, features, convolution_tf32)) is not None:
            found[index] = own
        else:
            by_family.setdefault(features.family, []).append(index)
    for family, indices in by_family.items():
        entry = model.entries[family]
        some = [features for index in indices if (features := described[index]) is not None]
        residual, width, distance = entry.predict(as_matrix(some, entry.feature_names))
        # Launches of programs that nobody chose spread more than the rows held out of those that were sampled.
        width = width * model.extras.get(f"{family} interval", 1.0)
        for place, index in enumerate(indices):
            middle = some[place].log_baseline_of(entry.feature_names) + float(residual[place])
            if asked[index] is not launches[index]:
                middle += math.log(_tf32_factor(launches[index]))
                width[place] = math.hypot(float(width[place]), _TF32_SPREAD)
            where = range_of(float(distance[place]))
            found[index] = Prediction(
                subject=launches[index].launch_id,
                duration_us=float(np.exp(middle)),
                low_us=float(np.exp(middle - width[place])),
                high_us=float(np.exp(middle + width[place])),
                coverage=COVERAGE,
                range=where,
                device=model.device,
                model=family,
                roofline_us=some[place].roofline_us,
            )
    return [
        _as_foreign(model, launches[index], found[index]) if is_foreign(model, launches[index]) else found[index]
        for index in sorted(found)
    ]


def _by_library(
    model: TimeModel, launch: Launch, features: LaunchFeatures, convolution_tf32: bool
) -> Prediction | None:
    """A convolution of float32 by its library's kernels, where the regressors had too few of them to tell. ``None`` for
    others, and where the model does not know how far that is off."""
    key = f"{features.family} float32"
    if f"{key} slowness" not in model.extras or EXACT_FLOAT32 in model.entries[features.family].feature_names:
        return None
    if not is_single_convolution(launch, features):
        return None
    middle = math.log(features.baseline_us * model.extras[f"{key} slowness"])
    width = model.extras[f"{key} width"]
    return Prediction(
        subject=launch.launch_id,
        duration_us=math.exp(middle),
        low_us=math.exp(middle - width),
        high_us=math.exp(middle + width),
        coverage=COVERAGE,
        range="inside" if convolution_tf32 else "extrapolated",
        device=model.device,
        model=key,
        roofline_us=features.roofline_us,
        note=None if convolution_tf32 else "float32 without TF32: no convolution of this kind was measured",
    )


_TF32_FACTORS = (1.15, 1.5, 1.9)
_TF32_SPREAD = math.log(1.3)
"""How much longer a TF32 product takes than the bfloat16 one that stands for it, by how many of its factors do not lie
along the sum (tensor cores read bfloat16 either way, TF32 only along the sum), and the spread of that: medians over 214
products of drawn programs on an H200, PyTorch 2.11."""


def _tf32_factor(launch: Launch) -> float:
    left, right = _factors(launch)
    if any(_alignment(factor) < 4 for factor in (left, right)):
        return 1.0
    return _TF32_FACTORS[(left.stride[-1] != 1) + (right.stride[-2] != 1)]


def _alignment(factor: Buffer) -> int:
    """The largest power of two that divides the elements between rows."""
    stride = max(factor.stride[-2:])
    return stride & -stride


def _factors(launch: Launch) -> tuple[Buffer, Buffer]:
    left, right = [buffer for buffer in launch.buffers if buffer.role != "output" and len(buffer.shape) >= 2][-2:]
    return left, right


def as_bfloat16(launch: Launch) -> Launch:
    """The product of bfloat16 matrices that does the work of a product of float32 ones under TF32, which no data has:
    twice as long a sum at twice the rate, over as many bytes. Any other launch is returned as it is."""
    if family_of(launch) != "launch:gemm/any" or launch.device.partition(":")[0] == "cpu":
        return launch
    if sum(buffer.role != "output" and len(buffer.shape) >= 2 for buffer in launch.buffers) < 2:
        return launch
    left, right = _factors(launch)
    if (left.dtype, right.dtype) != ("float32", "float32"):
        return launch

    def narrow(buffer: Buffer) -> Buffer:
        if buffer.dtype != "float32":
            return buffer
        # A row then begins at the same byte as before.
        strides = tuple(stride if stride < 2 else 2 * stride for stride in buffer.stride)
        shape = buffer.shape
        if buffer is left:
            shape = (*shape[:-1], 2 * shape[-1])
        elif buffer is right:
            shape = (*shape[:-2], 2 * shape[-2], shape[-1])
        return replace(buffer, dtype="bfloat16", shape=shape, stride=strides)

    flops = None if launch.flops is None else 2 * launch.flops
    return replace(launch, flops=flops, buffers=tuple(narrow(buffer) for buffer in launch.buffers))


def is_foreign(model: TimeModel, launch: Launch) -> bool:
    """True for a kernel that the model's device cannot run, such as C++ for a CPU when asked for a GPU."""
    return launch.device.partition(":")[0] != model.machine.device.kind and model.machine.device.kind != "unknown"


def _as_foreign(model: TimeModel, launch: Launch, found: Prediction) -> Prediction:
    own = f"a kernel for {launch.device}, which {model.device} does not run: priced by its loops or sizes"
    return replace(found, range="extrapolated", note="; ".join(note for note in (own, found.note) if note))


def _by_baseline(model: TimeModel, launch: Launch, features: LaunchFeatures | None) -> Prediction:
    time_us = model.machine.floor_us if features is None else features.baseline_us
    if features is not None:
        reason = f"the model has not learned {features.family}"
    else:
        reason = "its bytes are unknown" if launch.bytes_moved is None else "the size of its elements is unknown"
    roofline_us = None if features is None else features.roofline_us
    return by_roofline(model, launch.launch_id, time_us, roofline_us, reason)
