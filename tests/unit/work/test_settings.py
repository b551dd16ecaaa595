"""What a call was asked for beside tensors, out of the text of its arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.work.op_shapes import OpCall, Tensor
from torchledger.work.settings import Parameter, setting, settings_from, settings_of

DIM = Parameter("dim", is_optional=True)


def made(text: str, *shape: int) -> OpCall:
    return OpCall("aten::sum", (Tensor(shape, "float32"), None), ("", text))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_a_dimension_is_the_same_from_the_front_and_from_the_back(shape: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    front, back = str(dims), str([dim - len(shape) for dim in dims])
    found = settings_of(made(front, *shape), (None, DIM))
    assert found == settings_of(made(back, *shape), (None, DIM)) == (("dim", tuple(dims)),)


@given(st.dictionaries(st.text(min_size=1), st.lists(st.integers())))
def test_what_is_written_is_read_again(given_settings: dict[str, list[int]]) -> None:
    read = settings_from(given_settings)
    assert read is not None and {name: list(values) for name, values in read} == given_settings


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", ()),  # nothing given: over all dimensions
        ("[]", ()),
        ("2", None),  # no such dimension
        ("s0", None),
        ("[0, s1]", None),
        ("-1", (("dim", (1,)),)),
    ],
)
def test_a_dimension_that_is_not_given_is_none_and_one_that_cannot_be_read_is_unknown(
    text: str, found: tuple[object, ...] | None
) -> None:
    assert settings_of(made(text, 4, 8), (None, DIM)) == found


def test_what_is_no_number_where_one_is_needed_is_unknown() -> None:
    assert settings_of(made("", 4, 8), (None, Parameter("k"))) is None


def test_truth_values_are_numbers_and_defaults_are_left_out() -> None:
    parameters = (None, Parameter("output_mask"))
    assert settings_of(made("[True, False, True]", 4), parameters) == (("output_mask", (1, 0, 1)),)
    assert settings_of(made("False", 4), (None, Parameter("descending", (0,)))) == ()
    assert settings_of(made("true", 4), (None, Parameter("descending", (0,)))) == (("descending", (1,)),)


def test_a_dimension_that_is_inserted_is_one_of_the_result() -> None:
    assert settings_of(made("-1", 4, 8), (None, Parameter("dim", inserts=True))) == (("dim", (2,)),)


def test_an_operator_of_which_nothing_is_known_has_unknown_settings() -> None:
    assert settings_of(made("0", 4), None) is None
    assert settings_from(None) is None
    assert setting(None, "dim") is None


def test_data_are_no_setting() -> None:
    assert settings_of(made(str(list(range(40))), 4), (None, Parameter("repeats"))) == ()


def test_of_a_packed_sequence_the_turns_are_counted_however_many_there_are() -> None:
    parameters = (None, Parameter("batch_sizes"))
    assert settings_of(made(str([3] * 40), 120, 8), parameters) == (("turns", (40,)),)
    assert setting(settings_of(made("[3, 2]", 5, 8), parameters), "turns") == (2,)
    assert setting(settings_of(made("[]", 5, 4, 8), parameters), "turns") is None
