"""Synthetic operator samples: a made-up device whose times follow a roofline, with steps and noise."""

from __future__ import annotations

import numpy as np

from torchledger.nouns import Sample
from torchledger.operators import find_operator


def made_up_time_us(flops: float, bytes_moved: float, n: int) -> float:
    """4 us of launch, 500 TFLOP/s, 3 TB/s, and 20 % more where n is no multiple of 64."""
    return (4.0 + max(flops / 5e8, bytes_moved / 3e6)) * (1.0 if n % 64 == 0 else 1.2)


def make_linear_samples(count: int = 160, *, seed: int = 0, noise: float = 0.005, device: str = "TEST") -> list[Sample]:
    """Samples of ``linear`` forward and backward at random shapes of 64 to 4096 per side."""
    generator = np.random.default_rng(seed)
    operator = find_operator("linear")
    samples = []
    for index in range(count):
        m, k, n = (int(size) * 32 for size in np.exp(generator.uniform(np.log(2), np.log(128), 3)))
        for direction in ("forward", "backward"):
            parameters = dict(operator.resolve({"m": m, "k": k, "n": n}))
            works = operator.work(operator.resolve(parameters), direction, 2)
            time_us = sum(made_up_time_us(int(work.flops), int(work.bytes_moved), n) for work in works)
            time_us *= float(np.exp(noise * generator.standard_normal()))
            samples.append(
                Sample(
                    point_id=f"{seed}-{index}",
                    operator="linear",
                    parameters=parameters,
                    direction=direction,
                    dtype="bfloat16",
                    device=device,
                    times_us=(time_us,),
                )
            )
    return samples
