"""What loading a step's batches takes."""

from __future__ import annotations

from torchledger.planning.loading import StepLoading


def test_loading_that_takes_a_while_is_told_and_whose_time_it_is() -> None:
    loaded = (1.0, 1.0)
    loading = StepLoading(lambda: loaded)
    assert loading.note() is None
    for own, elsewhere, said in ((0.02, 0.0, "thread that launches, at most 20.0 ms"), (0.0, 0.3, "processes load")):
        loading.hearing_begins()
        loaded = (loaded[0] + own, loaded[1] + elsewhere)
        loading.hearing_ended()
        assert said in str(loading.note())
    loading.hearing_begins()
    loading.hearing_ended()
    assert loading.note() is None
