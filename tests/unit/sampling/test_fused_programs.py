"""Random programs: the same for the same seed, and all of them run."""

from __future__ import annotations

import math

import pytest
import torch

from torchledger.sampling.programs import draw_program, make_inputs

_SMALL = 2**12


def test_a_seed_gives_the_same_program() -> None:
    for seed in range(40):
        first, second = draw_program(seed), draw_program(seed)
        assert (first.name, first.precision, first.inputs) == (second.name, second.precision, second.inputs)


def test_forty_seeds_draw_every_family_and_precision() -> None:
    programs = [draw_program(seed) for seed in range(60)]
    assert len({program.family for program in programs}) == 8
    assert {program.precision for program in programs} == {"bfloat16", "autocast", "float32"}


@pytest.mark.parametrize("seed", range(36))
def test_programs_run_forward_and_backward(seed: int) -> None:
    program = draw_program(seed, largest_numel=_SMALL)
    if sum(math.prod(spec.shape) for spec in program.inputs.values()) > 2e6:
        pytest.skip("its vocabulary or weights are too large for a quick test")
    inputs = make_inputs(program, "cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=program.precision == "autocast"):
        output = program.function(**inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    torch.autograd.backward([part.float().sum() for part in outputs])
    assert all(torch.isfinite(part.float()).all() for part in outputs)
