"""Records survive the way through JSON."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_device, make_graph, make_kernel, make_launch, make_run, make_step_call
from torchledger.nouns import Ceilings, Gap, Launch, Measurement, SourceLine, StepCall
from torchledger.store.codec import FieldError, decode, encode
from torchledger.store.schema import TABLES


def test_every_record_reads_back_as_an_equal() -> None:
    records = [
        make_run(
            devices=(make_device(compute_capability=(9, 0), ceilings=Ceilings(tflops_per_s={"bfloat16": 790.0})),)
        ),
        make_graph(symbols={"s0": 8}),
        make_kernel(sub_kernels=("a", "b")),
        make_launch(kwargs={"padding": "[1, 1]"}, flops=10**18, buffers=(make_buffer(), make_buffer(name="buf1"))),
        Gap("flops", "forward_0#1", "no formula"),
        make_step_call(settings=(("dim", (1,)), ("output_mask", (1, 0, 1)))),
        make_step_call(settings=()),
    ]
    for record in records:
        assert decode(type(record), encode(record)) == record


def test_a_call_that_was_written_before_settings_were_has_unknown_ones() -> None:
    written = encode(make_step_call(settings=None)).replace(b'"settings":null', b'"later":null')
    assert b"settings" not in written
    assert decode(StepCall, written).settings is None


@given(st.lists(st.floats(allow_nan=False)).map(tuple))
def test_raw_samples_survive_to_the_last_bit(samples: tuple[float, ...]) -> None:
    measurement = Measurement("forward_0#0", "bench", "host", samples)
    assert decode(Measurement, encode(measurement)) == measurement


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_number_too_large_for_a_column_is_refused_wherever_it_stands_in_it(place: int) -> None:
    sizes = [3, 4, 5]
    body = encode(make_launch(order=0, buffers=(make_buffer(shape=tuple(sizes)),))).replace(b"[3,4,5]", b"[%s]")
    sizes[place] = 10**25
    with pytest.raises(FieldError, match="64 bits"):
        decode(Launch, body % b",".join(str(size).encode() for size in sizes))


def test_nan_is_kept_as_nan() -> None:
    measurement = Measurement("forward_0#0", "bench", "host", (math.nan,))
    assert math.isnan(decode(Measurement, encode(measurement)).samples_us[0])


def test_fields_of_a_later_version_are_ignored() -> None:
    assert decode(Gap, b'{"account": "flops", "where": "x", "reason": "y", "from_the_future": 1}') == Gap(
        "flops", "x", "y"
    )


def test_a_file_name_that_is_not_utf8_is_written_as_escapes() -> None:
    launch = make_launch(sources=(SourceLine("caf\udce9.py", 1),), kwargs={"\udcff": "v"})
    stored = decode(Launch, encode(launch))
    assert stored.sources[0].file == "caf\\udce9.py"
    assert dict(stored.kwargs) == {"\\udcff": "v"}


@pytest.mark.parametrize(
    ("text", "field", "expected"),
    [
        (b'{"account": "flops", "where": 3, "reason": "y"}', "where", "expected `str`, got `int`"),
        (b'{"account": "flops", "where": "x", "reason": "y", "amount": "7"}', "amount", "expected"),
        (b'{"account": "flops", "where": "x", "reason": "y", "amount": true}', "amount", "got `bool`"),
        (b'{"account": "flops", "where": "x", "reason": "y", "amount": 9223372036854775808}', "amount", "19 digits"),
        (b'{"account": "flops", "where": "x"}', "", "missing required field `reason`"),
        (b'["flops"]', "", "expected `object`"),
        (b'{"account": "flops"', "", "truncated"),
        (b'{"account": "\\ud800", "where": "x", "reason": "y"}', "", "surrogate"),
        (b'{"later": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "", "nested too deeply"),
    ],
)
def test_what_is_not_of_its_type_is_refused_by_its_field(text: bytes, field: str, expected: str) -> None:
    with pytest.raises(FieldError) as refused:
        decode(Gap, text)
    assert expected in str(refused.value)
    assert (f"field `{field}`: " in str(refused.value)) == bool(field)


def test_a_fault_deep_in_a_record_is_named_with_its_place() -> None:
    text = encode(make_launch(buffers=(make_buffer(), make_buffer(name="buf1", shape=(4, 8)))))
    with pytest.raises(FieldError, match=r"field `buffers\[1\]\.shape\[1\]`: expected `int`, got `float`"):
        decode(Launch, text.replace(b"[4,8]", b"[4,8.5]"))


def test_every_kind_of_record_of_a_ledger_can_be_decoded() -> None:
    for record_type in TABLES:
        with pytest.raises(FieldError):
            decode(record_type, b"[]")


def test_a_mapping_with_a_key_float_is_no_float() -> None:
    ceilings = Ceilings(copy_gb_per_s=math.inf, tflops_per_s={"float": 1.5})
    assert decode(Ceilings, encode(ceilings)) == ceilings
