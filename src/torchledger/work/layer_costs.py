"""Layers that are one operator: normalization, dropout, pooling, resizing and recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torchledger.nouns import Cost
from torchledger.work.cost_parts import (
    Formula,
    dense,
    like_first,
    memory_cost,
    named,
    revised,
    spread,
    work_cost,
)
from torchledger.work.flops import encoder_flops, recurrent_flops
from torchledger.work.op_shapes import OpCall, Tensor


def _dropout(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    return memory_cost([source], [dense(source), Tensor(source.shape, "bool")])


def _layer_norm(call: OpCall) -> Cost | None:
    source, normalized = call.tensor(0), call.ints(1)
    if source is None or normalized is None:
        return None
    rows = source.numel // max(math.prod(normalized), 1)
    statistics = Tensor((rows,), "float64" if source.dtype == "float64" else "float32")
    count = 1 if "rms" in call.base_name else 2
    read = [source, *(tensor for tensor in (call.tensor(2), call.tensor(3)) if tensor is not None)]
    return memory_cost(read, [dense(source), *[statistics] * count])


def _layer_norm_backward(call: OpCall) -> Cost | None:
    gradient, source = call.tensor(0), call.tensor(1)
    if gradient is None or source is None:
        return None
    parameters = [Tensor(tuple(call.ints(2) or ()), source.dtype)] * (1 if "rms" in call.base_name else 2)
    return memory_cost(call.tensors, [dense(source), *(parameters if call.ints(2) else ())])


def _batch_norm(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None or len(source.shape) < 2:
        return None
    channels = Tensor((source.shape[1],), "float32")
    return revised(memory_cost(call.tensors, [dense(source), channels, channels]), bytes_quality="estimated")


def _batch_norm_backward(call: OpCall) -> Cost | None:
    large = [tensor for tensor in call.tensors if len(tensor.shape) >= 2]
    if not large:
        return None
    channels = Tensor((large[0].shape[1],), "float32")
    return revised(memory_cost(call.tensors, [dense(large[0]), channels, channels]), bytes_quality="estimated")


def _group_norm(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    return revised(memory_cost(call.tensors, [dense(source)]), bytes_quality="estimated")


def _max_pool(call: OpCall) -> Cost | None:
    return _pool(call, extra="int64", ceil=5, dilation=4)


def _average_pool(call: OpCall) -> Cost | None:
    return _pool(call, extra=None, ceil=4, dilation=-1)


def _pool(call: OpCall, *, extra: str | None, ceil: int, dilation: int) -> Cost | None:
    source, kernel = call.tensor(0), call.ints(1)
    if source is None or not kernel:
        return None
    rank = len(kernel) if len(kernel) > 1 else len(source.shape) - 2
    kernel = spread(kernel, rank)
    stride = spread(call.ints(2) or kernel, rank)
    padding = spread(call.ints(3) or (0,), rank)
    dilated = spread((call.ints(dilation) if dilation >= 0 else None) or (1,), rank)
    rounds_up = call.constant(ceil).lower() in ("true", "1")
    spatial = []
    for axis in range(rank):
        free = source.shape[axis - rank] + 2 * padding[axis] - dilated[axis] * (kernel[axis] - 1) - 1
        steps = -(-free // stride[axis]) if rounds_up else free // stride[axis]
        if rounds_up and steps * stride[axis] >= source.shape[axis - rank] + padding[axis]:
            steps -= 1
        spatial.append(steps + 1)
    shape = (*source.shape[:-rank], *spatial)
    written = [Tensor(shape, source.dtype), *([Tensor(shape, extra)] if extra else [])]
    return memory_cost([source], written)


def _resized(call: OpCall) -> Cost | None:
    source = call.tensor(0)
    if source is None:
        return None
    size = call.ints(1) if call.constant(1).startswith("[") else _scaled_size(source, call)
    if not size:
        return None
    shape = (*source.shape[: len(source.shape) - len(size)], *size)
    written = [Tensor(shape, source.dtype)]
    if "max_pool" in call.base_name:
        written.append(Tensor(shape, "int64"))
    return memory_cost([source], written)


def _scaled_size(source: Tensor, call: OpCall) -> tuple[int, ...] | None:
    """The size by factors (``[2.0, 2.0]``), which stand last where no size is given."""
    text = next((text for text in reversed(call.constants) if text.startswith("[") and "." in text), None)
    if text is None:
        return None
    factors = [float(factor) for factor in text.strip("[]").split(",")]
    return tuple(int(size * factor) for size, factor in zip(source.shape[-len(factors) :], factors, strict=True))


def _resized_backward(call: OpCall) -> Cost | None:
    gradient = call.tensor(0)
    if gradient is None:
        return None
    size = next((values for position in (2, 1) if (values := call.ints(position)) and len(values) > 2), None)
    if size is not None:
        return memory_cost([gradient], [Tensor(size, gradient.dtype)])
    source = call.tensor(1)
    return None if source is None else memory_cost([gradient], [dense(source)])


def _pool_backward(call: OpCall) -> Cost | None:
    gradient, source = call.tensor(0), call.tensor(1)
    if gradient is None or source is None:
        return None
    indices = [tensor for tensor in call.tensors[2:] if tensor.dtype == "int64"]
    needs_source = "adaptive_max" in call.base_name
    return memory_cost([gradient, *indices, *([source] if needs_source else [])], [dense(source)])


def _fractional_pool(call: OpCall) -> Cost | None:
    """``fractional_max_pool2d(image, kernel, size, samples)``: pixels and where each was."""
    source, size, samples = call.tensor(0), call.ints(2), call.tensor(3)
    if source is None or not size or samples is None:
        return None
    shape = (*source.shape[: -len(size)], *size)
    return memory_cost([source, samples], [Tensor(shape, source.dtype), Tensor(shape, "int64")])


def _unpool(call: OpCall) -> Cost | None:
    """``max_unpool2d(pooled, indices, size)``: zeros, with each pixel where it was."""
    source, indices, size = call.tensor(0), call.tensor(1), call.ints(2)
    if source is None or indices is None or not size:
        return None
    return memory_cost([source, indices], [Tensor((*source.shape[: -len(size)], *size), source.dtype), dense(source)])


def _padded_backward(call: OpCall) -> Cost | None:
    gradient, source = call.tensor(0), call.tensor(1)
    return None if gradient is None or source is None else memory_cost([gradient], [dense(source)])


def _columns(call: OpCall) -> Cost | None:
    """``im2col(image, kernel, dilation, padding, stride)``: every filter's pixels as a column."""
    source, kernel = call.tensor(0), call.ints(1)
    if source is None or not kernel or len(kernel) != 2:
        return None
    dilation, padding, stride = (spread(call.ints(place) or (usual,), 2) for place, usual in ((2, 1), (3, 0), (4, 1)))
    positions = math.prod(
        (source.shape[axis - 2] + 2 * padding[axis] - dilation[axis] * (kernel[axis] - 1) - 1) // stride[axis] + 1
        for axis in range(2)
    )
    shape = (*source.shape[:-3], source.shape[-3] * math.prod(kernel), positions)
    return memory_cost([source], [Tensor(shape, source.dtype)])


