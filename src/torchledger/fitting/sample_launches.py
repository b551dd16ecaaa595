"""Operator samples as the library launches that they are, so that both kinds of data teach one regressor.

A model's convolutions and matrix products are few and alike; a sweep's are many and unlike. Written as launches, the
sweep's fill the families that predict a model's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from torchledger.nouns import Buffer, Launch, Sample
from torchledger.operators import find_operator
from torchledger.store.launch_file import MeasuredLaunch
from torchledger.work.element_sizes import ELEMENT_SIZES


def launches_of_samples(samples: Iterable[Sample]) -> list[MeasuredLaunch]:
    """The convolutions and forward products among measured samples, each a graph of its own, so that nothing before it
    is in the cache. A product's backward is two launches, whose times were not measured apart."""
    found = []
    for index, sample in enumerate(samples):
        if sample.status != "ok" or not sample.times_us:
            continue
        if sample.operator == "conv2d":
            launch = _convolution(sample, f"sample_{index}")
        elif sample.operator in ("linear", "bmm") and sample.direction == "forward":
            launch = _product(sample, f"sample_{index}")
        else:
            continue
        found.append(MeasuredLaunch(launch, (float(np.median(sample.times_us)),), f"sample-{sample.point_id}"))
    return found


def _convolution(sample: Sample, graph: str) -> Launch:
    operator = find_operator("conv2d")
    p = operator.resolve(sample.parameters)
    works = operator.work(p, sample.direction, ELEMENT_SIZES[sample.dtype])
    height = (p.height + 2 * p.padding - p.kernel) // p.stride + 1
    width = (p.width + 2 * p.padding - p.kernel) // p.stride + 1
    image, result = (p.n, p.c_in, p.height, p.width), (p.n, p.c_out, height, width)
    weight = (p.c_out, p.c_in // p.groups, p.kernel, p.kernel)
    last = bool(p.channels_last)
    if sample.direction == "forward":
        shapes = [("input", image), ("input", weight), ("output", result)]
        name = "extern_kernels.convolution"
    else:
        shapes = [("input", result), ("input", image), ("input", weight), ("output", image), ("output", weight)]
        name = "torch.ops.aten.convolution_backward.default"
    buffers = tuple(
        _buffer(f"{graph}_{place}", role, shape, last, sample) for place, (role, shape) in enumerate(shapes)
    )
    return _library_call(graph, name, buffers, sum(int(work.flops) for work in works))


def _product(sample: Sample, graph: str) -> Launch:
    operator = find_operator(sample.operator)
    p = operator.resolve(sample.parameters)
    (work,) = operator.work(p, "forward", ELEMENT_SIZES[sample.dtype])
    m, k, n = int(p.m), int(p.k), int(p.n)
    # A linear layer's weight is stored [n, k] and enters as its transpose.
    left, right, result = ((m, k), (k, 1)), ((k, n), (1, k)), ((m, n), (n, 1))
    batched = sample.operator == "bmm"
    if batched:
        b = int(p.b)
        left, right = ((b, m, k), (m * k, k, 1)), ((b, k, n), (k * n, n, 1))  # type: ignore[assignment]
        result = ((b, m, n), (m * n, n, 1))  # type: ignore[assignment]
    bias = [("input", ((n,), (1,)))] if p.get("bias") else []
    name = "extern_kernels.bmm" if batched else f"extern_kernels.{'addmm' if bias else 'mm'}"
    buffers = tuple(
        _plain_buffer(f"{graph}_{place}", role, shape, stride, sample)
        for place, (role, (shape, stride)) in enumerate([*bias, ("input", left), ("input", right), ("output", result)])
    )
    return _library_call(graph, name, buffers, int(work.flops))


def _library_call(graph: str, name: str, buffers: tuple[Buffer, ...], flops: int) -> Launch:
    return Launch(
        graph=graph,
        order=0,
        kernel=name,
        kernel_name=name,
        category="extern",
        device="cuda:0",
        buffers=buffers,
        flops=flops,
    )


def _buffer(name: str, role: str, shape: tuple[int, ...], channels_last: bool, sample: Sample) -> Buffer:
    _, channels, height, width = shape
    stride: tuple[int, ...] = (channels * height * width, height * width, width, 1)
    if channels_last:
        stride = (channels * height * width, 1, width * channels, channels)
    return _plain_buffer(name, role, shape, stride, sample)


def _plain_buffer(name: str, role: str, shape: tuple[int, ...], stride: tuple[int, ...], sample: Sample) -> Buffer:
    size = math.prod(shape) * ELEMENT_SIZES[sample.dtype]
    return Buffer(
        name=name,
        role=role,  # type: ignore[arg-type]
        dtype=sample.dtype,
        shape=shape,
        stride=stride,
        device="cuda:0",
        bytes_read=size if role == "input" else 0,
        bytes_written=0 if role == "input" else size,
    )
