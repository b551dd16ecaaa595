"""Which products Inductor would pad, as the device's model says."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from torchledger.fitting.time_model import TimeModel
from torchledger.predicting.devices import find_model
from torchledger.predicting.padding import SAVES, PaddingRule, padding_times
from torchledger.work.unaligned import UnalignedProduct

VOCABULARY = UnalignedProduct(
    operator="mm",
    batch=1,
    rows=8192,
    inner=768,
    columns=50257,
    dtype="bfloat16",
    strides=((768, 1), (1, 768)),
    added=(0, 0, 7),
)
"""The last layer of GPT-2: rows of its result begin at odd places."""


@pytest.fixture(scope="module")
def h200() -> TimeModel:
    return find_model("H200")


def test_a_large_product_with_an_odd_vocabulary_is_padded_and_a_small_one_is_not(h200: TimeModel) -> None:
    pays = PaddingRule(lambda: h200)
    assert pays(VOCABULARY)
    assert not pays(replace(VOCABULARY, rows=64, columns=257)), "copies would take longer than the product"


def test_products_of_whole_float32_gain_nothing_by_alignment(h200: TimeModel) -> None:
    whole = replace(VOCABULARY, dtype="float32", added=(0, 0, 3))
    assert not PaddingRule(lambda: h200)(whole)


def test_what_is_written_padded_anyway_pays_sooner(h200: TimeModel) -> None:
    odd = replace(VOCABULARY, rows=1024, inner=1001, columns=1024, strides=((1001, 1), (1024, 1)), added=(0, 7, 0))
    _, copied_us = padding_times(h200, odd)
    own_us, planned_us = padding_times(h200, replace(odd, is_planned=(True, True)))
    assert planned_us < copied_us
    assert padding_times(h200, odd)[0] == own_us


def test_copies_that_read_by_columns_take_longer(h200: TimeModel) -> None:
    odd = replace(VOCABULARY, rows=4096, inner=2049, columns=4096, strides=((2049, 1), (4096, 1)), added=(0, 7, 0))
    by_rows_us, by_columns_us = (
        padding_times(h200, replace(odd, strides=(left, (4096, 1))))[1] for left in ((2049, 1), (1, 4096))
    )
    assert by_columns_us > by_rows_us


def test_the_model_is_found_when_it_is_asked_and_each_product_is_priced_once(h200: TimeModel) -> None:
    found = []

    def find() -> TimeModel:
        found.append(1)
        return h200

    pays = PaddingRule(find)
    assert not found
    own_us, padded_us = padding_times(h200, VOCABULARY)
    assert pays(VOCABULARY) == pays(VOCABULARY) == (own_us > SAVES * padded_us)
    assert len(found) == 1


def test_a_slow_host_pads_no_product_that_is_shorter_than_its_own_calls(h200: TimeModel) -> None:
    small = UnalignedProduct(
        operator="bmm",
        batch=144,
        rows=197,
        inner=197,
        columns=96,
        dtype="bfloat16",
        strides=((38809, 197, 1), (18912, 96, 1)),
        added=(3, 3, 0),
        is_planned=(True, True),
    )
    assert [PaddingRule(lambda: h200, slowness=slowness)(small) for slowness in (0.0, 0.3, 1.0, 2.0)] == [
        True,
        True,
        False,
        False,
    ]
    assert all(PaddingRule(lambda: h200, slowness=slowness)(VOCABULARY) for slowness in (0.0, 0.3, 1.0, 2.0))


def test_a_host_takes_the_longer_the_slower_it_is_and_never_less_than_the_device(h200: TimeModel) -> None:
    times = [padding_times(h200, VOCABULARY, slowness=slowness) for slowness in (0.0, 1.0, 10.0, 100.0)]
    for quicker, slower in pairwise(times):
        assert quicker[0] <= slower[0] and quicker[1] <= slower[1]
