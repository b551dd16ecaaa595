"""Random programs: the same for the same seed, and all of them run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from torchledger.errors import SampleError
from torchledger.sampling.fused import FusedPlan, sample_fused
from torchledger.sampling.networks import NETWORKS
from torchledger.sampling.programs import Program, draw_program, make_inputs
from torchledger.sampling.rare_blocks import RARE_BLOCKS
from torchledger.sampling.written_blocks import WRITTEN_BLOCKS

_SMALL = 2**12


def test_a_seed_gives_the_same_program() -> None:
    for seed in range(40):
        first, second = draw_program(seed), draw_program(seed)
        assert (first.name, first.precision, first.inputs) == (second.name, second.precision, second.inputs)


def test_the_first_seeds_draw_every_family_and_precision() -> None:
    programs = [draw_program(seed) for seed in range(200)]
    assert len({program.family for program in programs}) == 11 + len(RARE_BLOCKS) + len(WRITTEN_BLOCKS)
    assert {program.precision for program in programs} == {"bfloat16", "autocast", "float32"}


def test_a_family_that_nobody_draws_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match="no family of random programs is called attentoin; known: chain, attention"):
        sample_fused(tmp_path / "any.launches", FusedPlan(device="cpu", families=("attention", "attentoin")))
    assert not list(tmp_path.iterdir())


def _numel(program: Program) -> int:
    return sum(math.prod(spec.shape) for spec in program.inputs.values())


_QUICK = [seed for seed in range(36) if _numel(draw_program(seed, largest_numel=_SMALL)) <= 2e6]
"""Without those whose vocabulary or weights take long."""


@pytest.mark.parametrize("seed", _QUICK)
def test_programs_run_forward_and_backward(seed: int) -> None:
    _run(draw_program(seed, largest_numel=_SMALL))


@pytest.mark.parametrize("count", [3, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", [*NETWORKS, *RARE_BLOCKS, *WRITTEN_BLOCKS])
def test_families_of_many_seeds_run_forward_and_backward(family: str, count: int) -> None:
    drawn = [draw_program(seed, largest_numel=_SMALL, family=family) for seed in range(60)]
    small = [program for program in drawn if _numel(program) < 3e6]
    assert len(small) >= 3
    for program in small[:count]:
        _run(program)


def _run(program: Program) -> None:
    inputs = make_inputs(program, "cpu")
    with torch.autocast("cpu", torch.bfloat16, enabled=program.precision == "autocast"):
        output = program.function(**inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    torch.autograd.backward([part.float().sum() for part in outputs])
    assert all(torch.isfinite(part.float()).all() for part in outputs)
