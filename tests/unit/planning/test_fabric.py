"""Collectives on a fabric: what their prices must keep to, whatever the numbers."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from torchledger.errors import PredictError
from torchledger.nouns import CollectiveCurve, Fabric, NodeLinks, Placement
from torchledger.planning.fabric import (
    duration_on,
    find_fabric,
    fit_curve,
    large_message_us,
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


def test_a_price_between_measured_numbers_of_ranks_says_of_what_it_is() -> None:
    found = price_collective(find_fabric("h100"), "all_gather", 64 * MIB, Placement(3))
    assert found.note == "all_gather over 3 ranks is priced between those over 2 and 4"


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


@pytest.mark.parametrize("nodes", [2, 8, 32])
@pytest.mark.parametrize("gigabits", [400, 3200])
def test_an_all_to_all_takes_no_less_than_what_leaves_its_nodes_over_their_links(gigabits: int, nodes: int) -> None:
    fabric = find_fabric(f"h200+{gigabits}gb")
    for per_node in (1, 2, 8):
        for size in (MIB, 64 * MIB, 1024 * MIB):
            leaves = per_node * size * (nodes - 1) / nodes
            price = price_collective(fabric, "all_to_all", size, Placement(per_node * nodes, nodes))
            assert price.duration_us >= leaves / (gigabits / 8 * per_node / 8) / 1e3


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_a_small_message_over_slow_links_takes_no_less_than_their_bandwidth_allows(kind: str) -> None:
    links = NodeLinks(gb_per_s=1.0)
    for size in (1024, MIB, 16 * MIB):
        price = price_collective(Fabric("f", 8, (), {"*": links}), kind, size, Placement(32, 4))
        assert price.duration_us >= size * (3 / 4) / links.gb_per_s / 1e3


def test_links_of_an_all_reduce_over_two_nodes_are_those_that_it_was_measured_on(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(NCCL_LOG)
    fabric = find_fabric(path, device="NVIDIA H100 80GB HBM3")
    curve = next(each for each in fabric.curves if each.placement == Placement(4, 2))
    assert fabric.links["all_reduce"].gb_per_s == pytest.approx(curve.message_bytes[-1] / curve.duration_us[-1] / 1e3)


def test_a_small_message_from_rank_to_rank_makes_one_hop() -> None:
    near, far = (Fabric("f", 8, (), {"*": NodeLinks(gb_per_s=80.0, hop_us=hop_us)}) for hop_us in (20.0, 50.0))
    near_us, far_us = (price_collective(each, "p2p", 8, Placement(2, 2)).duration_us for each in (near, far))
    assert far_us - near_us == pytest.approx(30.0, rel=0.01)


def test_a_small_all_reduce_takes_as_much_longer_each_time_that_its_nodes_double() -> None:
    fabric = find_fabric("h100-ib")
    times = [price_collective(fabric, "all_reduce", 8, Placement(8 * n, n)).duration_us for n in (2, 4, 8, 128)]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0], rel=1e-3)
    assert times[3] < 6 * times[0]


def test_what_is_gathered_goes_from_rank_to_rank() -> None:
    fabric = find_fabric("h100-ib")
    times = [price_collective(fabric, "all_gather", 8, Placement(8 * n, n)).duration_us for n in (2, 4, 128)]
    assert times[2] > 30 * (times[1] - times[0])


_OVER_NODES = sorted(name for name, fabric in shipped_fabrics().items() if fabric.links)
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce")


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("name", _OVER_NODES)
def test_more_nodes_and_more_bytes_of_a_small_message_never_take_less(name: str, kind: str) -> None:
    links = shipped_fabrics()[name].links
    fabric = Fabric(name, 8, (), links)  # a curve of one number of nodes stands for itself alone
    for per_node in (1, 2, 8):
        sizes = [2**power for power in range(3, 24)]
        placements = [Placement(per_node * nodes, nodes) for nodes in (2, 3, 4, 7, 8, 16, 33, 128)]
        table = [[price_collective(fabric, kind, size, each).duration_us for size in sizes] for each in placements]
        assert all(row == sorted(row) for row in table)
        assert all(list(column) == sorted(column) for column in zip(*table, strict=True))


@pytest.mark.parametrize("kind", _KINDS)
def test_a_small_message_takes_no_less_where_more_ranks_of_a_node_take_part(kind: str) -> None:
    fabric = Fabric("f", 8, (), {"*": NodeLinks(gb_per_s=350.0)})
    times = [price_collective(fabric, kind, 1024, Placement(16 * n, 16)).duration_us for n in (1, 2, 4, 8)]
    assert times == sorted(times)


@pytest.mark.parametrize("kind", [*_KINDS, "p2p"])
def test_a_slower_fabric_never_takes_less(kind: str) -> None:
    links = (
        NodeLinks(350.0, hop_us=9.0), NodeLinks(350.0, hop_us=20.0), NodeLinks(90.0, hop_us=20.0),
        NodeLinks(20.0, hop_us=20.0), NodeLinks(20.0, hop_us=60.0),
    )  # fmt: skip
    for size in (8, 4096, MIB, 256 * MIB):
        times = [
            price_collective(Fabric("f", 8, (), {"*": each}), kind, size, Placement(64, 8)).duration_us
            for each in links
        ]
        assert times == sorted(times)


def test_nine_in_ten_public_records_over_infiniband_lie_within_the_interval() -> None:
    measured = importlib.import_module("benchmarks.models.fit_fabrics")
    fabric = Fabric("f", 8, (), find_fabric("h100-ib").links)
    found = []
    for each in measured.small_messages():
        if each.links == "ib" and each.nbytes <= measured.SMALLEST and each.kind != "p2p":
            price = price_collective(fabric, each.kind, each.nbytes, each.placement)
            found.append(price.low_us <= each.time_us <= price.high_us)
    assert len(found) > 10 and sum(found) >= 0.9 * len(found)


def test_a_large_message_is_moved_by_bandwidth_and_the_latency_of_each_rank() -> None:
    fabric = Fabric("f", 8, (), {"*": NodeLinks(gb_per_s=350.0)})
    for kind in _KINDS:
        found = price_collective(fabric, kind, 1024 * MIB, Placement(64, 8)).duration_us
        assert found == pytest.approx(
            large_message_us(fabric, fabric.links["*"], kind, 1024 * MIB, Placement(64, 8)), rel=1e-9
        )


def test_a_message_below_a_curve_over_nodes_is_a_small_one() -> None:
    """What was measured from 40 MB on says nothing of 1 KiB."""
    assert price_collective(find_fabric("gh200-ib"), "all_reduce", 1024, Placement(8, 8)).duration_us < 100


def test_links_of_unmeasured_nodes_have_the_usual_hop_of_infiniband() -> None:
    assert find_fabric("h100-ib").links["*"].hop_us == find_fabric("h100+3200gb").links["*"].hop_us


def test_a_hop_is_read_out_of_nccl_tests_smallest_message(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.log"
    path.write_text(NCCL_LOG)
    fabric = find_fabric(path, device="NVIDIA H100 80GB HBM3")
    assert price_collective(fabric, "all_reduce", 8, Placement(4, 2)).duration_us == pytest.approx(60.0, rel=0.01)
    assert 60.0 < price_collective(fabric, "all_reduce", 8, Placement(8, 4)).duration_us < 120.0


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


@pytest.mark.parametrize("name", [None, "h100-ib", "h100-efa"])
@pytest.mark.parametrize("ranks_per_node", [1, 2, 4, 16])
def test_each_device_of_a_node_brings_its_part_of_the_links_whatever_the_size_of_nodes(
    name: str | None, ranks_per_node: int
) -> None:
    usual, other = (find_fabric(name, device="H200", ranks_per_node=each) for each in (None, ranks_per_node))
    assert other.ranks_per_node == ranks_per_node
    prices = [price_collective(each, "p2p", 256 * 2**20, Placement(2, 2)).duration_us for each in (usual, other)]
    assert prices[1] == pytest.approx(prices[0])


def test_a_rate_that_is_named_and_a_measured_file_are_of_nodes_as_they_are(tmp_path: Path) -> None:
    log = tmp_path / "table.csv"
    log.write_text("collective,bytes,gpus,nodes,time_us\nall_gather,268435456,16,2,700\n")
    for name in ("h200+800gb", str(log)):
        whole, other = (find_fabric(name, device="H200", ranks_per_node=each) for each in (None, 4))
        assert other.links == whole.links
        assert other.ranks_per_node == 4


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
