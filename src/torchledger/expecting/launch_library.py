"""What a library call computes, from the shapes and strides of its buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torchledger.expecting.attention_times import attention_us, schedule_columns
from torchledger.expecting.launch_attention import attention_call, attention_columns_of
from torchledger.expecting.launch_convolutions import (
    EXACT_FLOAT32,
    SINGLE,
    convolution_columns,
    expected_convolutions,
)
from torchledger.expecting.launch_families import family_of
from torchledger.expecting.launch_products import expected_products, product_columns, product_of
from torchledger.expecting.machine import Machine
from torchledger.expecting.tile_columns import EXPECTED
from torchledger.nouns import Launch
from torchledger.work.categories import operation_of
from torchledger.work.convolution_shapes import convolution_shape, makes_image_alone
from torchledger.work.kernel_counts import INTEGERS, kernels_of_launch
from torchledger.work.launch_tensors import tensors_of


def library_columns(launch: Launch, machine: Machine) -> dict[str, float]:
    """Features of a library call; those of an unknown kind are only its bytes and FLOPs."""
    kind = str(family_of(launch)).split("/")[0]
    inputs, outputs = tensors_of(launch)
    if kind == "launch:gemm":
        return product_columns(launch, machine)
    if kind == "launch:attention":
        return attention_columns_of(launch, machine)
    if kind == "launch:convolution":
        return convolution_columns(launch, machine)
    largest = max(launch.buffers, key=lambda buffer: math.prod(buffer.shape), default=None)
    indices = max((math.prod(buffer.shape) for buffer in inputs if buffer.dtype in INTEGERS), default=0)
    name = operation_of(launch)
    # What its bytes say little of: how a time goes with them differs from one of these to the next.
    kinds = {f"is {kind}": float(kind in name) for kind in _KINDS} | {"is gradient": float("backward" in name)}
    return {
        "log largest": math.log1p(math.prod(largest.shape)) if largest else 0.0,
        "log kernels": math.log(kernels_of_launch(launch) or 1),
        "log indices": math.log1p(indices),
        "log row": math.log1p(inputs[0].shape[-1]) if inputs else 0.0,
        "log rows": math.log1p(math.prod(inputs[0].shape[:-1])) if inputs else 0.0,
        "log made": math.log1p(max((math.prod(buffer.shape) for buffer in outputs), default=0)),
        "channels last": float(any(len(b.shape) == 4 and b.stride[1] == 1 < b.shape[1] for b in inputs)),
        "along rows": float(next(iter(launch.kwargs.values()), "") in ("1", "-1")),
        "half precision": float(any(buffer.dtype in ("bfloat16", "float16") for buffer in inputs)),
        **kinds,
    }


_KINDS = (
    *("embedding", "index", "scatter", "sort", "topk", "cumsum", "sum", "rand", "norm", "pool", "fft"),
    *("embedding_bag", "embedding_dense", "cum", "bicubic", "bilinear", "nearest", "grid", "im2col", "pad", "cholesky"),
    *("multinomial", "unique", "bincount", "histc", "nonzero", "masked", "median", "kthvalue", "cdist", "reduce"),
)


def expected_columns(
    launches: Sequence[Launch], machine: Machine, *, convolution_tf32: bool = True
) -> list[dict[str, float]]:
    """For each launch the columns that need its tiles' times: all of them computed at once, as one costs as many steps
    as a thousand. Empty for what is neither a matrix product, a convolution nor attention, and where it is unknown how
    many tiles run at once."""
    found: list[dict[str, float]] = [{} for _ in launches]
    if not machine.counts_waves:
        return found
    products: dict[int, tuple[Launch, tuple[float, ...]]] = {}
    convolutions: dict[str, list[tuple[int, dict[str, float]]]] = {"forward": [], "backward": [], "weight": []}
    for index, launch in enumerate(launches):
        kind = str(family_of(launch)).split("/")[0]
        if kind == "launch:gemm" and (row := product_of(launch, machine)) is not None:
            products[index] = launch, row
        elif kind == "launch:attention" and (call := attention_call(launch)) is not None:
            if (time_us := attention_us(call, machine)) is not None:
                found[index] = {EXPECTED: math.log(time_us), **schedule_columns(call, machine)}
        elif kind == "launch:convolution" and (given := convolution_shape(launch)) is not None:
            given["transposed"] = float(bool(given["transposed"]) != makes_image_alone(launch))
            given["peak"] = machine.convolution_peak(tensors_of(launch)[0][-1].dtype, allow_tf32=convolution_tf32)
            convolutions[str(family_of(launch)).split("/")[1]].append((index, given))
    for index, of_one in zip(products, expected_products(list(products.values()), machine), strict=True):
        found[index] = of_one
    for direction, rows in convolutions.items():
        for place, of_one in enumerate(expected_convolutions(direction, [given for _, given in rows], machine)):
            index, given = rows[place]
            found[index] = {
                **of_one,
                EXACT_FLOAT32: float(given["item size"] == SINGLE and not convolution_tf32),
            }
    return found
