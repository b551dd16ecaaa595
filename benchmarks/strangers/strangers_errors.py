"""How far predictions of drawn programs are off.

    python -m benchmarks.strangers.strangers_errors FROM ... SET [--model FILE]

FROM (one or several, whose programs count together) holds what ``strangers_cuda.py`` wrote: ``rows.json``,
``more.json`` and the tar of the set; or a device's calibration with the tar of its drawn programs (``data/h100``, whose
set is called ``devices``). Prints a table of the set's programs: device time of a step, predicted and measured in the
profile; the step, predicted with the host's own costs, beside the script's own timer in a process without torchledger;
then means, worst, and how many intervals hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.strangers.strangers_data import ledgers_of
from torchledger.device.host import find_host, put_host_into
from torchledger.errors import PredictError
from torchledger.expecting.launch_families import family_of
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Host, Step, StepCall, StepPrediction
from torchledger.predicting.devices import find_model
from torchledger.predicting.operators import tail_us
from torchledger.predicting.step import predict_ledger
from torchledger.predicting.step_calls import price_calls
from torchledger.store import open_ledger


@dataclass(frozen=True)
class Found:
    """What came out for one program; times in microseconds."""

    name: str
    recipe: Mapping[str, Any]
    device_us: float
    predicted_device_us: float
    step_us: float
    predicted_step_us: float
    holds: bool
    decides: str
    parts: Mapping[str, tuple[float, float]]
    launches: Sequence[tuple[str, float, float, float]]
    """Family, predicted time, upper end of its interval, measured time."""
    step_high_us: float
    unlearned_us: float
    again_us: float | None = None
    """The median of the plain steps of the process that was recorded: how well the truth repeats."""
    then_us: float | None = None
    """The step predicted for the host as fast as it was around the program's own steps, by plain Python."""
    small_us: float | None = None
    """The same, by a small training step."""
    usual_us: float | None = None
    """The same for a usual host, as where nobody measured it."""
    seen_us: float | None = None
    """The same as by a ledger that knows its host, whose plain steps are heard then."""
    seen_holds: bool | None = None

    @property
    def launches_held(self) -> tuple[int, int]:
        """How many intervals of launches hold, and of how many."""
        # The intervals are as wide below as above, in logarithms.
        return sum(said * said / high <= us <= high for _, said, high, us in self.launches), len(self.launches)


def programs(source: Path, set_name: str) -> Iterator[tuple[str, Path]]:
    """The ledgers of a set, unpacked one at a time."""
    tars = (source / f"{set_name}.tar", source / "programs_torch2.11.tar")
    for path in ledgers_of(next((each for each in tars if each.exists()), tars[0])):
        yield path.stem, path


def work_us_of(step: StepPrediction) -> float:
    """What the device is said to work in a step, in microseconds."""
    return step.kernels_us + step.tails_us + step.eager_us + step.optimizer_us + step.collectives_us


def judge(name: str, path: Path, row: Mapping[str, Any], model: Any, host: str | Host) -> Found:
    """One program's step, predicted and measured."""
    recipe = row["own"]["recipe"]
    mode: Any = "graphs" if recipe["mode"] == "reduce-overhead" else "eager"
    # These ledgers do not say whether convolutions could run as TF32; the recipe does.
    tf32 = recipe["precision"] != "fp32"
    step, predictions, measured, launches = predict_ledger(model, path, mode=mode, host=host, convolution_tf32=tf32)
    with open_ledger(path) as reader:
        (record,), calls = reader.read(Step), reader.read(StepCall)
    families = {launch.launch_id: str(family_of(launch)).partition(":")[2].partition("/")[0] for launch in launches}
    parts: dict[str, tuple[float, float]] = {}
    asked: list[tuple[str, float, float, float]] = []
    for each in predictions:
        count = record.graph_calls.get(each.subject.rpartition("#")[0], 0)
        if each.subject in measured and count:
            was, predicted = parts.get(families[each.subject], (0.0, 0.0))
            us = measured[each.subject]
            # As a step adds them up: in the mean, of which a launch's own prediction is the middle.
            parts[families[each.subject]] = was + count * us, predicted + count * (each.duration_us + tail_us(each))
            asked.append((each.model, each.duration_us, each.high_us, us))
    for call, priced in price_calls(model, calls, ran_on_cpu=False):
        if call.samples_us:
            was, predicted = parts.get("eager", (0.0, 0.0))
            parts["eager"] = was + statistics.median(call.samples_us), predicted + priced.duration_us
    own_us = row["own"]["step_ms"] * 1e3
    work_us = work_us_of(step)
    return Found(
        name, recipe, record.device_us or 0.0, work_us, own_us, step.duration_us,
        step.low_us <= own_us <= step.high_us, "host" if step.is_host_bound else "device", parts, asked,
        step.high_us, step.unlearned_us, record.duration_us,
    )  # fmt: skip


