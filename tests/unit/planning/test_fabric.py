"""Collectives on a fabric: what their prices must keep to, whatever the numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchledger.errors import PredictError
from torchledger.nouns import CollectiveCurve, Fabric, NodeLinks, Placement
from torchledger.planning.fabric import (
    duration_on,
    find_fabric,
    fit_curve,
    placement_of,
    price_collective,
    read_nccl_tests,
    shipped_fabrics,
)

MIB = 2**20

NCCL_LOG = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid   1001 on    node-a device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   1002 on    node-a device  1 [0x2b] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   1003 on    node-b device  0 [0x1b] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   1004 on    node-b device  1 [0x2b] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    60.00   17.48   26.21      0    59.00   17.77   26.66      0
   268435456      67108864     float     sum      -1  6000.00   44.74   67.11      0  5990.00   44.81   67.22      0
# Out of bounds values : 0 OK
"""


def test_a_message_on_a_knot_takes_the_time_of_the_knot() -> None:
    curve = CollectiveCurve("all_reduce", Placement(2), (1024.0, 4096.0), (10.0, 20.0))
    assert duration_on(curve, 4096) == pytest.approx(20.0)
    assert 10.0 < duration_on(curve, 2048) < 20.0


def test_below_its_knots_a_curve_is_flat_and_beyond_them_it_keeps_its_bandwidth() -> None:
    curve = CollectiveCurve("all_reduce", Placement(2), (1e3, 1e6, 2e6), (10.0, 100.0, 200.0))
    assert duration_on(curve, 1) == pytest.approx(10.0)
    assert duration_on(curve, 4e6) == pytest.approx(400.0)


def test_a_fitted_curve_follows_points_of_latency_and_bandwidth() -> None:
    points = [(2.0**power, 10.0 + 2.0**power / 1e5) for power in range(10, 30)]
    curve = fit_curve("all_gather", Placement(4), points)
    for size, time_us in points:
        assert duration_on(curve, size) == pytest.approx(time_us, rel=0.15)


@pytest.mark.parametrize("name", sorted(shipped_fabrics()))
def test_more_bytes_never_take_less_within_the_interval(name: str) -> None:
    fabric = shipped_fabrics()[name]
    for placement in (Placement(2), Placement(8), Placement(16, 2), Placement(4, 4)):
        if placement.ranks_of_node > fabric.ranks_per_node or (placement.nodes > 1 and not fabric.links):
            continue
        if placement.nodes == 1 and not any(curve.placement.nodes == 1 for curve in fabric.curves):
            continue
        prices = [price_collective(fabric, "all_reduce", size, placement) for size in (MIB, 64 * MIB, 1024 * MIB)]
        assert [p.duration_us for p in prices] == sorted(p.duration_us for p in prices)
        assert all(p.low_us <= p.duration_us <= p.high_us for p in prices)


def test_between_measured_numbers_of_ranks_the_time_lies_between_theirs() -> None:
    fabric = find_fabric("h100")
    two, three, four = (price_collective(fabric, "all_gather", 64 * MIB, Placement(n)).duration_us for n in (2, 3, 4))
    assert two < three < four


def test_placement_decides_more_than_the_number_of_ranks() -> None:
    fabric = find_fabric("h100+400gb")
    inside = price_collective(fabric, "all_reduce", 256 * MIB, Placement(8, 1))
    outside = price_collective(fabric, "all_reduce", 256 * MIB, Placement(8, 8))
    assert outside.duration_us > 10 * inside.duration_us


def test_a_group_with_one_rank_on_a_node_has_one_rank_s_share_of_its_links() -> None:
    fabric = Fabric("f", 8, (), {"*": NodeLinks(gb_per_s=80.0, latency_us_per_rank=0.001)})
    all_of_node = price_collective(fabric, "all_gather", 1024 * MIB, Placement(16, 2)).duration_us
    one_of_node = price_collective(fabric, "all_gather", 1024 * MIB, Placement(2, 2)).duration_us
    assert one_of_node == pytest.approx(8 * all_of_node * (1 / 2) / (15 / 16), rel=1e-3)


def test_an_all_reduce_over_two_nodes_crosses_their_links_once() -> None:
    fabric = Fabric("f", 8, (), {"*": NodeLinks(gb_per_s=80.0, latency_us_per_rank=0.001)})
    two, four = (
        price_collective(fabric, "all_reduce", 1024 * MIB, Placement(8 * nodes, nodes)).duration_us for nodes in (2, 4)
    )
    assert two == pytest.approx(1024 * MIB / 80e3, rel=1e-3)
    assert four == pytest.approx(two * 2 * 31 / 32, rel=1e-3)


