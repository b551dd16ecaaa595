"""Fits the fabrics that the package ships, and states the error of their curves on message sizes held out.

    python -m benchmarks.models.fit_fabrics [--data DIR] [--write src/torchledger/planning/fabrics.json]
        [--output docs/results/fabrics.md]

Public measurements are read in place (``--data``, else ``TORCHLEDGER_PUBLIC_DATA``); what is written are knots fitted
to them, with their sources. Held out: of each device, operation and number of GPUs a fifth of the message sizes, drawn
with a seed; the knots are then fitted to the rest.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import math
import os
import platform
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.shared.places import ROOT
from torchledger.nouns import CollectiveCurve, Fabric, NodeLinks, Placement
from torchledger.planning.fabric import (
    duration_on,
    fit_curve,
    large_message_us,
    link_factor,
    price_collective,
    small_latency_us,
)
from torchledger.store.codec import encode
from torchledger.work.collectives import bus_factor

NEEDS: tuple[str, ...] = ("public data",)
RUNS: tuple[tuple[str, ...], ...] = ((),)

OWN = ROOT / "data/h200/collectives_torch2.11.parquet"
SMALL = ROOT / "data/public/small_collectives.csv"
SMALLEST = 2048
"""Bytes up to which a record tells latency alone."""

SEED = 0
KINDS = {"all_reduce": "all_reduce", "all_gather": "all_gather", "reduce_scatter": "reduce_scatter",
         "alltoall": "all_to_all"}  # fmt: skip
AICONFIGURATOR = "nccl-tests by github.com/ai-dynamo/aiconfigurator @ 095f58a (Apache-2.0), half precision"
NANOTRON = (
    "nanotron ultra-scale playbook, 256 MB on EFA, github.com/vinjn/nanotron-ultrascale-playbook @ 924e4d0 (Apache-2.0)"
)
GCP = "nccl-tests on two nodes of GCP a3-mega, github.com/lessizzmore/create-a3mega-ztan-fork @ 02dd8f4"
IB = "nccl-tests on 128 nodes of 8 x 400 Gbit/s (forced ring), and figures of public issues (nccl_h100_multinode.csv)"
ETT = "estimate-train-time, nccl/ (MIT)"

SMALL_TEXT = """\
## Small messages over nodes

Public records (`data/public/small_collectives.csv`, each with its source), none with a forced algorithm or protocol. An
all-reduce is taken to go through a tree, as NCCL's small ones do: 6.8 us, 0.6 for each further rank of a node, up and
down, and a hop for each time that the nodes double, up and down (NCCL's own constants, `src/graph/tuning.cc`, have 5 us
for a hop over InfiniBand). All else is taken to go from rank to rank, a step within a node a fifth of a hop: rings of
all_gather and reduce_scatter, and what nobody has published, chains of broadcast and reduce; where nodes have one rank
each, and there are eight or more, what is gathered or scattered goes by NCCL's PAT, which is for these alone: 0.8 hops
for each time that the nodes double and 0.56 for each (`tuning.cc`: 4 and 2.8 us). What a hop takes is fitted to the
records up to 2 KiB, by least squares in logarithms; the interval holds nine in ten of them. From there a message grows
by 25 GB/s, at most half of its links', until it takes less as a large one, by bandwidth and microseconds a rank as
before.

By that rule alone an all-reduce of 1 KiB took 0.14 ms on 16 ranks over InfiniBand, 0.54 on 64 and 8.7 on 1,024, and
takes 0.03, 0.07 and 0.14; an all_gather took 0.13, 0.51 and 8.2, and takes 0.04, 0.17 and 2.7.

