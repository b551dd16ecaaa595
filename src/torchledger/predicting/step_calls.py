"""The eager part of a recorded step: a time for each operator and collective, by what was learned of operators."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torchledger.errors import PredictError
from torchledger.expecting.adaptive_pools import ADAPTIVE_POOLS, is_adaptive_pool
from torchledger.fitting.call_costs import (
    LIKE_OTHERS,
    LIKE_OTHERS_ALONG,
    CallCost,
    bytes_of_call,
    cost_keys,
    cost_of,
    elements_of,
    is_elementwise,
    is_scaler,
    known_name,
    launches_of_call,
    roofline_keys,
    share_of_chunk,
    steps_along,
)
from torchledger.fitting.catalogue_calls import beside_catalogue
from torchledger.fitting.picture_norms import picture_norm_us
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Launch, Prediction, StepCall, TensorArgument
from torchledger.predicting.bus_copies import is_copy, main_stream, price_copy, reads_a_number, runs_beside
from torchledger.predicting.call_parts import (
    as_others,
    bytes_of,
    further_call,
    price_by_parts,
    roofline_of,
    slower_lanes,
    subject_of,
)
from torchledger.predicting.convolution_biases import bias_work
from torchledger.predicting.convolution_copies import laid_out
from torchledger.predicting.eager_launches import has_mask, launch_of
from torchledger.predicting.int8_launches import INT8
from torchledger.predicting.launches import predict_launches
from torchledger.predicting.operators import by_roofline, predict
from torchledger.predicting.questions import is_over_lists, question_of
from torchledger.work.algorithms import parts_of
from torchledger.work.categories import operator_name
from torchledger.work.element_sizes import element_size
from torchledger.work.graph_collectives import WAIT, GraphCollective
from torchledger.work.kernel_counts import is_filled_by_mask
from torchledger.work.list_costs import works_on_lists
from torchledger.work.settings import TAKEN, setting
from torchledger.work.tensor_layouts import is_contiguous


def price_calls(
    model: TimeModel,
    calls: Sequence[StepCall],
    *,
    ran_on_cpu: bool,
    allow_tf32: bool = False,
    convolution_tf32: bool = True,
) -> list[tuple[StepCall, Prediction]]:
    """The calls of a step that work on the device, each with its predicted time; graphs are left to their launches.

    An operator that the model has learned is asked for at the call's sizes. Of any other the time is its roofline at
    the rates that the device was measured at, plus the launch floor; ``Prediction.model`` is then ``"roofline"``.
    Copies between host and device are priced unless they run on a stream of their own.
    ``ran_on_cpu`` says that the record is of a CPU, where no kernel tells which operators do work; ``allow_tf32`` and
    ``convolution_tf32`` are those of ``predict_launches``.
    """
    answers: dict[Hashable, Prediction] = {}
    found = []
    as_launches = _AsLaunches(
        model,
        [call for call in calls if is_priced(call, ran_on_cpu=ran_on_cpu)],
        allow_tf32=allow_tf32,
        convolution_tf32=convolution_tf32,
    )
    beside_scaler = any(is_scaler(call.name) for call in calls)
    main = main_stream(calls)
    for call in calls:
        if is_copy(call) and not ran_on_cpu and not runs_beside(call, main):
            copied = price_copy(model, call)
            found += [] if copied is None else [(call, copied)]
            continue
        if not is_priced(call, ran_on_cpu=ran_on_cpu):
            continue
        key = replace(call, order=0, **_OF_ONE_CALL)
        if key not in answers:
            answers[key] = _price(model, call, as_launches, beside_scaler=beside_scaler)
        found.append((call, answers[key]))
    return found


_OF_ONE_CALL: Mapping[str, Any] = {
    **dict.fromkeys(("start_us", "host_us", "predicted_us", "own_us", "own_source")),
    **dict.fromkeys(("samples_us", "sources", "modules", "streams"), ()),
}
"""What calls at the same sizes differ in, and their prices do not."""


def predict_graph_collectives(
    model: TimeModel, collectives: Iterable[GraphCollective], group_sizes: Mapping[str, int]
) -> list[Prediction]:
    """The collectives that compiled graphs call; ``group_sizes`` names the ranks of process groups.

    What waits for one launches nothing, and has no prediction. Of a group whose size nothing says, the time is that of
    the bytes.
    """
    found, no_launches = [], _AsLaunches(model, ())
    for collective in collectives:
        if collective.name == WAIT:
            continue
        launch = collective.launch
        size = group_sizes.get(collective.group or "") or collective.group_size
        message = collective.message_bytes(size)
        call = StepCall(
            step="",
            order=launch.order,
            kind="collective",
            name=collective.operator,
            phase="communication",
            kernels=1,
            arguments=tuple(TensorArgument(each.shape, each.dtype, each.stride) for each in launch.buffers),
            bytes_moved=message,
            group=collective.group,
            group_size=size,
            message_bytes=message,
        )
        found.append(replace(_price(model, call, no_launches), subject=launch.launch_id))
    return found


def is_priced(call: StepCall, *, ran_on_cpu: bool) -> bool:
    """True for an eager operator or collective that keeps the device busy; views and synchronizations do not."""
    is_read = reads_a_number(call) and not (call.device or "").startswith("cpu")
    if call.kind not in ("operator", "collective") or is_read:
        return False
    if not ran_on_cpu:
        return call.kernels > 0
    return bool(call.flops) or call.bytes_moved is None or call.bytes_moved > 0


def is_recurrent_by_bytes(model: TimeModel, call: StepCall) -> bool:
    """True for all layers of an LSTM, GRU or plain recurrent network at once, whose time steps follow one another, if
    the model has not learned what these take."""
    is_recurrent = operator_name(call.name)[1].removesuffix("_backward") in ("_cudnn_rnn", "miopen_rnn")
    return is_recurrent and price_by_parts(model, call) is None


class _AsLaunches:
    """The prices of calls as the launches that a graph makes of them, asked for all at once."""

    def __init__(
        self,
        model: TimeModel,
        calls: Iterable[StepCall],
        *,
        allow_tf32: bool = False,
        convolution_tf32: bool = True,
    ) -> None:
        launches: dict[Hashable, Launch] = {}
        self.device = f"{model.machine.device.kind}:0"
        self._laid_out: dict[Hashable, tuple[StepCall, tuple[StepCall, ...]]] = {}
        for call, _ in map(self.laid_out, calls):
            key = _work_of(call)
            if key not in launches:
                launch = launch_of(call, self.device)
                if launch is not None:
                    launches[key] = replace(launch, order=len(launches))
        predictions = predict_launches(
            model, list(launches.values()), allow_tf32=allow_tf32, convolution_tf32=convolution_tf32
        )
        keys = {launch.launch_id: key for key, launch in launches.items()}
        learned = {*model.entries, INT8}
        self._found = {keys[each.subject]: each for each in predictions if each.model in learned}

    def price(self, call: StepCall) -> Prediction | None:
        """``None`` where a graph makes no such launch, or none was learned. A convolution is priced without what it
        copies first."""
        found = self._found.get(_work_of(self.laid_out(call)[0]))
        return None if found is None else replace(found, subject=subject_of(call))

    def laid_out(self, call: StepCall) -> tuple[StepCall, tuple[StepCall, ...]]:
        """The call in the layout in which it runs, and what it copies for that."""
        key = _work_of(call)
        if key not in self._laid_out:
            self._laid_out[key] = laid_out(call, self.device)
        return self._laid_out[key]


def _work_of(call: StepCall) -> Hashable:
    return call.name, call.arguments, call.settings, call.flops, call.flops_quality


_DRAWN_LIKE = {"aten::randn": "aten::randn_like", "aten::rand": "aten::rand_like"}
"""Random tensors by their sizes alone, and what draws the same like another tensor."""
_DRAWN, _DRAWN_SIZE = "float32", 4


def _as_like_another(call: StepCall) -> StepCall | None:
    """Random numbers that are drawn into a new tensor, as if they were drawn like another; which type they have is not
    recorded, and is taken to be torch's usual one. Rows and values at numbers as their kernels take them. ``None`` for
    any other call."""
    if (otherwise := _taken_otherwise(call)) is not None:
        return otherwise
    name = _DRAWN_LIKE.get(call.name)
    if name is None or call.arguments or not call.bytes_moved:
        return None
    drawn = TensorArgument((call.bytes_moved // _DRAWN_SIZE,), _DRAWN, (1,))
    return replace(call, name=name, arguments=(drawn,))


def _taken_otherwise(call: StepCall) -> StepCall | None:
    """Whole rows that are looked up by one number each as if they were selected, single values that are selected as if
    they were looked up, and one number that is put where a mask says as if it were filled in: the kernels are the same;
    ``None`` for any other call."""
    if call.name in _FILLED_BY_MASKS and not any(setting(call.settings, "accumulate") or ()):
        if not is_filled_by_mask([(each.shape, each.dtype) for each in call.arguments]):
            return None
        return replace(call, name=_FILLED_BY_MASKS[call.name], arguments=call.arguments[:2], settings=())
    if call.name not in ("aten::index", "aten::index_select") or len(call.arguments) != _TABLE_AND_NUMBERS:
        return None
    if call.arguments[1].dtype not in ("int64", "int32") or setting(call.settings, "indices") is not None:
        return None
    are_values = parts_of("aten::index", call.arguments, (), bytes_moved=call.bytes_moved) is not None
    if call.name == "aten::index" and not are_values:
        return replace(call, name="aten::index_select", settings=(("dim", (0,)),))
    if call.name == "aten::index_select" and are_values and setting(call.settings, "dim") == (0,):
        return replace(call, name="aten::index", settings=())
    return None


_TABLE_AND_NUMBERS = 2
_FILLED_BY_MASKS = {"aten::index_put": "aten::masked_fill"} | dict.fromkeys(
    ("aten::index_put_", "aten::_index_put_impl_"), "aten::masked_fill_"
)


def _by_places(call: StepCall) -> tuple[StepCall, StepCall] | None:
    """Of elements that a mask takes, how many being known, the search for the places where it is true, and what is
    taken from these; ``None`` for any other call."""
    taken = setting(call.settings, TAKEN)
    if call.name != "aten::index" or not taken or len(call.arguments) != _TABLE_AND_NUMBERS or not call.bytes_moved:
        return None
    table, mask = call.arguments
    dims = len(mask.shape)
    place = TensorArgument((taken[0],), "int64", (1,))
    search_bytes = math.prod(mask.shape) + dims * bytes_of(place)
    looked_for = further_call(call, "aten::nonzero", (mask,), search_bytes)
    others = tuple(each for each in call.settings or () if each[0] != TAKEN)
    by_places = replace(
        call, arguments=(table, *[place] * dims), settings=others, bytes_moved=call.bytes_moved - search_bytes
    )
    return looked_for, by_places


def _one_of_list(call: StepCall) -> StepCall | None:
    """One tensor of a list that is worked on one by one, as torch does where each has a number of its own in a tensor
    (what a capturable optimizer divides by); ``None`` for any other call."""
    shapes = {each.shape for each in call.arguments}
    count = call.tensors or 0
    is_by_numbers = () in shapes and len(shapes) > 1
    is_one_by_one = count == call.kernels > (1 if is_by_numbers else _FEW_LARGE)
    if not is_over_lists(call) or not (is_one_by_one and call.elements):
        return None
    first = TensorArgument((call.elements // count,), call.arguments[0].dtype, (1,))
    nbytes = None if call.bytes_moved is None else call.bytes_moved // count
    return replace(
        call, name="aten::mul_", arguments=(first,), kernels=1, bytes_moved=nbytes, tensors=None, elements=None
    )


_FEW_LARGE = 8
"""Tensors of a list up to which as many kernels may be of lists: those that fill one each."""


def _times(said: Prediction, call: StepCall) -> Prediction:
    """The price of one tensor of a list for all of them."""
    count = call.tensors or 1
    return replace(
        said,
        subject=subject_of(call),
        duration_us=count * said.duration_us,
        low_us=count * said.low_us,
        high_us=count * said.high_us,
        note="a kernel for each tensor of the list",
    )


_LISTS = {True: "aten::_foreach_mul_", False: "aten::_foreach_sqrt"}
"""Lists that many optimizers work on, in place and into new tensors."""


def _as_another_list(call: StepCall) -> StepCall | None:
    """An element-wise call over lists as one over lists that is known, by its bytes; ``None`` for any other call."""
    bare = operator_name(call.name)[1]
    name = _LISTS[call.name.endswith("_")]
    is_of_lists = bare.startswith("_foreach_") and not bare.startswith(("_foreach_norm", "_foreach_max"))
    return replace(call, name=name) if is_of_lists and call.name != name else None


def _price(model: TimeModel, call: StepCall, as_launches: _AsLaunches, *, beside_scaler: bool = False) -> Prediction:
    if (drawn := _as_like_another(call)) is not None:
        return replace(_price(model, drawn, as_launches), subject=subject_of(call))
    if (masked := _by_places(call)) is not None:
        looked_for, taken = (_price(model, each, as_launches) for each in masked)
        return replace(_and(taken, looked_for), subject=subject_of(call))
    if (single := _one_of_list(call)) is not None:
        return _times(_price(model, single, as_launches), call)
    if (by_parts := price_by_parts(model, call)) is not None:
        return by_parts
    if is_of_sparse(call):
        return _by_bytes(model, replace(call, flops=None), "what sparse tensors hold decides its time")
    if is_adaptive_pool(operator_name(call.name)[1]) and ADAPTIVE_POOLS in model.entries:
        as_pool = as_launches.price(call)
        if as_pool is not None:
            return as_pool
    if (by_channels := _by_channels(model, call)) is not None:
        return by_channels
    question = None if _is_of_wide_numbers(call) else question_of(call)
    names = dict.fromkeys((known_name(call.name, beside_scaler=beside_scaler), call.name))
    keys = [key for name in names for key in cost_keys(name, call.arguments, call.settings)]
    # A call of another layout than those that were seen is nearer to these than to its roofline.
    dtype = call.arguments[0].dtype if call.arguments else None
    others = (f"{call.name} {dtype}", call.name, f"{call.name} across")
    cost = cost_of((*keys, *others), model.extras, call.bytes_moved)
    # What the catalogue says of a list is of tensors alike: in a list of a model's, some fill blocks and most do not.
    is_described = question is not None and question.note is None and not is_over_lists(call)
    if cost is None and (alike_list := _as_another_list(call)) is not None:
        return replace(_price(model, alike_list, as_launches), subject=subject_of(call))
    if cost is not None and call.bytes_moved is not None and not is_described and not _is_product(call):
        of_own = [key for key in (*keys, *others) if not key.startswith((LIKE_OTHERS, LIKE_OTHERS_ALONG))]
        is_own = cost_of(of_own, model.extras, call.bytes_moved) == cost
        alike = (
            "element-wise calls of its layout" if is_elementwise(call.name) else "calls of its kind along a dimension"
        )
        return _by_cost(model, call, cost, "calls" if is_own else alike)
    reason = f"the model has learned no {call.name}"
    is_launch = question is None or _is_product(call) or _is_known_as_launch(model, call)
    as_launch = as_launches.price(call) if is_launch else None
    if as_launch is not None:
        return _with_copies_and_bias(model, call, as_launches, as_launch)
    if question is not None:
        try:
            found = predict(
                model, question.operator, question.parameters, direction=question.direction, dtype=question.dtype
            )
        except PredictError as error:
            reason = str(error).rstrip(".")
        else:
            notes = [note for note in (found.note, question.note) if note]
            answer = replace(found, subject=subject_of(call), note="; ".join(notes) or None)
            answer = _in_a_step(model, call, answer) if is_of_catalogue(call) else answer
            answer = _with_copies(model, call, as_launches, answer)
            return _not_from_the_cache(model, call, answer) if _accumulates(call) else answer
    return _by_bytes(model, call, reason)


def _with_copies(model: TimeModel, call: StepCall, as_launches: _AsLaunches, said: Prediction) -> Prediction:
    """A norm over rows that do not lie one behind the other, and the copies in which they do."""
    if operator_name(call.name)[1] not in _OF_ROWS_BEHIND_ONE_ANOTHER:
        return said
    shape = call.arguments[0].shape if call.arguments else ()
    turned = [each for each in call.arguments if each.shape == shape and not is_contiguous(each)]
    for each in turned:
        copy = further_call(call, "aten::clone", (each,), 2 * bytes_of(each), None)
        said = _and(said, _price(model, copy, as_launches))
    return said


def _with_copies_and_bias(model: TimeModel, call: StepCall, as_launches: _AsLaunches, said: Prediction) -> Prediction:
    """A convolution, what it copies into the layout in which it runs, and what it does for its bias."""
    call, copies = as_launches.laid_out(call)
    bias = bias_work(call, as_launches.device)
    for further in (*copies, *(() if bias is None else (bias,))):
        said = _and(said, _price(model, further, as_launches))
    return said


def _and(said: Prediction, further: Prediction) -> Prediction:
    """One after the other."""
    return replace(
        said,
        duration_us=said.duration_us + further.duration_us,
        low_us=said.low_us + further.low_us,
        high_us=said.high_us + further.high_us,
    )


_OF_ROWS_BEHIND_ONE_ANOTHER = ("native_layer_norm", "native_layer_norm_backward")
"""Whose kernels torch gives no other (``layer_norm_kernel.cu``)."""


def is_of_sparse(call: StepCall) -> bool:
    """True for a call that was given a sparse tensor, of which its bytes alone tell. Records of before say so of no
    tensor: of a product it is a matrix that has no strides while others have."""
    if any(each.is_sparse for each in call.arguments):
        return True
    matrices = [each for each in call.arguments if len(each.shape) > 1]
    is_product = _is_product(call) or "sparse" in call.name
    return is_product and any(each.stride is None for each in matrices) and any(each.stride for each in matrices)


def _is_of_wide_numbers(call: StepCall) -> bool:
    """True for what the catalogue, whose numbers have four bytes at most, would take for less work; its products are
    asked for by their FLOPs."""
    dtype = call.arguments[0].dtype if call.arguments else None
    return dtype in ("float64", "complex64", "complex128") and not _is_product(call)


def is_of_catalogue(call: StepCall) -> bool:
    """True for a call that an operator of the catalogue describes, and that is no product, attention or list."""
    if call.kind != "operator" or is_over_lists(call) or _is_product(call):
        return False
    question = question_of(call)
    return question is not None and question.note is None and question.operator not in _BY_THEMSELVES


_BY_THEMSELVES = frozenset(("linear", "linear_fp8", "bmm", "grouped_gemm", "sdpa"))
"""What computes, of which the catalogue knows the states that it is timed in."""


def _in_a_step(model: TimeModel, call: StepCall, said: Prediction) -> Prediction:
    """The catalogue's word, as calls in other steps took beside it."""
    learned = beside_catalogue(call.name, model.extras)
    if learned is None:
        return said
    time_us, wide = learned.duration_us(said.duration_us), math.exp(learned.spread)
    low_us = min(time_us / wide, learned.duration_us(said.low_us))
    high_us = max(time_us * wide, learned.duration_us(said.high_us))
    return replace(said, duration_us=time_us, low_us=low_us, high_us=high_us)


