"""Networks that know what a library takes for convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from factories import make_h200
from torchledger.device.datasheets import device_of_name
from torchledger.expecting.convolution_network import PASSES, convolution_features, learned_convolution_times
from torchledger.expecting.convolution_times import convolution_times
from torchledger.expecting.machine import Machine
from torchledger.expecting.networks import FARTHEST, Network, of_package, to_file
from torchledger.expecting.operator_features import operator_features
from torchledger.operators import find_operator

H200 = make_h200()
NAMES = ("n", "c_in", "height", "width", "c_out", "kernel", "stride", "padding", "groups", "channels_last")
LAYERS = (
    (32, 64, 56, 56, 64, 3, 1, 1, 1, 1),
    (32, 256, 56, 56, 64, 1, 1, 0, 1, 1),
    (32, 3, 224, 224, 64, 7, 2, 3, 1, 0),
    (16, 384, 14, 14, 384, 7, 1, 3, 384, 1),
    (16, 128, 56, 56, 128, 3, 1, 1, 32, 0),
)
P = {name: np.array(column, dtype=np.float64) for name, column in zip(NAMES, zip(*LAYERS, strict=True), strict=True)}
SIZE, PEAK, IS_FLOAT16 = np.full(5, 2.0), np.full(5, H200.peak("bfloat16")), np.zeros(5, dtype=bool)


@pytest.mark.parametrize("one", PASSES)
def test_a_learned_pass_is_of_the_order_of_the_way_expected(one: str) -> None:
    learned = learned_convolution_times(P, one, SIZE, IS_FLOAT16, PEAK, H200)["learned"]
    expected = convolution_times(P, one, SIZE, PEAK, H200)["expected"]
    assert np.all(learned > 1.0)
    assert np.all(np.abs(np.log(learned / expected)) < np.log(12))


def test_a_backward_is_the_sum_of_both_gradients() -> None:
    image, weight, both = (
        learned_convolution_times(P, one, SIZE, IS_FLOAT16, PEAK, H200)["learned"]
        for one in ("image", "weight", "backward")
    )
    assert both == pytest.approx(image + weight)


def test_one_network_of_both_gradients_says_much_as_those_of_each() -> None:
    apart = learned_convolution_times(P, "backward", SIZE, IS_FLOAT16, PEAK, H200)
    together = learned_convolution_times(P, "backward", SIZE, IS_FLOAT16, PEAK, H200, H200.network_files.conv2d)
    assert np.all(np.abs(np.log(together.pop("learned") / apart.pop("learned"))) < 0.3)
    for way, times in together.items():
        assert times == pytest.approx(apart[way])
    size, peak = np.full(5, 4.0), np.full(5, H200.peak("float32"))
    single = learned_convolution_times(P, "backward", size, IS_FLOAT16, peak, H200, H200.network_files.conv2d)
    assert single["learned"] == pytest.approx(single["expected"])


def test_the_ways_of_both_gradients_sum_to_those_of_the_backward() -> None:
    image, weight, both = (convolution_times(P, one, SIZE, PEAK, H200) for one in ("image", "weight", "backward"))
    for way in ("product", "filters", "one each", "few channels"):
        assert both[way] == pytest.approx(image[way] + weight[way])


def test_single_precision_is_left_to_the_ways() -> None:
    size, peak = np.full(5, 4.0), np.full(5, H200.peak("float32"))
    learned = learned_convolution_times(P, "forward", size, IS_FLOAT16, peak, H200)["learned"]
    assert learned == pytest.approx(convolution_times(P, "forward", size, peak, H200)["expected"])


def test_a_convolution_costs_the_same_alone_as_among_others() -> None:
    together = learned_convolution_times(P, "weight", SIZE, IS_FLOAT16, PEAK, H200)["learned"]
    for row in range(5):
        own = {name: value[row : row + 1] for name, value in P.items()}
        alone = learned_convolution_times(own, "weight", SIZE[:1], IS_FLOAT16[:1], PEAK[:1], H200)["learned"]
        assert alone[0] == pytest.approx(together[row], rel=1e-5)


def test_features_are_finite_where_a_filter_moves_farther_than_it_is_wide() -> None:
    own = {name: np.array([value]) for name, value in zip(NAMES, (1, 8, 9, 9, 8, 1, 3, 0, 1, 1), strict=True)}
    features, log_base = convolution_features(own, "image", SIZE[:1], IS_FLOAT16[:1], PEAK[:1], H200)
    assert np.isfinite(features).all() and np.isfinite(log_base).all()


def test_only_the_generation_that_was_measured_uses_the_networks() -> None:
    shape = {name: value.astype(np.int64) for name, value in P.items()}
    for name, uses in (("NVIDIA H200", True), ("NVIDIA A100-SXM4-40GB", False)):
        machine = Machine(device_of_name(name), {"bfloat16": 7.93e8}, 4.32e6, 2.0)
        table = operator_features(find_operator("conv2d"), shape, "forward", np.full(5, "bfloat16"), machine)
        assert ("log learned beside" in table.names) == uses


def some_layers(*shapes: tuple[int, int]) -> list[Any]:
    generator = np.random.default_rng(0)
    weights = [generator.normal(size=shape).astype(np.float16).astype(np.float32) for shape in shapes]
    return [(weight, generator.normal(size=weight.shape[1]).astype(np.float32)) for weight in weights]


def test_a_rectified_network_says_what_its_layers_say_one_after_the_other() -> None:
    generator = np.random.default_rng(1)
    center, scale = np.array([5.0, -3.0, 1.0, 2.0], np.float32), np.array([2.0, 0.1, 4.0, 1e-6], np.float32)
    layers = some_layers((4, 8), (8, 5), (5, 1))
    rows = (generator.normal(size=(5000, 4)) * 3 * scale + center).astype(np.float32)
    rows[:, 3] = center[3]  # never varied
    value = np.clip((rows - center) / scale, -FARTHEST, FARTHEST)
    for weight, bias in layers[:-1]:
        value = np.maximum(value @ weight + bias, 0)
    expected = (value @ layers[-1][0] + layers[-1][1])[:, 0] * 0.5
    network = Network(center, scale, 0.5, layers, is_rectified=True)
    np.testing.assert_allclose(network.predict(rows), expected, atol=1e-4)


@pytest.mark.parametrize("is_rectified", [False, True])
def test_a_network_is_read_back_as_it_was_written(is_rectified: bool, tmp_path, monkeypatch) -> None:
    generator = np.random.default_rng(0)
    layers = some_layers((3, 8), (8, 1))
    network = Network(np.zeros(3, np.float32), np.ones(3, np.float32), 0.5, layers, is_rectified)
    folder = tmp_path / "generations"
    folder.mkdir()
    (folder / "some.npz").write_bytes(to_file({"one": network}))
    monkeypatch.setattr("importlib.resources.files", lambda _package: tmp_path)
    rows = generator.normal(size=(5000, 3)).astype(np.float32)
    assert of_package("some.npz", ["one"])["one"].predict(rows) == pytest.approx(network.predict(rows))