def _image(call: OpCall) -> Cost | None:
    """``col2im(columns, size, kernel, ...)``: the columns added up where they overlap."""
    source, size, kernel = call.tensor(0), call.ints(1), call.ints(2)
    if source is None or size is None or not kernel or len(source.shape) < 2:
        return None
    shape = (*source.shape[:-2], source.shape[-2] // math.prod(spread(kernel, 2)), *size)
    return memory_cost([source], [Tensor(shape, source.dtype)])


def _grid_sampled(call: OpCall) -> Cost | None:
    source, grid = call.tensor(0), call.tensor(1)
    if source is None or grid is None:
        return None
    made = Tensor((*source.shape[:2], *grid.shape[1:-1]), source.dtype)
    return revised(memory_cost([source, grid], [made]), bytes_quality="upper_bound", basis="the whole image read")


def _grid_sampled_backward(call: OpCall) -> Cost | None:
    source, grid = call.tensor(1), call.tensor(2)
    if source is None or grid is None:
        return None
    cost = memory_cost(call.tensors, [dense(source), dense(grid)])
    return revised(cost, bytes_quality="upper_bound", basis="the whole image read and its gradient written")


def _gathered_statistics(call: OpCall) -> Cost | None:
    """What ranks summed of each channel, put together: of the image, which comes first, the dtype alone is asked."""
    sums = call.tensor(1)
    if sums is None or len(sums.shape) != 2:
        return None
    channels = Tensor((sums.shape[1],), sums.dtype)
    return revised(memory_cost(call.tensors[1:], [channels, channels]), bytes_quality="estimated")


def _channel_statistics(call: OpCall) -> Cost | None:
    """Sums over all but the channels: ``batch_norm_stats``, ``batch_norm_backward_reduce``."""
    source = call.tensor(0)
    if source is None or len(source.shape) < 2:
        return None
    sums = [Tensor((source.shape[1],), "float32")] * (4 if "backward" in call.base_name else 2)
    return revised(memory_cost(call.tensors, sums), bytes_quality="estimated")


def _weight_norm(call: OpCall) -> Cost | None:
    direction, length = call.tensor(0), call.tensor(1)
    if direction is None or length is None:
        return None
    return memory_cost([direction, length], [dense(direction), dense(length)])


def _fused_cell(call: OpCall) -> Cost | None:
    """The elementwise part of one step of a recurrent layer: gates in, state and workspace out."""
    gates = call.tensor(0)
    if gates is None:
        return None
    return revised(memory_cost(call.tensors, [dense(gates)]), bytes_quality="estimated")


def _recurrent(call: OpCall) -> Cost | None:
    """One layer (oneDNN, weights one by one) or all (cuDNN, in a list); packed sequences have two dimensions."""
    source = call.tensor(0)
    listed = call.tensor_list(1)
    single = [tensor for place in range(1, 5) if (tensor := call.tensor(place)) is not None]
    weights = [tensor for tensor in (listed or single) if len(tensor.shape) == 2]
    if source is None or len(source.shape) < 2 or not weights:
        return None
    is_backward = "backward" in call.base_name
    rows = math.prod(source.shape[:-1])
    flops = recurrent_flops(rows, [weight.shape for weight in weights]) * (2 if is_backward else 1)
    made = [dense(source), *(dense(weight) for weight in weights if is_backward)]
    return revised(work_cost(flops, call.tensors, made), bytes_quality="estimated")


def _encoder(call: OpCall) -> Cost | None:
    """An encoder layer, or its attention, as one operator; what is kept between its products is not counted."""
    source = call.tensor(0)
    is_layer = "layer" in call.base_name
    keys = source if is_layer else call.tensor(1)
    if source is None or keys is None or len(source.shape) != 3 or len(keys.shape) != 3:
        return None
    places = (3, 5, 14, 16) if is_layer else (5, 7)  # its weights' in the operator's schema
    weights = [tensor for place in places if (tensor := call.tensor(place)) is not None]
    if len(weights) < len(places):
        return None
    flops = encoder_flops(source.shape, keys.shape[1], source.shape[-1], [weight.shape for weight in weights])
    return revised(work_cost(flops, call.tensors, [dense(source)]), bytes_quality="estimated")


LAYER_COSTS: Mapping[str, Formula] = {
    **named("native_dropout dropout _fused_dropout", _dropout),
    **named("native_layer_norm layer_norm rms_norm _fused_rms_norm", _layer_norm),
    **named("native_layer_norm_backward _fused_rms_norm_backward", _layer_norm_backward),
    **named(
        """native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit
        _native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update batch_norm
        _batch_norm_impl_index batch_norm_elemt""",
        _batch_norm,
    ),
    **named(
        """native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward batch_norm_backward
        _batch_norm_impl_index_backward batch_norm_backward_elemt""",
        _batch_norm_backward,
    ),
    **named("native_group_norm group_norm instance_norm", _group_norm),
    "native_group_norm_backward": like_first(),
    **named("max_pool2d_with_indices max_pool3d_with_indices", _max_pool),
    **named("avg_pool1d avg_pool2d avg_pool3d", _average_pool),
    **named(
        """_adaptive_avg_pool2d adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d upsample_bilinear2d
        upsample_bicubic2d upsample_linear1d upsample_trilinear3d _upsample_bilinear2d_aa""",
        _resized,
    ),
    **named(
        """upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_linear1d_backward
        upsample_trilinear3d_backward _upsample_nearest_exact2d_backward _adaptive_avg_pool2d_backward
        _adaptive_avg_pool3d_backward""",
        _resized_backward,
    ),
    **named(
        """max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward
        adaptive_max_pool2d_backward adaptive_max_pool3d_backward fractional_max_pool2d_backward
        fractional_max_pool3d_backward""",
        _pool_backward,
    ),
    **named("_cudnn_rnn miopen_rnn mkldnn_rnn_layer", _recurrent),
    **named("_cudnn_rnn_backward miopen_rnn_backward mkldnn_rnn_layer_backward", _recurrent),
    **named("_transformer_encoder_layer_fwd _native_multi_head_attention", _encoder),
    **named("_thnn_fused_lstm_cell _thnn_fused_gru_cell", _fused_cell),
    **named("_thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell_backward", _fused_cell),
    **named("fractional_max_pool2d fractional_max_pool3d", _fractional_pool),
    **named("max_unpool2d max_unpool3d", _unpool),
    **named(
        """reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward
        replication_pad2d_backward replication_pad3d_backward""",
        _padded_backward,
    ),
    "im2col": _columns,
    "col2im": _image,
    **named("grid_sampler_2d grid_sampler_3d cudnn_grid_sampler", _grid_sampled),
    **named("grid_sampler_2d_backward grid_sampler_3d_backward", _grid_sampled_backward),
    **named("batch_norm_stats batch_norm_backward_reduce", _channel_statistics),
    **named("batch_norm_gather_stats batch_norm_gather_stats_with_counts", _gathered_statistics),
    "_weight_norm_interface": _weight_norm,
}
"""Operator name (without namespace and in-place mark) to its formula."""