def _accumulates(call: StepCall) -> bool:
    """True for what adds a gradient to one that is there, of the microbatch before."""
    alike = {(each.shape, each.dtype) for each in call.arguments}
    is_added = operator_name(call.name)[1] == "add" and call.name.endswith("_")
    return call.phase == "backward" and is_added and len(call.arguments) == _BOTH and len(alike) == 1


_BOTH = 2


def _not_from_the_cache(model: TimeModel, call: StepCall, said: Prediction) -> Prediction:
    """What reads a tensor that was written a whole pass ago, which the catalogue's repeats find in the cache."""
    least_us = (roofline_of(model, call) or 0.0) + model.machine.floor_us
    if said.duration_us >= least_us:
        return said
    note = "; ".join(filter(None, (said.note, "what it adds to was written a pass ago, and is read from memory")))
    high_us = max(said.high_us, least_us * said.high_us / said.duration_us)
    return replace(said, duration_us=least_us, high_us=high_us, note=note)


def _is_known_as_launch(model: TimeModel, call: StepCall) -> bool:
    """True for attention of which launches of graphs tell more than the catalogue's operator, which was measured
    without mask and dropout, in half precision, by the library that a device of its generation takes by itself.

    On a device of another generation that library is another, and nothing measured says that launches tell more of it.
    """
    if not operator_name(call.name)[1].startswith("_scaled_dot_product_"):
        return False
    machine = model.machine
    if machine.learned_on in (None, machine.device.compute_capability):
        return True
    return "_efficient_" in call.name or has_mask(call) or call.arguments[0].dtype == "float32"


