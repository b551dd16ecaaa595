"""Parts of work that bytes say nothing of."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchledger.nouns import TensorArgument
from torchledger.work.algorithm_calls import Parts
from torchledger.work.algorithms import costs_of, parts_of
from torchledger.work.settings import Settings


def _tensor(*shape: int, dtype: str = "float32") -> TensorArgument:
    stride = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    return TensorArgument(shape, dtype, stride)


def _recurrent(**options: int) -> Settings:
    known = {"mode": 2, "hidden_size": 64, "num_layers": 1, **options}
    return tuple((name, (value,)) for name, value in known.items())


def test_time_steps_of_all_layers_and_directions_follow_one_another() -> None:
    settings = _recurrent(num_layers=3, bidirectional=1)
    parts = parts_of("aten::_cudnn_rnn", [_tensor(50, 4, 32)], settings)
    assert parts is not None and parts.amounts[1:3] == (3 * 2, 50 * 3 * 2)
    first = parts_of("aten::_cudnn_rnn", [_tensor(4, 50, 32)], (*settings, ("batch_first", (1,))))
    assert first is not None and first.amounts == parts.amounts


@pytest.mark.parametrize(
    ("name", "dtype", "mode", "hidden", "way"),
    [
        ("aten::_cudnn_rnn", "float32", 2, 128, "persistent, float32, 4 gates, wide"),
        ("aten::_cudnn_rnn", "float32", 2, 96, "persistent, float32, 4 gates"),
        ("aten::_cudnn_rnn", "float32", 2, 192, "persistent, float32, 4 gates, wider"),
        ("aten::_cudnn_rnn", "float32", 2, 200, "standard, float32"),
        ("aten::_cudnn_rnn", "float32", 2, 202, "standard, float32, unaligned"),
        ("aten::_cudnn_rnn", "float16", 2, 1028, "standard, half, unaligned"),
        ("aten::_cudnn_rnn", "float16", 1, 384, "persistent, half, wider"),
        ("aten::_cudnn_rnn", "float16", 1, 392, "standard, half"),
        ("aten::_cudnn_rnn", "bfloat16", 3, 64, "standard, half"),
        ("aten::_cudnn_rnn_backward", "float32", 3, 128, "persistent, float32, 3 gates"),
        ("aten::_cudnn_rnn_backward", "float32", 3, 192, "standard, float32"),
    ],
)
def test_small_layers_are_persistent_where_torch_says_so(
    name: str, dtype: str, mode: int, hidden: int, way: str
) -> None:
    parts = parts_of(name, [_tensor(8, 4, 32, dtype=dtype)], _recurrent(mode=mode, hidden_size=hidden))
    assert parts is not None and parts.way == way


@pytest.mark.parametrize("train", [0, 1])
def test_a_forward_may_be_persistent_though_its_gradients_could_not(train: int) -> None:
    settings = (*_recurrent(hidden_size=192), ("train", (train,)))
    forward, backward = (
        parts_of(f"aten::_cudnn_rnn{name}", [_tensor(8, 4, 32)], settings) for name in ("", "_backward")
    )
    assert forward is not None and forward.way.startswith("persistent")
    assert backward is not None and backward.way.startswith("standard")


def test_packed_sequences_take_their_turns_by_the_standard_way() -> None:
    settings = _recurrent(num_layers=2)
    packed = parts_of("aten::_cudnn_rnn", [_tensor(200, 32)], (*settings, ("turns", (50,))))
    padded = parts_of("aten::_cudnn_rnn", [_tensor(50, 4, 32)], (*settings, ("proj_size", (16,))))
    assert packed is not None and packed == padded and packed.way == "standard, float32"
    assert parts_of("aten::_cudnn_rnn", [_tensor(200, 32)], settings) is None


def _added(name: str, places: int, rows: int, width: int, dim: int = 0) -> Parts | None:
    given = [_tensor(places, width), _tensor(rows, dtype="int64"), _tensor(rows, width)]
    return parts_of(name, given, (("dim", (dim,)),), bytes_moved=8 * rows * width)


def test_rows_that_are_added_up_wait_for_one_another_where_many_have_few_places() -> None:
    few, many = (_added("aten::index_add_", places, 1000, 64) for places in (10, 1000))
    assert few is not None and many is not None
    assert few.amounts[:4] == many.amounts[:4] and all(map(float.__gt__, few.amounts[4:6], many.amounts[4:6]))
    assert _added("aten::scatter_add_", 10, 1000, 64) == few
    assert _added("aten::index_add_", 10, 1000, 64, dim=1) is None


def test_rows_are_taken_as_wholes_if_they_are_made_of_sixteen_bytes() -> None:
    dim = (("dim", (0,)),)
    parts = parts_of("aten::index_select", [_tensor(100, 4), _tensor(5000, dtype="int64")], dim)
    assert parts is not None and parts.way == "by row" and parts.amounts[1:3] == (pytest.approx(5.0), 0)
    wide = parts_of("aten::index_select", [_tensor(100, 1024), _tensor(5000, dtype="int64")], dim)
    assert wide is not None and wide.amounts[2] == pytest.approx(5000 * (4096 - 1536) / 1e6)
    places = TensorArgument((5000, 4), "int64", (1, 0))
    assert parts_of("aten::gather", [_tensor(100, 4), places], dim) == parts
    one_by_one = parts_of("aten::gather", [_tensor(100, 4), _tensor(5000, 4, dtype="int64")], dim)
    assert one_by_one is not None and one_by_one.way == "by element" and one_by_one.amounts[1] == 8
    for rows, places in (
        (_tensor(100, 6), _tensor(5000, dtype="int64")),
        (_tensor(100, 8), TensorArgument((5000,), "int64", (10,))),
        (TensorArgument((100, 8), "float32", (16, 1)), _tensor(5000, dtype="int64")),
    ):
        by_element = parts_of("aten::index_select", [rows, places], dim)
        assert by_element is not None and by_element.way == "by element"
    few = parts_of("aten::index_select", [_tensor(100, 8), _tensor(16, dtype="int64")], dim)
    assert few is not None and few.way == "few"


@pytest.mark.parametrize(
    ("shape", "stride", "way"),
    [
        ((4, 8, 16), (128, 16, 1), "pieces of sixteen bytes"),
        ((4, 3, 7), (21, 7, 1), "dense"),
        ((4, 8, 16), (256, 16, 1), "strided"),
        ((4, 8, 16), (128, 1, 8), "strided"),
        ((4, 6, 8, 7), (336, 1, 42, 6), "dense"),
        ((4, 2, 2, 2, 8), (64, 32, 16, 8, 1), "one by one"),
    ],
)
def test_tensors_are_joined_by_pieces_of_sixteen_bytes_where_they_lie_so(
    shape: tuple[int, ...], stride: tuple[int, ...], way: str
) -> None:
    given = TensorArgument(shape, "float32", stride)
    parts = parts_of("aten::cat", [given, given], (("dim", (1,)),), bytes_moved=10**6)
    kernels = 2 if way == "one by one" else 1
    assert parts is not None and parts.way == way and parts.amounts[:3] == (kernels, 1.0, 0.125)
    unlike = parts_of("aten::cat", [given, TensorArgument(shape, "float16", stride)], (("dim", (1,)),))
    assert unlike is not None and unlike.way == "of unlike dtypes"
    assert parts_of("aten::cat", [given], (("dim", (1,)),)) is None
    assert parts_of("aten::cat", [TensorArgument(shape, None, stride)] * 2, (("dim", (1,)),)) is None


def test_strided_tensors_of_unlike_sizes_are_joined_by_as_many_blocks_each() -> None:
    def parts(width: int) -> Parts | None:
        given = [TensorArgument((64, each), "float32", (512, 1)) for each in (width, 256 - width)]
        return parts_of("aten::cat", given, (("dim", (1,)),), bytes_moved=10**6)

    even, uneven = parts(128), parts(32)
    assert even is not None and uneven is not None and even.amounts[:4] == uneven.amounts[:4]
    assert uneven.amounts[4] == pytest.approx(even.amounts[4] * 224 / 128)


def test_values_that_are_put_where_a_mask_says_take_the_longer_the_more_places_there_are() -> None:
    def parts(name: str, rows: int, values: int) -> Parts | None:
        return parts_of(name, [_tensor(rows, 8), _tensor(rows, 8, dtype="bool"), _tensor(values)], ())

    few, many = parts("aten::masked_scatter_", 1000, 5), parts("aten::masked_scatter_", 2000, 5)
    assert few is not None and many is not None
    assert many.amounts == (1, 2 * few.amounts[1], few.amounts[2])
    assert parts("aten::masked_scatter", 1000, 5) is None


def test_tensors_are_stacked_as_they_are_joined_but_behind_their_last_dimension_element_by_element() -> None:
    given = [TensorArgument((64, 8), "float32", (8, 1))] * 3

    def parts(name: str, dim: int) -> Parts | None:
        return parts_of(name, given, (("dim", (dim,)),), bytes_moved=2 * 3 * 64 * 8 * 4)

    assert parts("aten::stack", 1) == parts("aten::cat", 1)
    behind = parts("aten::stack", 2)
    assert behind is not None and behind.way == "dense"
    elements, stores, crowded = behind.amounts[2], behind.amounts[5], behind.amounts[7]
    assert elements == stores == crowded == pytest.approx(3 * 64 * 8 / 1e6)
    assert costs_of("aten::stack") == "aten::cat"


def test_tensors_that_lie_across_are_joined_by_a_sector_for_each_element() -> None:
    across, along = TensorArgument((512, 256), "float16", (1, 512)), TensorArgument((512, 256), "float16", (256, 1))
    parts = parts_of("aten::cat", [across, along], (("dim", (1,)),), bytes_moved=10**6)
    assert parts is not None and parts.way == "strided" and parts.amounts[6] == pytest.approx(512 * 256 / 1e6)


@pytest.mark.parametrize(
    ("rows", "length", "is_by_blocks"), [(3, 256_000, True), (132, 4096, True), (133, 4096, False)]
)
def test_each_of_few_long_rows_is_normalized_by_one_block(rows: int, length: int, is_by_blocks: bool) -> None:
    parts = parts_of("aten::_softmax", [_tensor(rows, length)], (("dim", (1,)),), bytes_moved=10**6)
    assert (parts is not None) is is_by_blocks
    assert parts_of("aten::_softmax", [_tensor(length, rows)], (("dim", (0,)),)) is None
    assert parts_of("aten::_softmax", [_tensor(3, 1000)], (("dim", (1,)),)) is None


def test_rows_are_put_where_they_replace_others_at_what_their_bytes_take() -> None:
    given = [_tensor(100, 8), _tensor(5000, 8)]
    assert parts_of("aten::index_put_", given, (("accumulate", (0,)),)) is None
    added = parts_of("aten::index_put_", given, (("accumulate", (1,)),))
    assert added is not None and added.amounts[2] == pytest.approx(5.0)


def test_values_that_fall_on_one_place_follow_one_another() -> None:
    accumulates = (("accumulate", (1,)),)

    def put(places: int, rows: int) -> Parts:
        parts = parts_of("aten::_index_put_impl_", [_tensor(places, 40), _tensor(rows, 40)], accumulates)
        assert parts is not None
        return parts

    few, many = put(10, 5000), put(1000, 5000)
    assert few.amounts[:3] == many.amounts[:3] and few.amounts[3] == pytest.approx(100 * many.amounts[3])
    assert (put(10, 2048).way, few.way) == ("sorted at once, of values", "sorted, of values")
    assert parts_of("aten::index_put", [_tensor(10, 40)], accumulates) is None


def test_places_told_in_several_dimensions_or_spread_are_put_together_first() -> None:
    def further(into: tuple[int, ...], values: tuple[int, ...]) -> tuple[float, ...]:
        parts = parts_of("aten::_index_put_impl_", [_tensor(*into), _tensor(*values)], (("accumulate", (1,)),))
        assert parts is not None
        return parts.amounts[4:]

    assert further((10, 40), (50, 40)) == (0, 0) and further((4, 10, 40), (50, 40)) == (1, 0)
    assert further((8, 9, 9, 3), (8, 4, 5, 3)) == (1, 1)


def test_what_is_looked_up_costs_by_the_lookups_and_not_by_the_table_unless_it_is_large() -> None:
    places = _tensor(1000, dtype="int32")
    small, large = (parts_of("aten::index", [_tensor(size), places], ()) for size in (16, 2**25))
    assert small is not None and large is not None
    assert small.amounts[:4] == large.amounts[:4] and small.amounts[1] == pytest.approx(0.004)
    assert small.amounts[4] == 0 and large.amounts[4] == pytest.approx(0.032)
    assert parts_of("aten::index", [_tensor(100, 64), places], ()) is None
    assert parts_of("aten::index", [_tensor(16), _tensor(16, dtype="bool")], ()) is None


def test_a_thread_waits_for_each_place_of_up_to_four_values_that_it_looks_up() -> None:
    def waits(count: int, names: int) -> tuple[float, ...]:
        parts = parts_of("aten::index", [_tensor(50, 50, 3), *[_tensor(count, dtype="int64")] * names], ())
        assert parts is not None
        return parts.amounts[5:]

    assert waits(100, 2) == (3, 3) and waits(10_000, 2) == (4, 4) and waits(1, 1) == (2, 0)


@given(side=st.integers(8, 256), target=st.integers(8, 256), is_cubic=st.booleans())
def test_a_smooth_picture_takes_more_of_each_part_the_smaller_it_is_made(
    side: int, target: int, is_cubic: bool
) -> None:
    name = f"aten::_upsample_{'bicubic' if is_cubic else 'bilinear'}2d_aa"

    def taps(size: int) -> float:
        parts = parts_of(name, [_tensor(2, 3, size, size)], (("output_size", (target, target)),))
        assert parts is not None
        return parts.amounts[2]

    assert taps(side) <= taps(2 * side)
    assert taps(side) <= (side**2) / 1e3


def test_gradients_of_cubic_pictures_follow_their_planes_and_meet_where_they_were_enlarged() -> None:
    def back(planes: int, side: int, dtype: str = "float32") -> Parts:
        sizes = (("output_size", (64, 64)), ("input_size", (1, planes, side, side)))
        picture = _tensor(1, planes, 64, 64, dtype=dtype)
        parts = parts_of("aten::upsample_bicubic2d_backward", [picture], sizes, bytes_moved=10**6)
        assert parts is not None
        return parts

    assert back(8, 64).amounts[1] == pytest.approx(2 * back(4, 64).amounts[1])
    assert back(8, 128).amounts[2] == back(8, 64).amounts[2] < back(8, 16).amounts[2]
    assert back(8, 16).amounts[4] == 4 * back(8, 16).amounts[3]
    assert back(8, 16, "float16").amounts[4] == 16 * back(8, 16).amounts[3] == back(8, 4, "float16").amounts[4]


@pytest.mark.parametrize(("is_trained", "way"), [(0, "known sums, half"), (1, None)])
def test_a_norm_that_does_not_train_goes_by_its_bytes(is_trained: int, way: str | None) -> None:
    picture = _tensor(4, 64, 8, 8, dtype="bfloat16")
    parts = parts_of("aten::native_batch_norm", [picture], (("training", (is_trained,)),), bytes_moved=10**6)
    assert (parts and parts.way) == way


def test_a_gradient_of_pooling_has_as_many_windows_as_results_times_their_sides() -> None:
    given_sizes = (("kernel_size", (2, 2)),)
    grad, picture = _tensor(2, 8, 16, 16), _tensor(2, 8, 32, 32)
    back = parts_of("aten::avg_pool2d_backward", [grad, picture], given_sizes, bytes_moved=10**6)
    forth = parts_of("aten::avg_pool2d", [picture], given_sizes, bytes_moved=10**6)
    assert back is not None and forth is not None and back.amounts[1] == forth.amounts[1]
    assert back.amounts[2] == pytest.approx(2 * 8 * 32 * 32 / 1e6)
    assert back == forth


def _last(*shape: int) -> TensorArgument:
    """A picture whose channels lie side by side."""
    _, channels, height, width = shape
    return TensorArgument(shape, "float32", (channels * height * width, 1, channels * width, channels))


def test_a_gradient_of_pooling_goes_as_the_pictures_lie_and_is_copied_where_it_lies_otherwise() -> None:
    shapes = (2, 8, 16, 16), (2, 8, 32, 32)
    alike, unlike, first = (
        parts_of("aten::max_pool2d_with_indices_backward", given, (("kernel_size", (2, 2)),))
        for given in (
            [_last(*shapes[0]), _last(*shapes[1])],
            [_tensor(*shapes[0]), _last(*shapes[1])],
            [_tensor(*shapes[0]), _tensor(*shapes[1])],
        )
    )
    assert alike is not None and unlike is not None and first is not None
    assert (alike.way, unlike.way, first.way) == (*2 * ("channels last, float32",), "channels first, float32")
    assert unlike.amounts[5] == pytest.approx(2 * 2 * 8 * 256 * 4 / 1e6) and alike.amounts[5] == first.amounts[5] == 0


def test_threads_look_for_the_largest_of_several_channels_and_pixels_where_there_are_so_many() -> None:
    def turns(channels: int, side: int) -> float:
        settings: Settings = (("kernel_size", (2, 2)),)
        parts = parts_of("aten::max_pool2d_with_indices", [_last(2, channels, side, side)], settings)
        assert parts is not None
        return parts.amounts[6]

    assert (turns(128, 64), turns(32, 64), turns(128, 8), turns(8, 8)) == (8, 2, 2, 1)


@pytest.mark.parametrize(
    ("asked", "made"),
    [
        ((("kernel_size", (3, 3)), ("stride", (2, 2)), ("padding", (1, 1))), 16 * 16),
        ((("kernel_size", (2, 2)), ("stride", (1, 1))), 31 * 31),
        ((("kernel_size", (5,)), ("stride", (1,)), ("padding", (2,))), 32 * 32),
    ],
)
def test_pooling_goes_through_a_window_for_each_result(asked: Settings, made: int) -> None:
    picture, side = _tensor(2, 8, 32, 32), dict(asked)["kernel_size"][0]
    parts = parts_of("aten::max_pool2d_with_indices", [picture], asked, bytes_moved=10**6)
    assert parts is not None and parts.way == "channels first, float32"
    assert parts.amounts[2:4] == pytest.approx((16 * made * side**2 / 1e6, 16 * made / 1e6))


def test_a_norm_whose_sums_are_known_costs_a_gradient_of_pictures_alone_its_bytes() -> None:
    picture, weight = _tensor(4, 64, 8, 8), _tensor(64)
    given_tensors = [picture, picture, weight, weight]

    def parts(train: int, *mask: int) -> Parts | None:
        settings = (("train", (train,)), ("output_mask", mask))
        return parts_of("aten::native_batch_norm_backward", given_tensors, settings, bytes_moved=3 * 10**6)

    assert parts(0, 1, 0, 0) == Parts("known sums, float32", (1, 3.0))
    assert parts(0, 1, 1, 1) is None and parts(1, 1, 0, 0) is None


def test_cudnn_norms_by_known_sums_go_picture_by_picture_where_channels_lie_side_by_side() -> None:
    known = (("training", (0,)),)
    first = parts_of("aten::cudnn_batch_norm", [_tensor(4, 64, 8, 8)], known, bytes_moved=10**6)
    last = TensorArgument((4, 64, 8, 8), "float32", (4096, 1, 512, 64))
    beside = parts_of("aten::cudnn_batch_norm", [last], known, bytes_moved=10**6)
    assert first == Parts("known sums, channels first, float32", (1, 1.0, 4 * 64 / 1e6))
    assert beside == Parts("known sums, channels last, float32", (1, 1.0, 64 * 64 / 1e6))


def test_places_that_are_spread_over_one_another_pick_as_many_values_as_they_span() -> None:
    pictures = _tensor(6, 20, 20, 3)
    places = [TensorArgument(shape, "int64", None) for shape in ((6, 1, 1), (6, 5, 1), (6, 1, 7))]
    parts = parts_of("aten::index", [pictures, *places], ())
    assert parts is not None and parts.way == "by places of parts"
    assert parts.amounts[2] == pytest.approx(6 * 5 * 7 * 3 / 1e6)


@given(rows=st.integers(1, 10**6), length=st.integers(1, 399), many=st.integers(1, 8))
def test_rows_whose_largest_are_looked_for_take_turns_by_blocks(rows: int, length: int, many: int) -> None:
    def parts(count: int) -> Parts:
        found = parts_of("aten::topk", [_tensor(count, length)], (("k", (many,)), ("dim", (1,))))
        assert found is not None and found.way.startswith("one block")
        return found

    assert all(more >= few for few, more in zip(parts(rows).amounts, parts(2 * rows).amounts, strict=True))
    assert ("sorted" in parts(rows).way) == (many > 1)


def test_several_blocks_look_for_the_largest_of_a_long_row() -> None:
    settings = (("k", (4,)), ("dim", (1,)))
    long, short = (parts_of("aten::topk", [_tensor(8, length)], settings) for length in (50_000, 5_000))
    assert long is not None and long.way == "several blocks"
    assert short is not None and short.way == "one block, sorted, float32"


def test_gradients_of_bags_are_sorted_at_once_where_words_are_few() -> None:
    def parts(words: int, bags: int) -> Parts | None:
        tensors = [_tensor(bags, 16), *(TensorArgument((each,), "int64", None) for each in (words, bags, words))]
        settings = (("num_weights", (10_000,)), ("mode", (0,)))
        return parts_of("aten::_embedding_bag_backward", tensors, settings)

    few, many = parts(2048, 64), parts(20_480, 64)
    assert few is not None and few.way == "sorted at once"
    assert many is not None and many.way == "sorted" and many.amounts[1] == 10 * few.amounts[1]


@pytest.mark.parametrize(
    ("settings", "way"),
    [
        ({"sparse": 1, "mode": 0}, "sparse"),
        ({"sparse": 1, "mode": 1}, "sparse, a mean"),
        ({"sparse": 0, "mode": 2}, "of the largest"),
        ({"sparse": 0, "mode": 1}, "sorted"),
    ],
)
def test_gradients_of_bags_that_sort_nothing_are_known_apart(settings: dict[str, int], way: str) -> None:
    tensors = [_tensor(64, 16), *(TensorArgument((each,), "int64", None) for each in (4096, 64, 4096))]
    given_ = tuple((name, (value,)) for name, value in {"num_weights": 1000, **settings}.items())
    parts = parts_of("aten::_embedding_bag_backward", tensors, given_)
    assert parts is not None and parts.way == way


def test_narrow_rows_that_many_words_look_up_take_a_block_each_as_if_they_were_selected() -> None:
    words = [_tensor(1_000_000, 16), TensorArgument((64, 1024), "int64", (1024, 1))]
    looked_up = parts_of("aten::embedding", words, ())
    selected = parts_of("aten::index_select", [words[0], TensorArgument((65536,), "int64", (1,))], (("dim", (0,)),))
    assert looked_up is not None and looked_up == selected
    few = [words[0], TensorArgument((64, 8), "int64", (8, 1))]
    assert parts_of("aten::embedding", few, ()) is None
    assert parts_of("aten::embedding", [_tensor(1000, 4096), words[1]], ()) is None


@pytest.mark.parametrize(
    ("rows", "length", "way"),
    [
        (8057, 8, "a block for each row"),
        (12_403, 32, "rows of a block"),
        (44_088, 96, "rows of a block"),
        (215_141, 96, "a block for each row"),
        (131_072, 512, "rows of a block"),
    ],
)
def test_rows_that_are_many_for_their_length_are_summed_up_by_a_block_each(rows: int, length: int, way: str) -> None:
    parts = parts_of("aten::cumsum", [_tensor(rows, length)], (("dim", (-1,)),))
    assert parts is not None and parts.way == way


def test_running_sums_down_columns_take_the_longer_the_taller_they_are() -> None:
    def steps(rows: int) -> float:
        parts = parts_of("aten::cumprod", [_tensor(rows, 64)], (("dim", (0,)),))
        assert parts is not None and parts.way == "down columns"
        return parts.amounts[3]

    assert steps(2000) == 2 * steps(1000)
    assert parts_of("aten::cumsum", [_tensor(1000)], (("dim", (0,)),)) is None


def test_ways_of_running_sums_share_no_part_but_the_launch_and_the_bytes() -> None:
    shapes_and_dims = (((100_000, 8), 1), ((64, 4096), 1), ((4096, 64), 0))
    found = [
        parts_of("aten::_logcumsumexp", [_tensor(*shape)], (("dim", (dim,)),), bytes_moved=10**6)
        for shape, dim in shapes_and_dims
    ]
    for place, parts in enumerate(found, 1):
        assert parts is not None and [part for part in (1, 2, 3) if parts.amounts[part]] == [place]
        assert parts.amounts[0] == parts.amounts[-1] == 1


def test_points_that_are_read_from_pictures_are_apart_from_grids_and_from_channels_that_lie_last() -> None:
    def way(stride: tuple[int, ...], *grid: int) -> str | None:
        picture = TensorArgument((2, 32, 16, 16), "float32", stride)
        parts = parts_of("aten::grid_sampler_2d", [picture, _tensor(2, *grid, 2)], (("interpolation_mode", (0,)),))
        return None if parts is None else parts.way

    first, last = (8192, 256, 16, 1), (8192, 1, 512, 32)
    assert way(first, 16, 16) == "interpolation 0"
    assert way(last, 16, 16) == "interpolation 0, channels last"
    assert way(last, 1, 4096) == "interpolation 0, channels last, of points"


@pytest.mark.parametrize(
    ("shape", "stride", "way"),
    [
        ((128, 64, 64, 64), (262_144, 64, 1, 4096), "soon again, 4 bytes"),
        ((10, 1024, 112, 112), (12_845_056, 1, 114_688, 1024), "again from the cache, 4 bytes"),
        ((4, 3, 32, 589_824), (56_623_104, 32, 1, 96), "again from memory"),
        ((188, 3, 131, 131), (51_483, 1, 393, 3), "near, 4 bytes"),
        ((128, 64, 64, 64), (262_144, 4096, 64, 1), None),
        ((128, 64, 64), (64, 8192, 1), None),
    ],
)
def test_copies_go_by_when_a_sector_is_read_again(
    shape: tuple[int, ...], stride: tuple[int, ...], way: str | None
) -> None:
    read, written = TensorArgument(shape, "float32", stride), _tensor(*shape)
    copied, cloned = parts_of("aten::copy_", [written, read], ()), parts_of("aten::clone", [read], _CONTIGUOUS)
    assert copied == cloned and (None if copied is None else copied.way) == way
    assert parts_of("aten::clone", [read], (("memory_format", (1,)),)) is None


_CONTIGUOUS = (("memory_format", (0,)),)


def test_bags_of_more_words_have_longer_turns() -> None:
    def parts(words: int) -> Parts | None:
        tensors = [_tensor(1000, 64), *(TensorArgument((each,), "int64", None) for each in (words, 32_768))]
        return parts_of("aten::_embedding_bag", tensors, (("mode", (1,)),))

    one, three = parts(32_768), parts(3 * 32_768)
    assert one is not None and three is not None
    assert three.amounts[1] == 3 * one.amounts[1] and three.amounts[4] == one.amounts[4]


@pytest.mark.parametrize("name", ["aten::grid_sampler_2d_backward", "aten::cudnn_grid_sampler_backward"])
def test_gradients_of_sampled_pictures_meet_where_more_places_than_pixels_ask(name: str) -> None:
    picture, grid, grad = _tensor(2, 3, 8, 8), _tensor(2, 32, 32, 2), _tensor(2, 3, 32, 32)
    tensors = [picture, grid, grad] if "cudnn" in name else [grad, picture, grid]
    parts = parts_of(name, tensors, ())
    assert parts is not None and parts.amounts[5] == pytest.approx(16 * parts.amounts[2])


@given(sequences=st.integers(1, 40), longest=st.integers(1, 2000), heads=st.integers(1, 32))
def test_each_head_of_each_sequence_has_as_many_blocks_as_the_longest(sequences: int, longest: int, heads: int) -> None:
    given = [_tensor(sequences * longest, heads, 64, dtype="bfloat16")] * 3 + [_tensor(sequences + 1, dtype="int32")]
    settings: Settings = (("max_q", (longest,)), ("max_k", (longest,)))
    parts = parts_of("aten::_flash_attention_forward", given, settings, flops=10**9)
    assert parts is not None and parts.amounts[1:3] == (1.0, 1 / 64)
    assert parts.amounts[6] == pytest.approx(sequences * heads * math.ceil(longest / 128) / 1e3)


def test_a_grid_has_two_numbers_for_each_pixel_of_each_picture() -> None:
    parts = parts_of("aten::affine_grid_generator", [_tensor(4, 2, 3)], (("size", (4, 3, 10, 20)),))
    assert parts == Parts("any", (1, 4 * 200 / 1e6, 200 / 1e6))


@given(
    mode=st.sampled_from(("nearest", "bilinear", "bicubic")),
    batch=st.integers(1, 8),
    channels=st.integers(2, 64),
    side=st.integers(2, 64),
    times=st.integers(1, 8),
    is_last=st.booleans(),
)
def test_a_picture_that_is_enlarged_more_has_no_less_of_any_part(
    mode: str, batch: int, channels: int, side: int, times: int, is_last: bool
) -> None:
    def made(by: int, ending: str) -> Parts:
        shape = (batch, channels, *(2 * ((side * by,) if ending else (side,))))
        stride = (channels * shape[2] ** 2, 1, channels * shape[2], channels)
        picture = TensorArgument(shape, "float32", stride) if is_last else _tensor(*shape)
        sizes = (("output_size", (side * by, side * by)), ("input_size", (batch, channels, side, side)))
        parts = parts_of(f"aten::upsample_{mode}2d{ending}", [picture], sizes, bytes_moved=10**6)
        assert parts is not None
        return parts

    for ending in ("", "_backward"):
        less, more = made(times, ending), made(times + 1, ending)
        assert len(less.amounts) == len(more.amounts)
        assert all(one <= other + 1e-12 for one, other in zip(less.amounts, more.amounts, strict=True))


def test_a_thread_of_a_nearest_gradient_goes_through_all_pictures_and_blocks_cover_planes_by_powers_of_two() -> None:
    def parts(ending: str, batch: int, side: int) -> Parts:
        sizes = (("output_size", (side, side)), ("input_size", (batch, 3, 16, 16)))
        found = parts_of(f"aten::upsample_nearest2d{ending}", [_tensor(batch, 3, 16, 16)], sizes, bytes_moved=10**6)
        assert found is not None
        return found

    assert parts("_backward", 8, 32).amounts[2:4] == (8 / 1e3, 4 * 8 / 1e3)
    assert parts("", 1, 33).amounts[2] == pytest.approx(3 * 64 * 48 / 1e6)
    gaps = TensorArgument((2, 3, 32, 32), "float32", (6144, 1024, 32, 1))
    sizes = (("output_size", (32, 32)), ("input_size", (2, 3, 16, 16)))
    copied = parts_of("aten::upsample_nearest2d_backward", [gaps], sizes)
    assert copied is not None and copied.amounts[-1] == pytest.approx(2 * 6144 * 4 / 1e6)


@pytest.mark.parametrize(("mode", "fewest"), [("nearest", 4), ("bilinear", 16)])
def test_pictures_of_few_channels_are_enlarged_as_if_these_lay_apart(mode: str, fewest: int) -> None:
    sizes = (("output_size", (8, 8)),)
    few, more = (parts_of(f"aten::upsample_{mode}2d", [_last(2, count, 4, 4)], sizes) for count in (fewest - 1, fewest))
    assert few is not None and more is not None and (few.way, more.way) == ("float32", "channels last, float32")


def test_a_thread_makes_a_place_of_a_volume_in_all_pictures_and_if_interpolated_in_all_channels() -> None:
    def parts(name: str, dtype: str = "float32") -> tuple[float, ...]:
        sizes = (("output_size", (8, 8, 8)), ("input_size", (2, 3, 4, 4, 4)))
        found = parts_of(f"aten::upsample_{name}", [_tensor(2, 3, 4, 4, 4, dtype=dtype)], sizes)
        assert found is not None and found.way == "channels first"
        return found.amounts

    assert parts("nearest3d")[1:3] == (2, 3 * 512 / 1e6) and parts("nearest3d_backward")[1:3] == (2, 3 * 64 / 1e6)
    assert parts("trilinear3d")[1] == 6 and parts("trilinear3d_backward")[5:] == (0, 0)
    assert parts("trilinear3d_backward", "float16")[5] == 6


@given(count=st.integers(1, 32), size=st.integers(1, 512))
def test_columns_of_a_matrix_follow_one_another_and_those_of_others_do_not(count: int, size: int) -> None:
    parts = parts_of("aten::linalg_cholesky_ex", [_tensor(count, size, size)], ())
    assert parts is not None
    assert parts.amounts[1] == size and parts.amounts[2] == pytest.approx(count * size**3 / 1e6)
    assert parts.way == ("one" if count == 1 else "many")


@pytest.mark.parametrize("columns", [1, 7])
@pytest.mark.parametrize("count", [1, 16])
def test_a_solver_is_told_its_matrix_from_its_columns_wherever_they_stand(count: int, columns: int) -> None:
    matrices, given = _tensor(count, 40, 40), _tensor(count, 40, columns)
    first = parts_of("aten::linalg_lu_solve", [matrices, _tensor(count, 40, dtype="int32"), given], ())
    second = parts_of("aten::cholesky_solve", [given, matrices], ())
    assert first is not None and second is not None and first.way == second.way
    assert first.amounts[:-1] == second.amounts[:-1]
    assert first.amounts[2] == pytest.approx(count * 40**2 * columns / 1e6)
    assert first.way.endswith(", one column") is (columns == 1)


@pytest.mark.parametrize(
    ("dtype", "count", "columns", "turns"),
    [("float32", 16, 7, 40), ("float64", 16, 7, 0), ("float32", 16, 1, 0), ("float32", 1, 7, 0)],
)
def test_many_factors_are_gone_through_by_more_kernels_in_single_precision(
    dtype: str, count: int, columns: int, turns: int
) -> None:
    given_ = [_tensor(count, 40, columns, dtype=dtype), _tensor(count, 40, 40, dtype=dtype)]
    parts = parts_of("aten::cholesky_solve", given_, ())
    assert parts is not None and parts.amounts[-1] == turns


@pytest.mark.parametrize(
    ("count", "size", "way"), [(8, 64, "each"), (9, 64, "together"), (8, 63, "together"), (1, 500, "each")]
)
def test_few_large_triangles_are_solved_one_after_the_other(count: int, size: int, way: str) -> None:
    left = parts_of("aten::linalg_solve_triangular", [_tensor(count, size, size), _tensor(count, size, 3)], ())
    right = parts_of(
        "aten::linalg_solve_triangular", [_tensor(count, size, size), _tensor(count, 3, size)], (("left", (0,)),)
    )
    assert left is not None and left.way == way and right == left
    assert left.amounts[1] == (count * size if way == "each" else size)


@given(count=st.integers(1, 40), size=st.integers(1, 300))
def test_small_matrices_are_factored_together_as_torch_chooses(count: int, size: int) -> None:
    parts = parts_of("aten::linalg_lu_factor_ex", [_tensor(count, size, size)], ())
    is_small = size <= 16 or (size <= 128 and count <= 16)
    assert parts is not None
    assert parts.way == ("one" if count == 1 else "many small" if is_small else "many")


def _sparse(rows: int, columns: int, values: int, *, is_matrix: bool) -> TensorArgument:
    held = values * (20 if is_matrix else 8 + 4 * columns)
    return TensorArgument((rows, columns), "float32", None, held)


@given(rows=st.integers(8, 10**6), values=st.integers(1, 10**6))
def test_a_sparse_tensor_costs_by_what_it_holds_whatever_its_shape(rows: int, values: int) -> None:
    one, other = (
        parts_of("aten::_coalesce", [_sparse(each, 32, values, is_matrix=False)], ()) for each in (rows, 2 * rows)
    )
    assert one is not None and one == other and one.way == "sparse"
    assert one.amounts[2] == pytest.approx(values / 1e6)
    added = parts_of("aten::add_", [_tensor(8), _sparse(rows, 32, values, is_matrix=False)], ())
    assert added is not None and added.amounts == (1, pytest.approx(values * 136 / 1e6), 0, 0, 0)


def test_each_value_of_a_sparse_matrix_is_multiplied_by_a_row_of_the_other() -> None:
    graph, features = _sparse(1000, 1000, 5000, is_matrix=True), _tensor(1000, 64)
    parts = parts_of("aten::mm", [graph, features], ())
    added = parts_of("aten::_sparse_addmm", [features, graph, features], ())
    assert parts is not None and added is not None and parts.amounts == added.amounts
    assert parts.amounts[3] == pytest.approx(5000 * 64 / 1e6)
    assert parts_of("aten::mm", [_tensor(8, 8), _tensor(8, 8)], ()) is None


@pytest.mark.parametrize("name", ["index_add", "scatter_add", "scatter"])
def test_what_leaves_its_tensor_as_it_is_copies_it_first(name: str) -> None:
    given = [_tensor(1000, 64), _tensor(50, 64, dtype="int64"), _tensor(50, 64)]
    inside, anew = (
        parts_of(f"aten::{name}{ending}", given, (("dim", (0,)),), bytes_moved=nbytes)
        for ending, nbytes in (("_", 10**6), ("", 10**6 + 2 * 1000 * 64 * 4))
    )
    assert inside is not None and anew is not None and inside.amounts[-2:] == (0, 0)
    assert anew.amounts[:-2] == pytest.approx(inside.amounts[:-2]) and anew.amounts[-2:] == (1, 0.512)
    assert costs_of(f"aten::{name}_") == costs_of(f"aten::{name}")


@given(places=st.integers(1, 5000))
def test_few_places_are_done_after_as_many_turns_as_a_block_needs_for_them(places: int) -> None:
    given_places = _tensor(places, dtype="int64")
    parts = parts_of("aten::scatter_", [_tensor(10_000), given_places, _tensor(places)], (("dim", (0,)),))
    assert parts is not None and parts.amounts[1] == min(8, math.ceil(places / 128))


@given(pictures=st.integers(1, 600), channels=st.sampled_from([1, 4, 64]), pixels=st.integers(1, 700))
def test_groups_that_do_not_fit_at_once_follow_one_another(pictures: int, channels: int, pixels: int) -> None:
    settings: Settings = (("group", (channels,)),)
    less, more = (
        parts_of("aten::native_group_norm", [_tensor(count, channels, pixels)], settings, bytes_moved=10**6)
        for count in (pictures, 2 * pictures)
    )
    assert less is not None and more is not None and less.way == ("groups" if pixels >= 512 else "small groups")
    assert all(one <= other for one, other in zip(less.amounts, more.amounts, strict=True))


def test_weights_by_norms_over_their_last_dimension_wait_for_rows_in_turn() -> None:
    first, last = (parts_of("aten::_weight_norm_interface", [_tensor(280, 93, 16)], (("dim", (at,)),)) for at in (0, 2))
    assert first is not None and last is not None and (first.way, last.way) == ("first", "last")
    assert last.amounts[2] == math.ceil(280 * 93 / 64) and first.amounts[2] == 1 + math.ceil(93 * 16 / 512)


def test_a_loss_of_alignments_goes_frame_by_frame_forth_and_back() -> None:
    scores, targets = _tensor(120, 8, 30), _tensor(8, 20, dtype="int64")
    forth = parts_of("aten::_ctc_loss", [scores, targets], ())
    back = parts_of("aten::_ctc_loss_backward", [_tensor(8), scores, targets], ())
    assert forth is not None and back is not None and forth.amounts[1] == 120
    assert forth.amounts == back.amounts[: len(forth.amounts)] and back.way == "small"
    long = parts_of("aten::_ctc_loss_backward", [_tensor(8), _tensor(400, 8, 30), targets], None)
    assert long is not None and long.way == "large"


def test_pictures_are_unfolded_one_by_one_and_to_as_many_places_as_torch_makes() -> None:
    settings: Settings = tuple(
        (name, (value, value)) for name, value in (("kernel_size", 3), ("dilation", 1), ("padding", 1), ("stride", 2))
    )
    parts = parts_of("aten::im2col", [_tensor(6, 4, 10, 12)], settings)
    assert parts is not None
    assert parts.amounts[1] == 6 and parts.amounts[2] == pytest.approx(6 * 4 * 9 * 5 * 6 / 1e6)


@pytest.mark.parametrize(("stride", "windows"), [(1, 49), (2, 16), (7, 1)])
def test_a_pixel_is_folded_out_of_as_many_windows_as_hold_it(stride: int, windows: int) -> None:
    options = (("kernel_size", 7), ("stride", stride))
    settings: Settings = (("output_size", (20, 30)), *((name, (value, value)) for name, value in options))
    parts = parts_of("aten::col2im", [_tensor(2, 3 * 49, 50)], settings)
    assert parts is not None and parts.amounts[1] == windows
    assert parts.amounts[3] == pytest.approx(2 * 3 * 600 * windows / 1e6)


def test_transforms_of_lengths_with_large_primes_go_another_way() -> None:
    ways = [parts_of("aten::_fft_c2c", [_tensor(4, size)], (("dim", (1,)),)) for size in (4096, 3000, 17 * 64, 1009)]
    named = ["powers of two", "small factors", "large factors", "by a longer one"]
    assert [each and each.way for each in ways] == named


def test_a_transform_is_scaled_and_mirrored_by_further_kernels_and_large_factors_are_gone_through() -> None:
    def further(**settings: int) -> tuple[float, ...]:
        given = (("dim", (1,)), *((name, (value,)) for name, value in settings.items()))
        parts = parts_of("aten::_fft_r2c", [_tensor(10, 64)], given, bytes_moved=10**6)
        assert parts is not None
        return parts.amounts[2], parts.amounts[5]

    assert further(normalization=0, onesided=1) == (1.0, 0)
    assert further(normalization=1, onesided=1) == (2.0, 1) and further(normalization=2, onesided=0) == (2.0, 2)
    less, more = (parts_of("aten::_fft_c2c", [_tensor(8, size)], (("dim", (1,)),)) for size in (17 * 64, 34 * 61))
    assert less is not None and more is not None
    assert less.amounts[6] == pytest.approx(8 * 17 * 64 * 17 / 1e9) and more.amounts[6] > 2 * 3 * less.amounts[6]


def test_a_long_transform_goes_over_its_rows_twice_and_one_of_two_dimensions_as_often() -> None:
    short, long, square = (
        parts_of("aten::_fft_c2c", [_tensor(8, *sides)], (("dim", tuple(range(1, 1 + len(sides)))),), bytes_moved=10**8)
        for sides in ((4096,), (8192,), (64, 64))
    )
    assert short is not None and long is not None and square is not None
    assert long.amounts[2] == square.amounts[2] == 2 * short.amounts[2]


def test_gradients_of_few_words_are_added_by_one_kernel_and_those_of_many_sorted() -> None:
    settings: Settings = (("num_weights", (1000,)), ("scale_grad_by_freq", (0,)))
    few, many = (
        parts_of("aten::embedding_dense_backward", [_tensor(count, 64), _tensor(count, dtype="int64")], settings)
        for count in (3072, 3073)
    )
    assert few is not None and many is not None and (few.way, many.way) == ("in one kernel", "sorted")
    assert few.amounts[2] == many.amounts[2] == pytest.approx(1000 * 64 * 4 / 1e6)
    assert few.amounts[4] == 0 and many.amounts[4] == pytest.approx((307.3 + 1000) * 64 * 4 / 1e6)


@given(rows=st.integers(1, 10**6))
def test_a_loss_over_rows_gives_a_thread_about_sixteen_until_there_are_no_more_threads(rows: int) -> None:
    parts = parts_of(
        "aten::nll_loss_forward", [_tensor(rows, 10), _tensor(rows, dtype="int64")], (("reduction", (1,)),)
    )
    assert parts is not None and parts.way == "summed"
    turns = parts.amounts[1]
    assert rows / 1024 <= turns <= max(24, math.ceil(rows / 1024))
    each = parts_of("aten::nll_loss_forward", [_tensor(rows, 10), _tensor(rows)], (("reduction", (0,)),))
    assert each is not None and each.way == "each" and each.amounts[1] == 0


def test_a_norm_of_pictures_goes_by_its_channels_unless_they_lie_side_by_side() -> None:
    first, flat = _tensor(8, 64, 7, 7), _tensor(8, 64, 1, 1)
    last = TensorArgument((8, 64, 7, 7), "float32", (3136, 1, 448, 64))
    uneven = TensorArgument((8, 63, 7, 7), "float32", (3087, 1, 441, 63))
    ways = [parts_of("aten::cudnn_batch_norm", [each], ()) for each in (first, flat, last, uneven)]
    assert [each and each.way for each in ways] == [
        None,
        "one pixel",
        "channels last, float32",
        "channels last, float32, uneven",
    ]


@given(st.sampled_from(("stats", "backward_reduce")), st.integers(1, 256), st.integers(2, 20_000))
def test_threads_of_a_channel_go_through_all_its_pixels_in_turns(which: str, pictures: int, pixels: int) -> None:
    parts = parts_of(f"aten::batch_norm_{which}", [_tensor(pictures, 64, pixels)], ())
    assert parts is not None and parts.way == "by channels"
    turns = 100 * parts.amounts[1]
    assert turns == pytest.approx(round(turns)) and turns * 512 >= 0.999 * pictures * pixels
    more = parts_of(f"aten::batch_norm_{which}", [_tensor(2 * pictures, 64, pixels)], ())
    assert more is not None and parts.amounts[1] <= more.amounts[1] <= 2 * parts.amounts[1] + 1e-9


def test_sums_of_channels_go_by_blocks_unless_the_channels_lie_side_by_side() -> None:
    last = TensorArgument((8, 64, 7, 7), "float32", (3136, 1, 448, 64))
    ways = [parts_of("aten::batch_norm_stats", [each], ()) for each in (_tensor(8, 64, 7, 7), last, _tensor(32, 64))]
    assert [each and each.way for each in ways] == ["by channels", *2 * ("channels last, float32",)]


def test_blocks_share_the_pixels_of_channels_side_by_side_if_at_least_eight_do() -> None:
    few, many = (parts_of("aten::batch_norm_stats", [_tensor(rows, 64)], ()) for rows in (7 * 256, 7 * 256 + 1))
    assert few is not None and many is not None
    assert (few.amounts[1], few.amounts[3]) == (7 * 256 / 16 / 1e2, 0)
    assert (many.amounts[1], many.amounts[3]) == (math.ceil(1793 / 128) / 1e2, 1)


def test_statistics_of_more_ranks_follow_one_another() -> None:
    image = _tensor(8, 64, 7, 7)
    parts = [
        parts_of("aten::batch_norm_gather_stats_with_counts", [image, _tensor(ranks, 64)], ()) for ranks in (2, 16)
    ]
    assert [each and each.amounts[1] for each in parts] == [2, 16]


def test_a_picture_has_a_block_for_each_131072_pixels_and_atomics_are_retried_in_half_precision() -> None:
    def parts(dtype: str, side: int, reduction: int = 1) -> Parts:
        given = [_tensor(3, 5, side, 1024, dtype=dtype), _tensor(3, side, 1024, dtype="int64")]
        found = parts_of("aten::nll_loss2d_forward", given, (("reduction", (reduction,)),), bytes_moved=10**6)
        assert found is not None
        return found

    assert parts("float32", 64).amounts[1:4] == (3, 0, pytest.approx(64 * 1024 / 1e3))
    assert parts("bfloat16", 256).amounts[1:4] == (6, 6, pytest.approx(128 * 1024 / 1e3))
    assert parts("bfloat16", 256, 0).way == "each" and parts("bfloat16", 256, 0).amounts[1:4] == (0, 0, 0)


def test_scores_that_do_not_fit_into_the_cache_are_waited_for_longer() -> None:
    near, far = (
        parts_of("aten::nll_loss_forward", [_tensor(4096, classes), _tensor(4096)], (("reduction", (1,)),))
        for classes in (1000, 32_000)
    )
    assert near is not None and far is not None and near.amounts[1] == far.amounts[1] == far.amounts[2] == 16
    assert near.amounts[2] == 0


def test_few_channels_leave_the_tiles_of_an_upward_volume_half_empty() -> None:
    def tiled(channels: int) -> float:
        given = [_tensor(1, channels, 4, 4, 4), _tensor(channels, 64, 2, 2, 2)]
        parts = parts_of("aten::convolution", given, (("transposed", (1,)),), flops=10**9)
        assert parts is not None
        return parts.amounts[4]

    assert (tiled(8), tiled(64), tiled(128)) == (8, 1, 1) and tiled(65) == pytest.approx(128 / 65)


def test_what_is_recorded_otherwise_has_no_parts() -> None:
    assert parts_of("aten::mm", [_tensor(4, 4)], ()) is None
    assert parts_of("aten::_cudnn_rnn", [_tensor(4, 4)], _recurrent()) is None
    assert parts_of("aten::_cudnn_rnn", [_tensor(4, 4, 4)], ()) is None
    assert parts_of("aten::_cudnn_rnn", [_tensor(4, 4, 4)], None) is None
    assert parts_of("aten::grid_sampler_2d", [_tensor(4, 4, 4, 4)], ()) is None
    assert parts_of("aten::convolution", [_tensor(4, 4, 4, 4, 4)], (("transposed", (0,)),)) is None


def test_the_gradient_of_a_norm_of_groups_has_a_warp_for_each_small_channel_of_each_picture() -> None:
    settings = (("group", (32,)),)

    def gradient(count: int, channels: int, side: int) -> Parts:
        picture = _tensor(count, channels, side, side)
        parts = parts_of("aten::native_group_norm_backward", [picture, picture], settings, bytes_moved=10**6)
        assert parts is not None
        return parts

    small, large = gradient(256, 512, 3), gradient(16, 64, 64)
    assert (small.way, large.way) == ("small channels", "channels")
    assert small.amounts[1] > large.amounts[1]
    assert gradient(128, 64, 64).amounts[4] > gradient(129, 64, 64).amounts[4]


def test_the_gradient_of_mirrored_edges_adds_each_value_of_the_larger_picture() -> None:
    larger, smaller = _tensor(4, 8, 18, 18), _tensor(4, 8, 16, 16)
    settings = (("padding", (1, 1, 1, 1)),)
    parts = parts_of("aten::reflection_pad2d_backward", [larger, smaller], settings, bytes_moved=10**6)
    assert parts == Parts("float32", (1, 1.0, 4 * 8 * 18 * 18 / 1e6))
    assert parts_of("aten::reflection_pad2d", [smaller], settings, bytes_moved=10**6) is None