What is not known: rings over more than 16 nodes (one of 64 ranks on Slingshot, by a plugin of its own, takes 2.5 times
what InfiniBand is said to, about what the rule alone said), PAT but for 16 nodes, all-to-alls over more than two, and
any broadcast.""".splitlines()

Points = Mapping[tuple[str, Placement], Sequence[tuple[float, float]]]


def rows_of(path: Path) -> list[dict[str, str]]:
    """The rows of a table whose head is comments."""
    with path.open() as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def within_nodes(data: Path) -> dict[str, Points]:
    """Points of nccl-tests on one node, by device. Bytes as integers are reduced otherwise and left out."""
    found: dict[str, dict[tuple[str, Placement], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for row in rows_of(data / "distributed/nccl_aiconfigurator_sxm.csv"):
        if row["nccl_dtype"] == "half":
            key = KINDS[row["op_name"]], Placement(int(row["num_gpus"]))
            found[row["system"].split("_")[0]][key].append((float(row["bytes"]), 1e3 * float(row["latency_ms"])))
    return {device: dict(points) for device, points in found.items()}


def own_points() -> Points:
    """Our own measurements on two H200s, by the device's clock."""
    import pyarrow.parquet as parquet

    found: dict[tuple[str, Placement], list[tuple[float, float]]] = defaultdict(list)
    for row in parquet.read_table(OWN).to_pylist():
        if row["status"] != "ok":
            continue
        given = json.loads(row["parameters"])
        size = given["numel"] * {"bfloat16": 2, "float32": 4}[row["dtype"]]
        kind = row["operator"].removeprefix("collective.")
        found[kind, Placement(given["world"])].append((float(size), statistics.median(row["times_us"])))
    return dict(found)


def peer_to_peer(data: Path) -> Points:
    """Sends between two A100s of a node."""
    rows = rows_of(data / "ett/Perlmutter/nccl/NVIDIAA100-SXM4-80GB_p2p_fp16_1_2.csv")
    return {("p2p", Placement(2)): [(2 * float(row["shape"]), float(row["dur(us)"])) for row in rows]}


