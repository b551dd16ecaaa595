"""The launches of a ledger: a time for each, measured nowhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypedDict

import numpy as np

from torchledger.errors import PredictError
from torchledger.expecting.adaptive_pools import ADAPTIVE_POOLS
from torchledger.expecting.atomic_lines import WAITING_WIDTH
from torchledger.expecting.launch_convolutions import EXACT_FLOAT32, OF_WIDE_FILTERS, ONE_BY_ONE
from torchledger.expecting.launch_costs import WAITING
from torchledger.expecting.launch_families import LIBRARY
from torchledger.expecting.launch_features import LaunchFeatures, features_of_launches, knows_steps
from torchledger.expecting.pass_networks import ONE_BY_ONE_WIDTH
from torchledger.expecting.rounded_products import ROUNDED, as_bfloat16, of_rounded_product
from torchledger.expecting.template_products import FURTHER_SHARE, LONGER, WIDTH, template_product
from torchledger.expecting.volume_columns import DEEP, DEEP_WIDTH, OF_VOLUMES
from torchledger.fitting.convolution_factors import is_single_convolution
from torchledger.fitting.launches import as_matrix
from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction, StepCall, TensorArgument
from torchledger.predicting.call_parts import surer_by_parts
from torchledger.predicting.flex_launches import flex_prediction
from torchledger.predicting.int8_launches import int8_prediction
from torchledger.predicting.operand_copies import with_copied_operands
from torchledger.predicting.operators import by_roofline, predict, range_of
from torchledger.predicting.questions import question_of
from torchledger.predicting.whole_sums import by_its_sums
from torchledger.work.categories import is_of_program, operation_of
from torchledger.work.step_traffic import StepTraffic
from torchledger.work.views import launches_nothing


class Rounding(TypedDict):
    """Whether products and convolutions of float32 may be rounded for the tensor cores (``predict_launches``)."""

    allow_tf32: bool
    convolution_tf32: bool


def rounding_of(settings: Mapping[str, str]) -> Rounding:
    """What the settings of a run say of rounding float32 for the tensor cores.

    >>> rounding_of({"float32_matmul_precision": "high"})
    {'allow_tf32': True, 'convolution_tf32': True}
    """
    return {
        "allow_tf32": settings.get("float32_matmul_precision", "highest") != "highest",
        "convolution_tf32": settings.get("cudnn_allow_tf32") != "False",
    }


def predict_launches(
    model: TimeModel,
    launches: Sequence[Launch],
    *,
    allow_tf32: bool = False,
    convolution_tf32: bool = True,
    traffic: StepTraffic | None = None,
) -> list[Prediction]:
    """A prediction for every launch that runs something, in the order of the graphs.

    ``allow_tf32`` says that products of float32 matrices may be rounded for the tensor cores (the setting
    ``float32_matmul_precision`` of the run is then not ``"highest"``); ``convolution_tf32`` says it of convolutions
    (``torch.backends.cudnn.allow_tf32``, which PyTorch leaves on). ``traffic`` is of the step that they are of,
    where one step follows the other (``None``: each graph finds a swept cache).

    A launch of a family that the model has not learned gets its roofline plus the launch floor, and says so; one whose
    bytes, or whose elements' size, are unknown gets the floor alone. A kernel of another kind of device is never inside
    what was measured.
    """
    asked = [as_bfloat16(item) for item in launches] if allow_tf32 else list(launches)
    described = features_of_launches(
        asked,
        model.machine,
        convolution_tf32=convolution_tf32,
        traffic=[traffic] * len(asked) if _knows_steps(model) else None,
    )
    found = _of_templates(model, launches, allow_tf32=allow_tf32, traffic=traffic)
    by_family: dict[str, list[int]] = {}
    for index, (launch, features) in enumerate(zip(launches, described, strict=True)):
        if features is not None and asked[index] is not launch and ROUNDED in model.entries:
            features = described[index] = of_rounded_product(features, launch)
        if features is not None and features.family not in model.entries:
            features = described[index] = replace(features, family=_broader(features.family))
        if index in found or launch.category == "nop" or launches_nothing(launch):
            continue
        if (flex := flex_prediction(model, launch)) is not None:
            found[index] = flex
        elif (product := int8_prediction(model, launch)) is not None:
            found[index] = product
        elif features is None or features.family not in model.entries or _is_unknown_operator(launch):
            found[index] = _by_baseline(model, launch, features)
        elif (own := _by_library(model, launch, features, convolution_tf32) or _by_operator(model, launch)) is not None:
            found[index] = own
        else:
            by_family.setdefault(features.family, []).append(index)
    for family, indices in by_family.items():
        entry = model.entries[family]
        some = [features for index in indices if (features := described[index]) is not None]
        residual, width, distance = entry.predict(as_matrix(some, entry.feature_names))
        # Launches of programs that nobody chose spread more than the rows held out of those that were sampled.
        width = width * model.extras.get(f"{family} interval", 1.0)
        width = np.maximum(width, [ONE_BY_ONE_WIDTH * each.values.get(ONE_BY_ONE, 0.0) for each in some])
        if not family.endswith(OF_VOLUMES):
            width = np.maximum(width, [DEEP_WIDTH * each.values.get(DEEP, 0.0) for each in some])
        # What waits in a line does so whatever else a kernel is: regressors saw too few that do to tell.
        waiting = np.minimum([each.values.get(WAITING, 0.0) for each in some], 1.0)
        residual = residual * (1 - waiting)
        width = np.maximum(width, WAITING_WIDTH * waiting)
        for place, index in enumerate(indices):
            middle = some[place].log_baseline_of(entry.feature_names) + float(residual[place])
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
            if family == LIBRARY:
                found[index] = surer_by_parts(model, launches[index], found[index])
    for index, said in found.items():
        said = by_its_sums(model, launches[index], described[index], said, allow_tf32=allow_tf32)
        is_other = is_foreign(model, launches[index])
        found[index] = (_as_foreign if is_other else with_copied_operands)(model, launches[index], said)
    return [found[index] for index in sorted(found)]


def _of_templates(
    model: TimeModel, launches: Sequence[Launch], *, allow_tf32: bool, traffic: StepTraffic | None
) -> dict[int, Prediction]:
    """Products that Inductor's templates do, by the library's of their sizes."""
    templates = {index: each for index, item in enumerate(launches) if (each := template_product(item)) is not None}
    if not templates:
        return {}
    asked = [each.launch for each in templates.values()]
    found = {}
    for (index, template), said in zip(
        templates.items(), predict_launches(model, asked, allow_tf32=allow_tf32, traffic=traffic), strict=True
    ):
        longer_us = FURTHER_SHARE * template.further_bytes / model.machine.bytes_per_us
        duration_us = LONGER * said.duration_us + longer_us
        width = math.hypot(WIDTH, math.log(said.high_us / said.duration_us))
        found[index] = replace(
            said,
            duration_us=duration_us,
            low_us=duration_us * math.exp(-width),
            high_us=duration_us * math.exp(width),
            note=said.note or "by the library's product of its sizes: Inductor's templates take some longer",
        )
    return found


def _broader(family: str) -> str:
    """The family that is asked where a model has not learned this one: of volumes about the images that they fold
    into, of wide filters about others, of adaptive pools as of other libraries' calls."""
    return LIBRARY if family == ADAPTIVE_POOLS else family.removesuffix(OF_VOLUMES).removesuffix(OF_WIDE_FILTERS)


