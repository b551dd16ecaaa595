"""Operators at drawn shapes in three loops, each beside what is predicted for its state.

    python -m benchmarks.operators.operator_loops draw FOLDER [--count 700] [--seed 28]     # without a GPU
    python -m benchmarks.operators.operator_loops measure FOLDER -o ROWS.json [--limit 200] # on the GPU
    python -m benchmarks.operators.operator_loops judge ROWS.json [--model H200]
    python -m benchmarks.operators.operator_loops learn ROWS.json [MORE.json ...] --model H200 -o NEW [--all]

``draw`` takes shapes of the catalogue's operators that no label of ``data/h200`` has. ``measure`` times each by the
device's own clock in the loop of ``torchledger sample`` (a direction repeated), in replays of a CUDA graph that holds
one call, and in a training loop's order: forward, wait, backward, wait, five times. ``judge`` holds what is predicted
against all three, the last two in their own states where the model knows them. ``learn`` fits these: what a direction
takes longer in turns and in replays than repeated, by families and by what is left of each operator's own; it says the
error with a quarter of the shapes, and of the operators, held out at a time, and of several files with each of them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.shared.places import ROOT
from torchledger.fitting.replays import (
    Replay,
    bytes_of_direction,
    copies_slowly,
    fit_replays,
    kernels_of,
    replayed_over_warm,
)
from torchledger.fitting.state_entries import PREFIX, Rest, fit_rests, replay_columns, rest_of_state, turn_columns
from torchledger.fitting.time_model import TimeModel
from torchledger.fitting.timing_states import State, family_of_operator
from torchledger.fitting.turns import Turns, between_turns, fit_turns, turns_over_warm
from torchledger.operators import find_operator
from torchledger.work.element_sizes import ELEMENT_SIZES

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (
    ("draw", "{out}.plan"),
    ("measure", "{out}.plan", "-o", "{out}.json"),
    ("judge", "{out}.json"),
)

DATA = ROOT / "data" / "h200"
LOOPS = ("repeated", "graph", "in turns")
_STATES: dict[str, State] = {"graph": "graph", "in turns": "turns"}
_GROUP = 24


def draw(folder: Path, *, count: int, seed: int) -> None:
    """Write a plan of ``count`` points that were never measured."""
    import yaml

    from torchledger.calibrating.choosing import EVALUATION, SWEEP, choose_points
    from torchledger.sampling.dataset import read_samples
    from torchledger.sampling.points import save_plan

    folder.mkdir(parents=True, exist_ok=True)
    sweep = folder / "sweep.yml"
    sweep.write_text(yaml.safe_dump({**yaml.safe_load(SWEEP.read_text()), "seed": seed}))
    known = {
        (sample.operator, json.dumps(dict(sample.parameters), sort_keys=True))
        for name in ("operators", "anew")
        for sample in read_samples(DATA / f"{name}_torch2.11.parquet")
    }
    plan = choose_points(None, count=7 * count, seed=seed, sweep=sweep)
    points = tuple(
        point
        for point in plan.points
        if point.group == EVALUATION
        and (point.operator, json.dumps(dict(point.parameters), sort_keys=True)) not in known
    )
    save_plan(replace(plan, points=points), folder)
    print(f"{len(points)} points of {len({point.operator for point in points})} operators")


def measure(folder: Path, output: Path, *, limit_s: float) -> None:
    """Time the points of a plan until ``limit_s`` have passed."""
    import torch

    from torchledger.sampling.cases import InputPool, make_case
    from torchledger.sampling.points import load_plan

    end = time.monotonic() + limit_s
    torch.cuda.set_device(0)
    pool = InputPool("cuda")
    points = load_plan(folder).points
    rows: list[dict[str, Any]] = []
    for begin in range(0, len(points), _GROUP):
        if time.monotonic() > end:
            break
        group = points[begin : begin + _GROUP]
        makes = [lambda p=p: make_case(find_operator(p.operator), dict(p.parameters), p.dtype, pool) for p in group]
        for index, times in _time_group(makes).items():
            point = group[index]
            rows.append(
                {"operator": point.operator, "parameters": dict(point.parameters), "dtype": point.dtype, **times}
            )
        output.write_text("[" + ",\n".join(json.dumps(row) for row in rows) + "]\n")
        print(f"{len(rows)} of {len(points)} points", flush=True)


def _time_group(makes: Sequence[Callable[[], Any]]) -> dict[int, dict[str, Any]]:
    """Times by case, loop and direction in microseconds; a case that fails has ``error`` instead."""
    import torch

    from torchledger._torch.device_trace import DeviceTrace

    where: dict[int, dict[str, dict[str, list[int]]]] = {}
    found: dict[int, dict[str, Any]] = {}
    trace = DeviceTrace()
    with trace:
        for index, make in enumerate(makes):
            try:
                case = make()
                own: dict[str, dict[str, list[int]]] = {loop: defaultdict(list) for loop in LOOPS}

                def mark_of(call: Callable[[], Any], marks: list[int]) -> None:
                    marks.append(trace.mark())
                    call()

                for direction, call in case.runs.items():
                    if direction in case.prepare:
                        case.prepare[direction]()
                    call(), call()
                    for _ in range(8):
                        mark_of(call, own["repeated"][direction])
                    trace.mark()
                for _ in range(5):
                    for direction, call in case.runs.items():
                        mark_of(call, own["in turns"][direction])
                        trace.mark()
                        torch.cuda.synchronize()
                for direction, call in case.runs.items():
                    graph = _captured(call)
                    if graph is not None:
                        graph.replay()
                        for _ in range(8):
                            mark_of(graph.replay, own["graph"][direction])
                        trace.mark()
                where[index] = own
            except (RuntimeError, ValueError, NotImplementedError) as error:
                if "CUDA error" in str(error):
                    raise
                found[index] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    pieces = trace.pieces()
    if pieces is None:
        return {index: {"error": "records were lost"} for index in range(len(makes))}
    for index, own in where.items():
        found[index] = {
            loop: {direction: [round(pieces[at].busy_us, 3) for at in marks] for direction, marks in by.items()}
            for loop, by in own.items()
        }
    return found


def _captured(call: Callable[[], Any]) -> Any:
    """A CUDA graph of one call, ``None`` where it cannot be captured."""
    import torch

    graph = torch.cuda.CUDAGraph()
    try:
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call()
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph


def judge(path: Path, model_name: str) -> None:
    """Print errors by loop and by operator."""
    from torchledger.errors import PredictError
    from torchledger.predicting import predict
    from torchledger.predicting.devices import find_model

    model = find_model(model_name)
    rows = read_rows(path)
    known = {state for state in _STATES.values() if any(name.startswith(f"{state} width") for name in model.extras)}
    off: dict[str, dict[str, list[tuple[float, bool]]]] = {loop: defaultdict(list) for loop in LOOPS}
    refused: dict[str, int] = defaultdict(int)
    for row in rows:
        if "error" in row:
            refused[row["error"]] += 1
            continue
        for loop in LOOPS:
            for direction, times in row[loop].items():
                measured = statistics.median(times)
                try:
                    said = predict(
                        model,
                        row["operator"],
                        row["parameters"],
                        direction=direction,
                        dtype=row["dtype"],
                        state=_STATES[loop] if _STATES.get(loop) in known else "warm",
                    )
                except PredictError as error:
                    refused[str(error)[:80]] += 1
                    continue
                holds = said.low_us <= measured <= said.high_us
                off[loop][f"{row['operator']} {direction}"].append((said.duration_us / measured - 1, holds))
    names = sorted({name for by in off.values() for name in by})
    print("| operator | shapes | " + " | ".join(LOOPS) + " |\n|---|---|" + "---|" * len(LOOPS))
    for name in names:
        cells = [_cell(off[loop][name]) for loop in LOOPS]
        print(f"| {name} | {len(off[LOOPS[0]][name])} | " + " | ".join(cells) + " |")
    for loop in LOOPS:
        every = [item for found in off[loop].values() for item in found]
        if every:
            means = {name: _mean(found) for name, found in off[loop].items() if found}
            worst = max(means, key=lambda name: means[name])
            median = 100 * statistics.median(abs(error) for error, _ in every)
            print(
                f"\n{loop}: {len(every)} times, mean of operators {statistics.mean(means.values()):.2f} %, of times "
                f"{_mean(every):.2f} %, median {median:.2f} %, worst operator {worst} {means[worst]:.1f} %, intervals "
                f"hold {100 * statistics.mean(holds for _, holds in every):.0f} %"
            )
    print("\nLeft out: " + ("; ".join(f"{count} times {why}" for why, count in refused.items()) or "none"))


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file of ``measure``, which may be compressed."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def learn(paths: Sequence[Path], model_name: str, output: Path, *, is_all: bool = False) -> None:
    """Fit what turns and replays cost, print how far they are off on shapes and operators that were held out, and write
    the model with both."""
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.model_file import save_model

    model = find_model(model_name)
    of_files = [[row for row in read_rows(path) if "error" not in row] for path in paths]

    readers: dict[State, Callable[[dict[str, Any]], list[Any]]] = {"turns": _turns_of, "graph": _replays_of}
    for state, read in readers.items():
        by_file = [[each for row in rows for each in read(row)] for rows in of_files]
        rows = [row for some in by_file for row in some]
        if not is_all:
            _hold_out(state, rows, [len(some) for some in by_file], partial(_fitted, model, state))
        model = _fitted(model, state, rows)
    save_model(model, output, force=True, beside=None if "H200" in model.device else "NVIDIA_H200")


def _fitted(model: TimeModel, state: State, rows: Sequence[Any]) -> TimeModel:
    """The model with what families and directions cost in a state, of these rows alone."""
    costs = fit_turns(rows) if state == "turns" else fit_replays(rows)
    extras = {name: value for name, value in model.extras.items() if not name.startswith(f"{state} ")}
    other = {key: entry for key, entry in model.entries.items() if not key.startswith(f"{PREFIX}{state}/")}
    known = replace(model, extras=extras | costs, entries=other)
    rests = [
        Rest(
            *_direction_of(row.name), _columns(row)[0],
            math.log(_timed_us(row) / row.warm_us) - _family_shift(known, row),
        )
        for row in rows
    ]  # fmt: skip
    return replace(known, entries=dict(sorted({**other, **fit_rests(state, rests)}.items())))


def _hold_out(
    state: State, rows: Sequence[Any], of_files: Sequence[int], fit: Callable[[Sequence[Any]], TimeModel]
) -> None:
    """Print errors with a quarter of the shapes, and of the operators, held out at a time; and with a file, of which
    there are so many rows."""
    import numpy as np

    operators = sorted({row.name.split(" ")[0] for row in rows})
    divisions = [
        ("shapes", np.arange(len(rows)) // 2 % 4),
        ("operators", np.array([operators.index(row.name.split(" ")[0]) % 4 for row in rows])),
    ]
    if len(of_files) > 1:
        divisions.append(("files", np.repeat(np.arange(len(of_files)), of_files)))
    for told, part_of in divisions:
        errors: dict[str, dict[str, list[float]]] = {
            way: defaultdict(list) for way in ("as repeated", "by families", "by directions")
        }
        for part in range(int(part_of.max()) + 1):
            model = fit([row for row, own in zip(rows, part_of, strict=True) if own != part])
            for row in (row for row, own in zip(rows, part_of, strict=True) if own == part):
                family = _family_shift(model, row)
                rest = rest_of_state(model, state, *_direction_of(row.name), _columns(row))
                shifts = (0.0, family, family + (0.0 if rest is None else float(rest[0][0])))
                for by, shift in zip(errors.values(), shifts, strict=True):
                    by[row.name].append(abs(row.warm_us * math.exp(shift) / _timed_us(row) - 1))
        for way, by in errors.items():
            means = [100 * statistics.mean(some) for some in by.values()]
            mean = statistics.mean(means)
            print(f"{state}, {told} held out, {way}: {len(rows)} times, mean of the operators {mean:.2f} %", flush=True)


def _timed_us(row: Turns | Replay) -> float:
    """The microseconds of a row in its state."""
    return row.turns_us if isinstance(row, Turns) else row.graph_us


def _family_shift(model: TimeModel, row: Turns | Replay) -> float:
    """The logarithm of what a row's family makes of its time."""
    import numpy as np

    warm_us = np.array([row.warm_us])
    if isinstance(row, Turns):
        return float(turns_over_warm(model, row.between, warm_us)[0][0])
    slow = np.array([row.is_slow_copy])
    return float(replayed_over_warm(model, row.family, np.array([row.kernels]), warm_us, slow)[0][0])