def _is_product(call: StepCall) -> bool:
    """True for what its bytes say little of."""
    return operator_name(call.name)[1] in ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")


def _bytes_of(call: StepCall, recorded: int) -> int:
    """What a call moves: of places that are written where indices say, recordings of before had all of the target."""
    recorded = bytes_of_call(call.name, call.arguments, call.settings, recorded) or 0
    if operator_name(call.name)[1] != "scatter" or not call.name.endswith("_") or len(call.arguments) < _OF_SCATTER:
        return recorded
    target, *others = call.arguments
    size = element_size(target.dtype) or 1
    sources = sum(math.prod(each.shape) * (element_size(each.dtype) or 1) for each in others)
    return min(recorded, sources + size * max(math.prod(each.shape) for each in others))


_OF_SCATTER = 3
"""Target, indices and values."""


def _by_cost(model: TimeModel, call: StepCall, cost: CallCost, taught: str) -> Prediction:
    assert call.bytes_moved is not None
    moved = _bytes_of(call, call.bytes_moved)
    # What no device ran, as in a plan, has no kernels to count; those of a list follow from it.
    is_counted = call.samples_us or (call.kernels and works_on_lists(call.name))
    kernels = call.kernels if is_counted else max(call.kernels, cost.kernels)
    chunk = share_of_chunk(call.tensors, call.elements)
    slower = slower_lanes(model.machine)
    time_us = cost.duration_us(
        kernels,
        moved,
        model.machine.bytes_per_us,
        chunk=chunk,
        elements=round(elements_of(call.name, call.arguments, call.elements) * slower),
        steps=round(steps_along(call.name, call.arguments, call.settings) * slower),
        launches=launches_of_call(call.name, call.arguments, call.tensors, call.elements, kernels),
    )
    roofline_us = moved / model.machine.bytes_per_us
    return as_others(
        model, call, cost.spread, time_us, roofline_us, f"by its kernels and bytes, as {taught} in other steps took"
    )


