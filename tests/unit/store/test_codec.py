"""Records survive the way through JSON."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_device, make_graph, make_kernel, make_launch, make_run
from torchledger.nouns import Ceilings, Gap, Launch, Measurement, SourceLine
from torchledger.store.codec import decode, encode


def test_every_record_reads_back_as_an_equal() -> None:
    records = [
        make_run(
            devices=(make_device(compute_capability=(9, 0), ceilings=Ceilings(tflops_per_s={"bfloat16": 790.0})),)
        ),
        make_graph(symbols={"s0": 8}),
        make_kernel(sub_kernels=("a", "b")),
        make_launch(kwargs={"padding": "[1, 1]"}, flops=10**18, buffers=(make_buffer(), make_buffer(name="buf1"))),
        Gap("flops", "forward_0#1", "no formula"),
    ]
    for record in records:
        assert decode(type(record), encode(record)) == record


@given(st.lists(st.floats(allow_nan=False)).map(tuple))
def test_raw_samples_survive_to_the_last_bit(samples: tuple[float, ...]) -> None:
    measurement = Measurement("forward_0#0", "bench", "host", samples)
    assert decode(Measurement, encode(measurement)) == measurement


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
