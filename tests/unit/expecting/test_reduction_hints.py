"""Which way Inductor takes a reduction to go, and so which blocks it gets."""

from __future__ import annotations

import pytest

from factories import make_buffer, make_h200, make_launch, make_machine
from torchledger.expecting.launch_tiles import cost_of_tiles, reduction_hint
from torchledger.expecting.machine import LATEST_NETWORKS
from torchledger.expecting.memory_accesses import kept_and_reduced, memory_accesses
from torchledger.nouns import Access, Buffer, Launch, LoopNest

_MACHINE = make_machine("TEST", 132, {"bfloat16": 8e8}, 4.5e6, 0.8)


def _access(strides: tuple[int, ...], buffer: str = "x", kind: str = "load") -> Access:
    index = " + ".join(f"{stride}*p{place}" for place, stride in enumerate(strides) if stride)
    return Access(buffer, kind, index, strides, "float32")  # type: ignore[arg-type]


def _hint(*nests: LoopNest, buffers: tuple[Buffer, ...] = ()) -> str:
    launch: Launch = make_launch(category="reduction", device="cuda:0", loops=nests, buffers=buffers)
    kept, reduced = kept_and_reduced(nests)
    return reduction_hint(launch, memory_accesses(launch, nests), kept, reduced, _MACHINE)


def _sum(kept: tuple[int, ...], reduced: int, *accesses: Access) -> LoopNest:
    return LoopNest(kept, (reduced,), {"sum": 1}, accesses, "sum")


def _columns(rows: int, width: int) -> LoopNest:
    return _sum((width,), rows, _access((1, width)))


def test_sums_of_rows_go_along_and_sums_of_columns_across() -> None:
    assert _hint(_sum((4096,), 2048, _access((2048, 1)))) == "inner"
    assert _hint(_columns(4096, 1024)) == "outer"


def test_a_few_rows_or_very_many_columns_are_measured() -> None:
    assert _hint(_columns(28, 384)) == "any"
    assert _hint(_columns(4096, 30522)) == "any"


def test_a_cut_sum_goes_across_however_many_parts_it_has() -> None:
    nest = _sum((16, 1280), 128, _access((163840, 1, 1280)), _access((1280, 1, 0), "out", "store"))
    of_parts = make_buffer(name="out", role="output", shape=(1280, 16), stride=(1, 1280))
    whole = make_buffer(name="out", role="output", shape=(16, 1280), stride=(1280, 1))
    assert _hint(nest, buffers=(of_parts,)) == "outer"
    assert _hint(nest, buffers=(whole,)) == "any"


@pytest.mark.parametrize(("parts", "width", "hint"), [(66, 512, "tiny"), (900, 200, "tiny"), (66, 1152, "outer")])
def test_what_joins_few_parts_has_blocks_of_its_own(parts: int, width: int, hint: str) -> None:
    read = make_buffer(name="x", role="input", shape=(width, parts), stride=(1, width))
    assert _hint(_columns(parts, width), buffers=(read,)) == hint


def test_a_reduction_of_what_the_kernel_made_itself_knows_its_direction() -> None:
    turned = LoopNest(
        (128, 7424), accesses=(_access((1, 128), "image"), _access((7424, 1), "made", "store"), _access((1, 128), "z"))
    )
    assert _hint(turned, _sum((128,), 7424, _access((7424, 1), "made"))) == "any"


def test_rows_whose_result_is_stored_across_are_measured() -> None:
    rows = _sum((64, 128), 512, _access((65536, 512, 1)))
    along, across = ((65536, 512, 1), (65536, 1, 128))
    again = [LoopNest((64, 128, 512), accesses=(_access((65536, 512, 1)), _access(way, "out", "store")))
             for way in (along, across)]  # fmt: skip
    assert [_hint(rows, nest) for nest in again] == ["inner", "any"]


def test_a_model_of_before_has_the_blocks_that_it_learned_beside() -> None:
    narrow = _columns(28, 384)
    launch = make_launch(category="reduction", device="cuda:0", loops=(narrow,))
    now, before = (make_h200(networks=networks) for networks in (LATEST_NETWORKS, 4))
    shapes = [len(cost_of_tiles(launch, [narrow], memory_accesses(launch, [narrow]), each)) for each in (now, before)]
    assert shapes[0] > shapes[1] == 1
