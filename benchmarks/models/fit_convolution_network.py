"""Learn what an H200's library takes for convolutions: the networks of ``expecting/convolution_network.py``.

    python -m benchmarks.models.fit_convolution_network [--data data/h200/convolutions_torch2.11.npz] [--out FILE]
        [--check] [--quick]

The data are what ``benchmarks/operators/h200_kernels.py`` measured. ``--check`` holds an eighth of the shapes out, says
the error on them, and writes nothing.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.optimize import nnls

from benchmarks.models.teach_networks import (
    HELD_OUT,
    MACHINE,
    Teacher,
    held_out,
    kernel_classes,
    learn,
    parsed,
    report_errors,
    write_networks,
)
from benchmarks.operators.h200_kernels import draw_convolution
from torchledger.expecting.convolution_network import PASSES, convolution_features
from torchledger.expecting.convolution_times import result_sides

NEEDS: tuple[str, ...] = ()
RUNS: tuple[tuple[str, ...], ...] = (("--check",),)
QUICK: tuple[tuple[str, ...], ...] = (("--check", "--quick"),)

PARAMETERS = ("n", "c_in", "height", "width", "c_out", "kernel", "stride", "padding", "groups", "channels_last")
TILES = (
    *((64, 32), (64, 64), (128, 64), (64, 128), (128, 128), (256, 64), (64, 256), (256, 128), (128, 256), (128, 32)),
    *((256, 32), (32, 32), (32, 128)),
)
MEMBERS, TEACHER_WIDTH, TEACHER_EPOCHS = 5, 144, 60
WIDTH, HIDDEN, EPOCHS, ASKED = 144, 3, 60, 60_000
MOST_SPREAD = 1.25


def described(p: Mapping[str, Any], is_float16: Any, one: str) -> tuple[Any, Any]:
    """Features of a pass and the logarithm of its expected time."""
    size = np.full(len(is_float16), 2.0)
    peak = np.full(len(is_float16), MACHINE.peak("bfloat16"))
    return convolution_features(p, one, size, is_float16, peak, MACHINE)


def terms(p: Mapping[str, Any], one: str) -> Any:
    """What a kernel's time may be a sum of, [rows, terms]: bytes, changes of layout, padding, rounds of tiles."""
    n, c_in, c_out, kernel, stride, groups = (p[name] for name in ("n", "c_in", "c_out", "kernel", "stride", "groups"))
    height, width, taps = result_sides(p)
    inside, outside, pixels = c_in / groups, c_out / groups, n * height * width
    places = n * p["height"] * p["width"]
    image, result, weight = places * c_in / 2e6, pixels * c_out / 2e6, c_out * inside * taps / 2e6
    is_first = (p["channels_last"] == 0) * 1.0
    is_padded = ((inside % 8 != 0) | (outside % 8 != 0)) * 1.0
    found = [np.ones_like(n), is_first, is_padded, image, result, weight, is_first * image, is_first * result]
    found += [is_first * weight, is_padded * image, is_padded * result, pixels * c_out * taps * inside / 4e8]
    found += [image * taps / stride**2, result * taps, taps, pixels * c_out * kernel / 1e8, groups / 100]
    padded_in, padded_out = np.ceil(inside / 8) * 8, np.ceil(outside / 8) * 8
    for tall, wide in TILES:
        if one == "weight":
            waves = np.ceil(outside / tall) * np.ceil(taps * padded_in / wide) * groups
            steps = [np.ceil(pixels / 64), np.ceil(pixels / 32) / 2]
        else:
            rows, columns, depth, skipped = (
                (pixels, outside, padded_in, 1.0) if one == "forward" else (places, inside, padded_out, stride**2)
            )
            waves = np.ceil(rows / tall) * np.ceil(columns / wide) * groups
            steps = [taps / skipped * np.ceil(depth / 64), taps / skipped * np.ceil(depth / 32) / 2]
        waves = waves / MACHINE.num_multiprocessors
        rounds = np.ceil(waves)
        found += [rounds, waves, rounds * steps[0], waves * steps[0], rounds * steps[1]]
        parts = (2, 4, 8, 16, 32, 64) if one == "weight" else ()
        found += [np.ceil(waves * part) * np.ceil(steps[0] / part) for part in parts]
        found += [] if one == "weight" else [np.ceil(waves / at_once) * steps[0] for at_once in (2, 4)]
    return np.stack(found, axis=1)