def _knows_steps(model: TimeModel) -> bool:
    entry = model.entries.get("launch:fused/pointwise")
    return entry is not None and knows_steps(entry.feature_names)


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


_AS_OPERATORS = ("_grouped_mm", "_scaled_mm")
"""Products that few programs have, so that launches taught little of them, and that were measured as operators."""


def _by_operator(model: TimeModel, launch: Launch) -> Prediction | None:
    """A product of groups of rows, or of elements of one byte, by the operator of the catalogue; ``None`` for others,
    and where the model has not learned it."""
    name = operation_of(launch)
    if name not in _AS_OPERATORS:
        return None
    arguments = tuple(TensorArgument(each.shape, each.dtype) for each in launch.buffers if each.role == "input")
    asked = question_of(StepCall("", launch.order, "operator", f"aten::{name}", "forward", arguments=arguments))
    if asked is None or asked.operator not in ("grouped_gemm", "linear_fp8"):
        return None
    try:
        found = predict(model, asked.operator, asked.parameters, direction=asked.direction, dtype=asked.dtype)
    except PredictError:
        return None
    notes = [note for note in (found.note, asked.note) if note]
    return replace(found, subject=launch.launch_id, note="; ".join(notes) or None)


def is_foreign(model: TimeModel, launch: Launch) -> bool:
    """True for a kernel that the model's device cannot run, such as C++ for a CPU when asked for a GPU; of a launch
    without a device nobody knows."""
    return launch.device.partition(":")[0] not in ("", model.machine.device.kind) and (
        model.machine.device.kind != "unknown"
    )


def was_measured_elsewhere(prediction: Prediction) -> bool:
    """True where what was measured of a launch ran on another kind of device: the two times cannot be compared."""
    return _BY_SIZES in (prediction.note or "")


_BY_SIZES = "priced by its loops or sizes"
"""How a kernel that the model's device does not run is priced; stored notes say so, too."""


def _as_foreign(model: TimeModel, launch: Launch, found: Prediction) -> Prediction:
    own = f"a kernel for {launch.device}, which {model.device} does not run: {_BY_SIZES}"
    return replace(found, range="extrapolated", note="; ".join(note for note in (own, found.note) if note))


def _is_unknown_operator(launch: Launch) -> bool:
    """True for an operator of the program's own: what other libraries' calls of its bytes take says nothing of it."""
    return launch.category == "extern" and launch.flops is None and is_of_program(launch.kernel_name)


def _by_baseline(model: TimeModel, launch: Launch, features: LaunchFeatures | None) -> Prediction:
    time_us = model.machine.floor_us if features is None else features.baseline_us
    if features is not None and _is_unknown_operator(launch):
        reason = "what the program's own operator computes is not known"
    elif features is not None:
        reason = f"the model has not learned {features.family}"
    else:
        reason = "its bytes are unknown" if launch.bytes_moved is None else "the size of its elements is unknown"
    roofline_us = None if features is None else features.roofline_us
    return by_roofline(model, launch.launch_id, time_us, roofline_us, reason)