def _columns(row: Turns | Replay) -> Any:
    """What its direction's own entry sees of a row, [1, columns]."""
    import numpy as np

    warm_us = np.array([row.warm_us])
    if isinstance(row, Turns):
        return turn_columns(row.between, warm_us)
    read, written = (np.array([each]) for each in (row.read_bytes, row.written_bytes))
    return replay_columns(read, written, np.array([row.kernels]), warm_us)


def _direction_of(name: str) -> tuple[str, str]:
    """The operator's key and the direction of a row's name."""
    operator, direction = name.split(" ")
    return find_operator(operator).key, direction


def _turns_of(row: dict[str, Any]) -> list[Any]:
    """A row's directions that have another one beside them."""
    operator, size, families = _facts_of(row)
    found = []
    for direction in row["in turns"]:
        between = between_turns(operator, row["parameters"], direction, size, families[direction])
        if between is not None:
            times = (statistics.median(row[loop][direction]) for loop in ("repeated", "in turns"))
            found.append(Turns(f"{row['operator']} {direction}", between, *times))
    return found


def _replays_of(row: dict[str, Any]) -> list[Any]:
    """A row's directions that a graph could hold."""
    operator, size, families = _facts_of(row)
    found = []
    for direction in row["graph"]:
        kernels = int(kernels_of(operator, row["parameters"], direction, size)[0])
        is_slow = bool(copies_slowly(operator, row["parameters"], direction, size)[0])
        warm_us, graph_us = (statistics.median(row[loop][direction]) for loop in ("repeated", "graph"))
        read, written = (float(each[0]) for each in bytes_of_direction(operator, row["parameters"], direction, size))
        found.append(
            Replay(
                f"{row['operator']} {direction}",
                families[direction],
                kernels,
                warm_us,
                graph_us,
                is_slow,
                read,
                written,
            )
        )
    return found