def costs_of_kinds(given: Any, time_us: Any, kinds: Any) -> Any:
    """What each kind of kernel takes per term, [terms, kinds]: not negative, with little weight on rows far off."""
    costs = np.zeros((given.shape[1], kinds.max() + 1))
    for kind in range(1, kinds.max() + 1):
        rows, goal = given[kinds == kind], time_us[kinds == kind]
        weight = 1 / goal
        for _ in range(3):
            costs[:, kind] = nnls(rows * weight[:, None], goal * weight, maxiter=3000)[0]
            away = np.abs(rows @ costs[:, kind] - goal) / goal
            weight = 1 / goal / np.sqrt(np.maximum(away, 0.02))
    return costs


def by_kind(costs: Any, given: Any, log_base: Any) -> Any:
    """Logarithms of the time by each kind over the expected one, [rows, kinds]; zeros for the rare kernels' kind."""
    beside = np.log(np.maximum(given @ costs, 0.5)) - log_base[:, None]
    beside[:, 0] = 0.0
    return np.clip(beside, -3.0, 5.0)


def drawn(count: int) -> tuple[dict[str, Any], Any]:
    """Shapes that nobody measured."""
    draw = random.Random(0)
    points = [draw_convolution(draw) for _ in range(count)]
    p = {name: np.array([point[name] for point in points], dtype=np.float64) for name in PARAMETERS}
    return p, np.random.default_rng(0).random(count) < 0.2


def main() -> None:
    """Fit, and write or check."""
    arguments = parsed(__doc__, "convolutions")
    with np.load(arguments.data, allow_pickle=False) as found:
        few = slice(4000 if arguments.quick else None)
        p = {name: found[name][few].astype(np.float64) for name in PARAMETERS}
        direction, time_us, steady = found["direction"][few], found["time_us"][few], found["spread"][few] < MOST_SPREAD
        is_float16 = found["dtype"][few] == "float16"
        names = found["kernel_names"].astype(str)[found["kernels"][few]]
    held = held_out([*p.values(), is_float16], HELD_OUT if arguments.check else 0.0)
    asked, asked_float16 = drawn(1000 if arguments.quick else ASKED)
    networks = {}
    for number, one in enumerate(PASSES):
        started = time.monotonic()
        mine = np.flatnonzero((direction == number) & steady)
        rows, log_base = described({name: value[mine] for name, value in p.items()}, is_float16[mine], one)
        goal, kinds, test = np.log(time_us[mine]) - log_base, kernel_classes(names[mine]), held[mine]
        rest = ~test
        given = terms({name: value[mine] for name, value in p.items()}, one)
        costs = costs_of_kinds(given[rest], time_us[mine][rest].astype(np.float64), kinds[rest])
        each = by_kind(costs, given, log_base)
        sizes = {"members": MEMBERS, "width": TEACHER_WIDTH, "epochs": 1 if arguments.quick else TEACHER_EPOCHS}
        teacher = Teacher(rows[rest], goal[rest], kinds[rest], each[rest], **sizes)
        more, more_base = described(asked, asked_float16, one)
        questions = np.concatenate([rows[rest], more])
        answers = [teacher.answer(rows[rest], each[rest])]
        answers.append(teacher.answer(more, by_kind(costs, terms(asked, one), more_base)))
        epochs = 1 if arguments.quick else EPOCHS
        networks[one] = learn(questions, np.concatenate(answers), width=WIDTH, hidden=HIDDEN, epochs=epochs)
        told = f"{rest.sum():,} convolutions of {kinds.max() + 1} kinds, {time.monotonic() - started:.0f} s"
        print(f"{one}: {told}", flush=True)
        if arguments.check:
            report_errors("the algorithms alone", 0 * goal[test], goal[test])
            report_errors("large networks", teacher.answer(rows[test], each[test]), goal[test])
            report_errors("small network", networks[one].predict(rows[test]), goal[test])
    if not arguments.check:
        write_networks(networks, arguments.out)


if __name__ == "__main__":
    main()
