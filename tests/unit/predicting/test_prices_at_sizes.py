"""Dynamic graphs are priced at the sizes that the step calls them with."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from factories import make_buffer, make_launch, make_step_call
from torchledger.nouns import Launch, Measurement, Prediction
from torchledger.predicting.call_sizes import measured_of_calls, predict_at_sizes, sizes_of_calls

_DYNAMIC = make_launch(
    buffers=(
        make_buffer(shape_expr=("s0", "64"), stride_expr=("64", "1"), bytes_read_expr="0", bytes_written_expr="256*s0"),
    )
)
_FIXED = make_launch(graph="forward_1")


def _bytes_as_time(launches: Sequence[Launch]) -> list[Prediction]:
    """A time of one microsecond for each byte."""
    return [
        Prediction(each.launch_id, us := float(each.bytes_moved or 0), us / 2, us * 2, 0.9, "inside", "TEST", "bytes")
        for each in launches
    ]


def _calls(*sizes: int) -> list[object]:
    return [
        make_step_call(kind="graph", name="forward_0", order=order, sizes=(("s0", size),))
        for order, size in enumerate(sizes)
    ]


@given(st.lists(st.integers(2, 512), min_size=1, max_size=12))
def test_the_launches_of_a_graph_sum_up_to_those_of_its_calls(sizes: list[int]) -> None:
    found = predict_at_sizes([_DYNAMIC, _FIXED], sizes_of_calls(_calls(*sizes)), _bytes_as_time)  # type: ignore[arg-type]
    assert [each.subject for each in found] == ["forward_0#0", "forward_1#0"]
    assert round(found[0].duration_us * len(sizes)) == 256 * sum(sizes)
    assert found[0].low_us < found[0].duration_us < found[0].high_us
    assert found[1].duration_us == 8192


def test_without_calls_of_known_sizes_a_launch_is_priced_as_it_was_compiled() -> None:
    assert predict_at_sizes([_DYNAMIC], {}, _bytes_as_time)[0].duration_us == 8192


def test_what_a_launch_took_is_the_mean_where_its_calls_differ() -> None:
    measured = [Measurement("forward_0#0", "profile", "cupti", (1.0, 2.0, 9.0))]
    assert measured_of_calls(measured, _calls(8, 8, 8)) == {"forward_0#0": 2.0}  # type: ignore[arg-type]
    assert measured_of_calls(measured, _calls(8, 8, 32)) == {"forward_0#0": 4.0}  # type: ignore[arg-type]
