"""What the algorithm of an operator does whose bytes say little of its time.

Recurrent layers take their time steps one after another, factorizations their columns; samplers and interpolations have
a thread walk through all channels, solvers of alignments through all frames; some launch a kernel for each picture of
a batch. Of each such call the parts are said of which its time is a sum: the launch, turns that follow one another,
and work that all of the device shares. How long each part takes is learned (``fitting/algorithm_costs.py``).

Which way an operator goes is torch's own choice where its source says it. Families of operators are told beside this
(``layer_algorithms.py`` and its like); here is which operator is of which.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchledger.nouns import TensorArgument
from torchledger.work.algorithm_calls import Call, Parts
from torchledger.work.categories import operator_name
from torchledger.work.copy_algorithms import turned
from torchledger.work.layer_algorithms import aligned, encoder, pictures_loss, ragged, recurrent, rows_loss, scanned
from torchledger.work.norm_algorithms import (
    by_known_sums,
    by_norm,
    channel_sums,
    grouped,
    normalized,
    picture_norm,
    ranks_joined,
)
from torchledger.work.picture_algorithms import (
    cubic_gradient,
    enlarged,
    enlarged_picture,
    folded,
    grid_made,
    grid_sampled,
    padded_gradient,
    pooled,
    repeated,
    smoothed,
    unfolded,
    upward_volume,
)
from torchledger.work.place_algorithms import (
    bags,
    bags_gradient,
    by_element,
    indexed,
    joined,
    largest_of_rows,
    put_where_masked,
    rows_added,
    rows_put,
    rows_taken,
    words_gradient,
    words_looked_up,
)
from torchledger.work.settings import Settings
from torchledger.work.solver_algorithms import distances, factored, of_sparse, solved, transformed


def costs_of(name: str) -> str:
    """The operator whose costs a call has: one that writes in place those of the one that copies first, which has the
    copy as a part of its own, and one that calls another those of that one.

    >>> costs_of("aten::index_add_"), costs_of("aten::index_put_"), costs_of("aten::embedding")
    ('aten::index_add', 'aten::index_put_', 'aten::index_select')
    """
    if name in _CALLS:
        return _CALLS[name]
    return name.removesuffix("_") if operator_name(name)[1] in _COPIES_FIRST else name


_CALLS = {"aten::embedding": "aten::index_select", "aten::clone": "aten::copy_", "aten::stack": "aten::cat"}
_COPIES_FIRST = frozenset({"index_add", "scatter_add", "scatter_reduce", "scatter"})


def parts_of(
    name: str,
    arguments: Sequence[TensorArgument],
    settings: Settings | None,
    *,
    flops: int | None = None,
    bytes_moved: int | None = None,
) -> Parts | None:
    """The parts of a call's work; ``None`` for other operators, and where its sizes are not recorded.

    >>> rows = [TensorArgument((35, 20, 64), "float32", None)]
    >>> options = (("mode", (2,)), ("hidden_size", (64,)), ("num_layers", (2,)))
    >>> parts_of("aten::_cudnn_rnn", rows, options, flops=10**9, bytes_moved=10**6).way
    'persistent, float32, 4 gates'
    """
    bare = operator_name(name)[1]
    found = _FAMILIES.get(bare) or _FAMILIES.get(bare.removesuffix("_backward"))
    if any(each.is_sparse for each in arguments):
        found = of_sparse
    if found is None or not arguments or (settings is None and found is not aligned):
        return None
    call = Call(
        bare,
        tuple(each.shape for each in arguments),
        arguments,
        dict(settings or ()),
        flops or 0.0,
        (bytes_moved or 0) / 1e6,
        bare.endswith("_backward") or "_backward_" in bare,
        name.endswith("_"),
    )
    try:
        return found(call)
    except (LookupError, ValueError, ZeroDivisionError):
        return None  # by another version of torch, with other arguments or options


_FAMILIES: dict[str, Callable[[Call], Parts | None]] = {
    **dict.fromkeys(("_cudnn_rnn", "miopen_rnn"), recurrent),
    **dict.fromkeys(
        (
            *("linalg_cholesky_ex", "linalg_lu_factor_ex", "linalg_inv_ex", "linalg_qr", "linalg_matrix_exp"),
            *("_linalg_slogdet", "_linalg_det", "_linalg_eigh", "_linalg_svd", "linalg_eig"),
            "cholesky_inverse",
        ),
        factored,
    ),
    **dict.fromkeys(("linalg_lu_solve", "cholesky_solve", "linalg_solve_triangular", "_linalg_solve_ex"), solved),
    **dict.fromkeys(("grid_sampler_2d", "cudnn_grid_sampler"), grid_sampled),
    "affine_grid_generator": grid_made,
    "im2col": unfolded,
    "col2im": folded,
    "_ctc_loss": aligned,
    **dict.fromkeys(("nll_loss2d_forward", "nll_loss2d"), pictures_loss),
    **dict.fromkeys(("upsample_linear1d", "upsample_trilinear3d"), enlarged),
    "upsample_nearest3d": repeated,
    **dict.fromkeys(("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"), smoothed),
    "upsample_bicubic2d_backward": cubic_gradient,
    **dict.fromkeys(("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"), enlarged_picture),
    **dict.fromkeys(("index_add", "scatter_add", "scatter_reduce"), rows_added),
    **dict.fromkeys(("index_put", "_index_put_impl"), rows_put),
    "index": indexed,
    "masked_scatter": put_where_masked,
    **dict.fromkeys(("cat", "stack"), joined),
    **dict.fromkeys(("clone", "copy"), turned),
    "native_group_norm": grouped,
    "_weight_norm_interface": by_norm,
    **dict.fromkeys(("_softmax", "_log_softmax"), normalized),
    **dict.fromkeys(("index_select", "gather"), rows_taken),
    "embedding": words_looked_up,
    "scatter": by_element,
    "_transformer_encoder_layer_fwd": encoder,
    **dict.fromkeys(("_flash_attention_forward", "_flash_attention"), ragged),
    **dict.fromkeys(("_cdist_forward", "_cdist"), distances),
    "convolution": upward_volume,
    "cudnn_batch_norm": picture_norm,
    "native_batch_norm": by_known_sums,
    **dict.fromkeys(("avg_pool2d", "max_pool2d_with_indices"), pooled),
    **dict.fromkeys(("reflection_pad1d", "reflection_pad2d", "reflection_pad3d"), padded_gradient),
    "_embedding_bag": bags,
    "_embedding_bag_backward": bags_gradient,
    "topk": largest_of_rows,
    **dict.fromkeys(("batch_norm_stats", "batch_norm_backward_reduce"), channel_sums),
    "batch_norm_gather_stats_with_counts": ranks_joined,
    **dict.fromkeys(("nll_loss_forward", "nll_loss"), rows_loss),
    "embedding_dense_backward": words_gradient,
    **dict.fromkeys(("cumsum", "cumprod", "_logcumsumexp"), scanned),
    **dict.fromkeys(("_fft_c2c", "_fft_r2c", "_fft_c2r"), transformed),
}