def test_links_of_an_all_reduce_over_two_nodes_are_those_that_it_was_measured_on(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(NCCL_LOG)
    fabric = find_fabric(path, device="NVIDIA H100 80GB HBM3")
    curve = next(each for each in fabric.curves if each.placement == Placement(4, 2))
    assert fabric.links["all_reduce"].gb_per_s == pytest.approx(curve.message_bytes[-1] / curve.duration_us[-1] / 1e3)


def test_a_small_message_from_rank_to_rank_makes_one_hop() -> None:
    fabric = Fabric("f", 8, (), {"*": NodeLinks(gb_per_s=80.0, latency_us_per_rank=20.0)})
    assert price_collective(fabric, "p2p", 8, Placement(2, 2)).duration_us == pytest.approx(20.0, rel=0.01)


def test_a_rank_alone_needs_no_time() -> None:
    assert price_collective(find_fabric("h100"), "all_reduce", MIB, Placement(1)).duration_us == 0


def test_ranks_fill_nodes_in_order() -> None:
    assert placement_of(range(16), 8) == Placement(16, 2)
    assert placement_of((0, 1), 8) == Placement(2, 1)


def test_nccl_tests_output_is_a_fabric_with_its_own_placement(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(NCCL_LOG)
    fabric = find_fabric(path, device="NVIDIA H100 80GB HBM3")
    assert fabric.ranks_per_node == 2
    assert price_collective(fabric, "all_reduce", MIB, Placement(4, 2)).duration_us == pytest.approx(60.0)
    # Eight nodes were not measured: the links between two are.
    assert price_collective(fabric, "all_reduce", 256 * MIB, Placement(16, 8)).duration_us > 6000.0


def test_a_table_of_collectives_is_a_fabric(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("collective,bytes,gpus,time_us\nall_gather,1048576,4,50\nall_gather,4194304,4,120\n")
    fabric = find_fabric(path, device="NVIDIA H200")
    assert price_collective(fabric, "all_gather", 4 * MIB, Placement(4)).duration_us == pytest.approx(120.0)
    assert price_collective(fabric, "all_reduce", 4 * MIB, Placement(4)).duration_us > 0


def test_a_file_without_collectives_says_what_it_should_be(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("no numbers here\n")
    with pytest.raises(PredictError, match="nccl-tests"):
        find_fabric(path, device="H100")


def test_an_unknown_fabric_names_the_nearest() -> None:
    with pytest.raises(PredictError, match=r"nearest: .*h100"):
        find_fabric("h100-ef")


def test_a_fabric_without_links_says_so_for_ranks_on_two_nodes() -> None:
    with pytest.raises(PredictError, match="800gb"):
        price_collective(find_fabric("h200"), "all_reduce", MIB, Placement(16, 2))


def test_nodes_of_a_device_are_joined_as_is_usual_where_no_fabric_is_named() -> None:
    fabric = find_fabric(device="NVIDIA H200")
    assert fabric.name == "h200+3200gb"
    assert price_collective(fabric, "all_reduce", MIB, Placement(16, 2)).note == "over 2 nodes"


def test_more_nodes_than_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks"):
        Placement(2, 4)


@pytest.mark.parametrize(("old", "new"), [("    time  ", "    tide  "), ("   60.00", "     inf")])
def test_rows_of_a_log_that_say_no_time_are_none(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "all_reduce.txt").write_text(NCCL_LOG.replace(old, new).replace(" 6000.00", "     nan"))
    with pytest.raises(PredictError, match="holds no collective"):
        find_fabric(tmp_path / "all_reduce.txt", device="NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_what_one_rank_gets_of_all_others_comes_over_its_own_links(kind: str) -> None:
    fabric, share = shipped_fabrics()["h200"], 64 * MIB
    found = price_collective(fabric, kind, 8 * share, Placement(8))
    assert found.duration_us == pytest.approx(price_collective(fabric, "p2p", 7 * share, Placement(2)).duration_us)
    assert found.note == f"{kind} is priced as the messages between one rank and all others"


def test_shares_of_other_nodes_come_over_the_link_of_the_one_rank() -> None:
    fabric, share = find_fabric("h200+3200gb"), 64 * MIB
    found = price_collective(fabric, "gather", 16 * share, Placement(16, 2))
    assert found.duration_us == pytest.approx(price_collective(fabric, "p2p", 8 * share, Placement(2, 2)).duration_us)


def test_a_gather_that_was_measured_is_priced_by_its_own_curve(tmp_path: Path) -> None:
    (tmp_path / "gather.log").write_text("# nccl-tests gather_perf\n" + NCCL_LOG.replace("node-b", "node-a"))
    fabric = read_nccl_tests(tmp_path / "gather.log", device="NVIDIA H100 80GB HBM3")
    assert price_collective(fabric, "gather", MIB, Placement(4)).duration_us == pytest.approx(60.0)