def _by_channels(model: TimeModel, call: StepCall) -> Prediction | None:
    """A batch norm of pictures as such calls took; ``None`` of any other call."""
    own, reference = model.machine, model.machine.constants.reference
    slower = memory = 1.0
    if own.learned_on is not None:
        slower = slower_lanes(own) * own.num_multiprocessors / (reference.device.num_multiprocessors or 1)
        memory = own.bytes_per_us / reference.bytes_per_us
    found = picture_norm_us(
        call.name,
        call.arguments,
        model.extras,
        multiprocessors=own.num_multiprocessors,
        slower=slower,
        memory=memory,
    )
    if found is None:
        return None
    time_us, spread = found
    return as_others(model, call, spread, time_us, roofline_of(model, call), "by its channels, as such calls took")


def _by_bytes(model: TimeModel, call: StepCall, reason: str) -> Prediction:
    machine = model.machine
    roofline = roofline_of(model, call)
    if call.bytes_moved is None:
        reason += "; its bytes are unknown"
    cost = cost_of(roofline_keys(call.name, call.arguments), model.extras) if roofline else None
    if cost is not None and roofline is not None:
        return _above_roofline(model, call, cost, roofline)
    time_us = (roofline or 0.0) + machine.floor_us * max(1, call.kernels)
    return by_roofline(model, subject_of(call), time_us, roofline, reason)


def _above_roofline(model: TimeModel, call: StepCall, cost: CallCost, roofline_us: float) -> Prediction:
    time_us = max(roofline_us * cost.slowness + cost.kernel_us * max(1, call.kernels), model.machine.floor_us)
    note = "by its roofline, as calls in other steps stay above theirs"
    return as_others(model, call, cost.spread, time_us, roofline_us, note)