def held_out(points: Points) -> dict[tuple[str, Placement], list[float]]:
    """Absolute errors in per cent on a fifth of the message sizes, drawn with a seed."""
    errors: dict[tuple[str, Placement], list[float]] = {}
    for (kind, placement), found in points.items():
        sizes = sorted({size for size, _ in found})
        drawn = set(random.Random(f"{SEED} {kind} {placement}").sample(sizes[1:-1], max(1, len(sizes) // 5)))
        curve = fit_curve(kind, placement, [(size, time) for size, time in found if size not in drawn])
        errors[kind, placement] = [
            100 * abs(duration_on(curve, size) / time - 1) for size, time in found if size in drawn
        ]
    return errors


def curves_of(points: Points) -> tuple[list[CollectiveCurve], dict[tuple[str, Placement], list[float]]]:
    """A curve through all points of each operation and placement, and its errors on those held out."""
    errors = held_out(points)
    curves = []
    for (kind, placement), found in sorted(points.items(), key=lambda item: (item[0][0], item[0][1].ranks)):
        mape = round(statistics.mean(errors[kind, placement]), 1)
        curves.append(replace(fit_curve(kind, placement, found), heldout_mape=mape))
    return curves, errors


def line_of(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Intercept and slope of a least-squares line."""
    given = list(pairs)
    x, y = [statistics.mean(column) for column in zip(*given, strict=True)]
    slope = sum((a - x) * (b - y) for a, b in given) / sum((a - x) ** 2 for a, _ in given)
    return y - slope * x, slope


def links_of_efa(data: Path) -> dict[str, NodeLinks]:
    """Bandwidth and latency of a rank, through all numbers of nodes: one size of message does not tell them apart but
    by the shape. The interval is that of the 5th to the 95th percentile."""
    links = {}
    nbytes = 2.0**28
    rows = rows_of(data / "distributed/nanotron_nccl_bandwidth_h100_efa.csv")
    for title, kind in (("AllReduce", "all_reduce"), ("AllGather", "all_gather"), ("ReduceScatter", "reduce_scatter")):
        own = [row for row in rows if row["collective"] == title and int(row["nodes"]) > 1]
        points = [(int(row["gpus"]), int(row["nodes"]), float(row["bandwidth_gbps_median"])) for row in own]
        best = min(
            (
                NodeLinks(float(gb_per_s), 0.0, float(latency))
                for gb_per_s in range(20, 480, 5)
                for latency in range(1, 80)
            ),
            key=lambda link: sum(
                abs(
                    math.log(
                        over_nodes(link, kind, nbytes, Placement(gpus, nodes))
                        / (nbytes * bus_factor(kind, gpus) / gb / 1e3)
                    )
                )
                for gpus, nodes, gb in points
            ),
        )
        wide = statistics.median(0.5 * math.log(float(row["p95"]) / float(row["p5"])) for row in own)
        links[kind] = replace(best, spread=round(wide, 2))
    links["*"] = links["all_gather"]
    return links


def over_nodes(link: NodeLinks, kind: str, nbytes: float, placement: Placement) -> float:
    """The time of a collective over nodes of eight by these links alone."""
    return large_message_us(Fabric("", 8, (), {}), link, kind, nbytes, placement)


def links_of_large(rows: Sequence[tuple[float, float]], kind: str, placement: Placement, spread: float) -> NodeLinks:
    """Links by the bandwidth of the largest messages and the time of the smallest."""
    ordered = sorted(rows)
    largest = ordered[-max(1, len(ordered) // 10) :]
    rate = statistics.median(size / time_us for size, time_us in largest)
    gb_per_s = rate * link_factor(kind, placement) / 1e3
    return NodeLinks(round(gb_per_s, 1), 0.0, round(ordered[0][1] / placement.ranks, 2), spread)


@dataclass(frozen=True)
class Small:
    """A small message over nodes that somebody measured."""

    name: str
    kind: str
    placement: Placement
    device: str
    links: str
    nbytes: float
    time_us: float


def small_messages() -> list[Small]:
    """All records of small messages over nodes."""
    return [
        Small(
            row["id"], row["collective"], Placement(int(row["gpus"]), int(row["nodes"])), row["device"], row["links"],
            float(row["bytes"]), float(row["time_us"]),
        )
        for row in rows_of(SMALL)
    ]  # fmt: skip


def hops(links: str, device: str | None = None) -> tuple[float, float]:
    """What a hop takes on links of a kind, by least squares in logarithms, and how far nine in ten of their records lie
    from what it says."""
    own = [
        each
        for each in small_messages()
        if each.links == links and each.nbytes <= SMALLEST and device in (None, each.device)
    ]

    def errors(hop_us: float) -> list[float]:
        return [math.log(small_latency_us(each.kind, each.placement, hop_us) / each.time_us) for each in own]

    hop_us = min((tenths / 10 for tenths in range(10, 2000)), key=lambda hop: sum(e * e for e in errors(hop)))
    apart = sorted(map(abs, errors(hop_us)))
    return hop_us, math.ceil(100 * apart[math.ceil(0.9 * len(apart)) - 1]) / 100


def of_small(links: Mapping[str, NodeLinks], kind: str, device: str | None = None) -> dict[str, NodeLinks]:
    """The links with what small messages take."""
    hop_us, spread = hops(kind, device)
    return {name: replace(link, hop_us=hop_us, small_spread=spread) for name, link in links.items()}


def small_table(fabrics: Mapping[str, Fabric]) -> list[str]:
    """Small messages over nodes beside what is said of them, now and by microseconds a rank alone."""
    names = {"ib": "h100-ib", "slingshot": "h100-ib", "efa": "h100-efa", "tcpxo": "h100-gcp"}
    lines = [
        "| record | links | collective | nodes x ranks | bytes | measured, us | said, us | by us a rank alone |",
        "|---|---|---|---|---|---|---|---|",
    ]
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for each in small_messages():
        of = fabrics[names[each.links]]
        per_node = 4 if each.links == "slingshot" else 8
        link = of.links.get(each.kind, of.links["*"])
        bare = Fabric("", per_node, (), {"*": link})
        said = price_collective(bare, each.kind, each.nbytes, each.placement).duration_us
        before = large_message_us(bare, replace(link, hop_us=1.2), each.kind, each.nbytes, each.placement)
        errors[each.links].append((said / each.time_us, before / each.time_us))
        inside = f"{each.placement.nodes} x {each.placement.ranks // each.placement.nodes}"
        lines.append(
            f"| {each.name} | {each.links} | {each.kind} | {inside} | {each.nbytes:,.0f} | {each.time_us:g} | "
            f"{said:.0f} | {before:.0f} |"
        )
    lines += ["", "| links | records | off by a factor of, geometric mean | by us a rank alone |", "|---|---|---|---|"]
    for name, ratios in errors.items():
        off = [math.exp(statistics.mean(abs(math.log(pair[k])) for pair in ratios)) for k in (0, 1)]
        lines.append(f"| {name} | {len(ratios)} | {off[0]:.2f} | {off[1]:.2f} |")
    return lines


def across_nodes(data: Path) -> list[tuple[str, str, dict[str, NodeLinks], list[CollectiveCurve], str]]:
    """Fabrics over nodes: name, the fabric within its nodes, links, curves and source."""
    many = rows_of(data / "distributed/nccl_h100_multinode.csv")
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in many:
        if row["time_us"] and row["bytes"]:
            points[row["id"]].append((float(row["bytes"]), float(row["time_us"])))
    gcp = links_of_large(points["gcp_a3mega_16"], "all_reduce", Placement(16, 2), 0.3)
    reported = [(math.log(int(r["nodes"]) / 2), math.log(float(r["busbw_gbps"]))) for r in many if not r["time_us"]]
    middle, slope = line_of(reported)
    reached = NodeLinks(round(math.exp(middle), 1), round(-slope, 3), 8.0, 0.35)
    forced = links_of_large(points["ib_1024"], "all_reduce", Placement(1024, 128), 0.35)
    infiniband = {"all_reduce": replace(forced, latency_us_per_rank=gcp.latency_us_per_rank), "*": reached}
    gh200: dict[str, NodeLinks] = {}
    curves = []
    for nodes in (2, 4, 8):
        found: list[tuple[float, float]] = []
        for part in ("allreduce", "allreduce_large"):
            rows = rows_of(data / f"ett/Vista/nccl/NVIDIAGH200120GB_{part}_fp16_{nodes}_1.csv")
            found += [(2 * float(row["shape"]), float(row["dur(us)"])) for row in rows]
        curves.append(fit_curve("all_reduce", Placement(nodes, nodes), found))
        if nodes == 8:
            # Its smallest message is 40 MB: there is no latency in it.
            large = links_of_large(found, "all_reduce", Placement(8, 8), 0.25)
            gh200 = {"*": replace(large, latency_us_per_rank=8.0)}
    return [
        ("h100-efa", "h100", of_small(links_of_efa(data), "efa", "H100"), [], NANOTRON),
        ("h100-gcp", "h100", of_small({"*": gcp}, "tcpxo"),
         [fit_curve("all_reduce", Placement(16, 2), points["gcp_a3mega_16"])], GCP),
        ("h100-ib", "h100", of_small(infiniband, "ib"), [], IB),
        ("gh200-ib", "gh200", of_small(gh200, "ib"), curves, ETT),
    ]  # fmt: skip


def main() -> None:
    """Fit, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=os.environ.get("TORCHLEDGER_PUBLIC_DATA"))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.data is None:
        parser.error("needs --data, or TORCHLEDGER_PUBLIC_DATA")
    fabrics: dict[str, Fabric] = {}
    lines = ["| device | collective | GPUs | sizes held out | mean error, % | worst, % |", "|---|---|---|---|---|---|"]
    public = within_nodes(options.data)
    own = own_points()
    public["a100"] = {**public["a100"], **peer_to_peer(options.data)}
    names = {"a100": "A100", "h100": "H100", "h200": "H200", "b200": "B200"}
    for device, points in public.items():
        measured = points if device != "h200" else {**points, **own}
        curves, errors = curves_of(measured)
        sources = [AICONFIGURATOR]
        if device == "a100":
            sources.append(f"p2p: {ETT}")
        if device == "h200":
            sources.append("two GPUs: torchledger's own samples on H200s (data/h200)")
        fabrics[device] = Fabric(device, 8, tuple(curves), {}, names[device], tuple(sources))
        for (kind, placement), found in errors.items():
            lines.append(
                f"| {names[device]} | {kind} | {placement.ranks} | {len(found)} | {statistics.mean(found):.1f} | "
                f"{max(found):.1f} |"
            )
        every = [error for found in errors.values() for error in found]
        lines.append(f"| {names[device]} | all | | {len(every)} | {statistics.mean(every):.1f} | {max(every):.1f} |")
    # The links of an H100 are an H200's, and only of those sends and broadcasts were measured.
    lent = tuple(curve for curve in fabrics["h200"].curves if curve.operation in ("p2p", "broadcast"))
    h100 = fabrics["h100"]
    fabrics["h100"] = replace(
        h100, curves=(*h100.curves, *lent), sources=(*h100.sources, "p2p and broadcast: as between H200s")
    )
    fabrics["gh200"] = Fabric("gh200", 1, (), {}, "GH200", ("a node is one device",))
    for name, base, links, curves, source in across_nodes(options.data):
        inside = fabrics[base]
        fabrics[name] = Fabric(
            name, inside.ranks_per_node, (*inside.curves, *curves), links, None, (source, *inside.sources)
        )
    print("\n".join(lines))
    for name, fabric in fabrics.items():
        for kind, link in fabric.links.items():
            print(name, kind, link)
    if options.write:
        body = ",\n".join(encode(fabric).decode() for fabric in fabrics.values())
        options.write.write_text(f"[\n{body}\n]\n")
    if options.output:
        options.output.write_text(page(lines, fabrics))


def page(lines: Sequence[str], fabrics: Mapping[str, Fabric]) -> str:
    """The results as a page."""
    links: list[Any] = [
        f"| {name} | {'any other' if kind == '*' else kind} | {link.gb_per_s:g} | {link.decay:g} | "
        f"{link.latency_us_per_rank:g} | x / : {math.exp(link.spread):.2f} | {link.hop_us:g} | "
        f"x / : {math.exp(link.small_spread):.2f} |"
        for name, fabric in fabrics.items()
        for kind, link in fabric.links.items()
    ]
    return "\n".join(
        [
            "# Curves of collectives: error on message sizes held out",
            "",
            f"{datetime.date.today().isoformat()}, seed {SEED}, Python {platform.python_version()}. Command:",
            "",
            "```console",
            "$ python -m benchmarks.models.fit_fabrics --data PUBLIC --write src/torchledger/planning/fabrics.json \\",
            "      --output docs/results/fabrics.md",
            "```",
            "",
            "Within a node. Of each row a fifth of the message sizes is drawn and left out of the fit; the",
            "curves that ship are fitted to all. NCCL changes its algorithm between sizes, which they miss.",
            "Sources: " + AICONFIGURATOR + "; two H200s: `data/h200`.",
            "",
            *lines,
            "",
            "Between nodes: bus bandwidth over two nodes in GB/s (of an all-reduce over two, that of what",
            "crosses the links: once each byte), the power by which it falls, what large messages take beside it in",
            "microseconds a rank, the interval as a factor; what a hop between nodes takes, and the interval of small",
            "messages.",
            "",
            "| fabric | collective | GB/s | decay | us a rank | interval | us a hop | interval |",
            "|---|---|---|---|---|---|---|---|",
            *links,
            "",
            *SMALL_TEXT,
            "",
            *small_table(fabrics),
            "",
        ]
    )


if __name__ == "__main__":
    main()