def main() -> None:
    """Print the table of a set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+", metavar="FROM")
    parser.add_argument("set")
    parser.add_argument("--model", default="H200")
    parser.add_argument("--ledgers", type=Path, help="where the tar of the set lies, if not in FROM")
    arguments = parser.parse_args()
    model, found, left_out = find_model(arguments.model), [], []
    for source in arguments.sources:
        some, others = judge_set(model, source, arguments.set, arguments.ledgers)
        found += some
        left_out += others
    print_table(found)
    print("\nLeft out: " + ("; ".join(left_out) or "none") + ".")


_GOES_WITH_PLAIN = 0.29
"""Steps go with this power of what plain Python takes, between moments of one host (``host_pieces.py``)."""


def host_then(host: Host, then_us: Sequence[float] | None, measured_us: float | None, power: float) -> Host:
    """The host as it was while a program ran, by what a piece of work took then and while the host was measured.

    As measured where either is unknown; costs go with this ``power`` of their ratio.
    """
    if not then_us or measured_us is None:
        return host
    slower = (statistics.mean(then_us) / measured_us) ** power
    costs = {name: slower * cost for name, cost in vars(host).items() if name.endswith("_us") and cost is not None}
    return replace(host, **costs)


def judge_set(
    model: TimeModel, source: Path, set_name: str, ledgers: Path | None = None
) -> tuple[list[Found], list[str]]:
    """What came out for each program of a set, and which are left out with why. ``ledgers``: where its tar lies."""
    calibration = source / "calibration.json"
    told = json.loads((calibration if calibration.exists() else source / "more.json").read_text())
    rows = told["rows"] if "rows" in told else json.loads((source / "rows.json").read_text())
    found, left_out = [], []
    with tempfile.TemporaryDirectory() as folder:
        host_file = Path(folder) / "host.json"
        host_file.write_text(json.dumps(told["host"]))
        measured = find_host(str(host_file))
        smalls = rows.get("host", {}).get("own", {}).get("small_us")
        small_us = statistics.median(smalls) if smalls else None
        for name, path in programs(ledgers or source, set_name):
            try:
                own = rows[name]["own"]
                found.append(judge(name, path, rows[name], model, measured))
                by_plain = host_then(measured, own.get("plain_us"), measured.plain_us, _GOES_WITH_PLAIN)
                by_small = host_then(measured, own.get("small_us"), small_us, 1.0)
                then_us, then_small_us = (
                    None if host == measured else judge(name, path, rows[name], model, host).predicted_step_us
                    for host in (by_plain, by_small)
                )
                usual_us = judge(name, path, rows[name], model, "usual").predicted_step_us
                put_host_into(path, measured)
                seen = judge(name, path, rows[name], model, "ledger")
                found[-1] = replace(
                    found[-1],
                    then_us=then_us,
                    small_us=then_small_us,
                    usual_us=usual_us,
                    seen_us=seen.predicted_step_us,
                    seen_holds=seen.holds,
                )
            except (PredictError, ValueError, KeyError) as error:
                left_out.append(f"{name}: {type(error).__name__}: {error}")
    missing = {name: row.get("own", {}).get("error") for name, row in rows.items() if name.startswith(set_name)}
    left_out += [f"{name}: {why}" for name, why in missing.items() if why]
    return found, left_out


def print_table(found: list[Found]) -> None:
    """The programs as a table, then their sums."""
    print(
        "| program | precision, mode, optimizer | device, ms | error | step, ms | error | decided by | fused | eager |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for each in sorted(found, key=lambda one: int(one.name.rpartition("-")[2])):
        how = ", ".join((each.recipe["precision"], each.recipe["mode"], each.recipe["optimizer"]))
        print(
            f"| {each.name} {each.recipe['family']} | {how} | {each.device_us / 1e3:.2f} | "
            f"{_off(each.predicted_device_us, each.device_us)} | {each.step_us / 1e3:.2f} | "
            f"{_off(each.predicted_step_us, each.step_us)} | {each.decides} | "
            f"{_off(*each.parts.get('fused', (0, 0))[::-1])} | {_off(*each.parts.get('eager', (0, 0))[::-1])} |"
        )
    by_device = [each for each in found if each.device_us > 0.75 * each.step_us]
    by_host = [each for each in found if each not in by_device]
    for what, errors in (
        ("device time", [each.predicted_device_us / each.device_us - 1 for each in found]),
        ("step", [each.predicted_step_us / each.step_us - 1 for each in found]),
        (
            "step, device decides",
            [e.predicted_step_us / e.step_us - 1 for e in by_device],
        ),
        ("step, host decides", [e.predicted_step_us / e.step_us - 1 for e in by_host]),
        ("step by what the ledger saw of its host", [e.seen_us / e.step_us - 1 for e in found if e.seen_us]),
        ("the same, device decides", [e.seen_us / e.step_us - 1 for e in by_device if e.seen_us]),
        ("the same, host decides", [e.seen_us / e.step_us - 1 for e in by_host if e.seen_us]),
        ("step by a usual host", [e.usual_us / e.step_us - 1 for e in found if e.usual_us]),
        ("step by a usual host, host decides", [e.usual_us / e.step_us - 1 for e in by_host if e.usual_us]),
        ("step by the host as it was then", [e.then_us / e.step_us - 1 for e in found if e.then_us]),
        ("step by the host as it was then, host decides", [e.then_us / e.step_us - 1 for e in by_host if e.then_us]),
        ("step by a small step's time then", [e.small_us / e.step_us - 1 for e in found if e.small_us]),
        ("step by a small step's time then, host decides", [e.small_us / e.step_us - 1 for e in by_host if e.small_us]),
        ("the same programs in the recorded process, host decides", _again(by_host, is_predicted=False)),
        ("step beside the mean of both processes, host decides", _again(by_host, is_predicted=True)),
        ("fused sums", [e.parts["fused"][1] / e.parts["fused"][0] - 1 for e in found if "fused" in e.parts]),
    ):
        sizes = sorted(abs(error) for error in errors)
        if sizes:
            print(
                f"\n{what}: {len(sizes)} programs, mean error {statistics.mean(sizes):.1%}, median "
                f"{statistics.median(sizes):.1%}, worst {sizes[-1]:.1%}, mean signed {statistics.mean(errors):+.1%}, "
                f"within 5 %: {sum(size <= 0.05 for size in sizes)}"
            )
    held, total = (sum(each.launches_held[place] for each in found) for place in (0, 1))
    unlearned = sum(each.unlearned_us for each in found) / sum(each.predicted_device_us for each in found)
    by_part: dict[str, tuple[float, float]] = {}
    for each in found:
        for part, (measured, predicted) in each.parts.items():
            was, said = by_part.get(part, (0.0, 0.0))
            by_part[part] = was + measured, said + predicted
    parts = ", ".join(f"{part} {was / 1e3:.1f} ms {_off(said, was)}" for part, (was, said) in sorted(by_part.items()))
    print(
        f"\nIntervals hold {held / max(total, 1):.1%} of {total:,} launches and {sum(e.holds for e in found)} of "
        f"{len(found)} steps ({sum(bool(e.seen_holds) for e in found)} by what ledgers saw); {unlearned:.1%} of the "
        f"device time is unlearned.\n\nIn sum: {parts}."
    )
    by_family: dict[str, list[float]] = defaultdict(list)
    for each in found:
        for family, said, _, us in each.launches:
            by_family[family.partition(" (")[0]].append(abs(said / us - 1))
    launches = (
        f"{family} {len(off):,}: {statistics.mean(off):.1%} ({statistics.median(off):.1%})"
        for family, off in sorted(by_family.items())
    )
    print(f"\nLaunches one by one, mean error (median): {', '.join(launches)}.")


def _again(found: Sequence[Found], *, is_predicted: bool) -> list[float]:
    """What the recorded process' plain steps, or predictions, are off by: from the own step, or from both's mean."""
    pairs = [(each, each.again_us) for each in found if each.again_us]
    if is_predicted:
        return [each.predicted_step_us / (each.step_us * again) ** 0.5 - 1 for each, again in pairs]
    return [again / each.step_us - 1 for each, again in pairs]


def _off(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %" if measured else ""


if __name__ == "__main__":
    main()