def _facts_of(row: dict[str, Any]) -> tuple[Any, float, dict[str, str]]:
    """A row's operator, bytes of an element, and the family of each direction."""
    operator, size = find_operator(row["operator"]), float(ELEMENT_SIZES[row["dtype"]])
    families = {
        direction: family_of_operator(operator, row["parameters"], direction, size) for direction in row["repeated"]
    }
    return operator, size, families


def _cell(found: Sequence[tuple[float, bool]]) -> str:
    return f"{_mean(found):.1f} ({_signed(found):+.1f})" if found else ""


def _mean(found: Sequence[tuple[float, bool]]) -> float:
    return 100 * statistics.mean(abs(error) for error, _ in found)


def _signed(found: Sequence[tuple[float, bool]]) -> float:
    return 100 * statistics.mean(error for error, _ in found)


def main() -> None:
    """Draw, measure, judge or learn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "measure", "judge", "learn"))
    parser.add_argument("path", type=Path)
    parser.add_argument("more", type=Path, nargs="*", help="learn: other files of rows")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--count", type=int, default=700)
    parser.add_argument("--seed", type=int, default=28)
    parser.add_argument("--limit", type=float, default=200.0)
    parser.add_argument("--model", default="H200")
    parser.add_argument("--all", action="store_true", help="learn: hold nothing out")
    arguments = parser.parse_args()
    if arguments.what == "draw":
        draw(arguments.path, count=arguments.count, seed=arguments.seed)
    elif arguments.what == "measure":
        if arguments.output is None:
            sys.exit("measure: say where to write with -o ROWS.json")
        measure(arguments.path, arguments.output, limit_s=arguments.limit)
    elif arguments.what == "learn":
        if arguments.output is None:
            sys.exit("learn: say where to write the model with -o NEW")
        learn([arguments.path, *arguments.more], arguments.model, arguments.output, is_all=arguments.all)
    else:
        judge(arguments.path, arguments.model)


if __name__ == "__main__":
    main()
