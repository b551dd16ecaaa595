"""What operators make that torch has no meta functions for, on a device that is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.operators import NoShapeError
from torchledger.errors import PlanError
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "batch_first": True, "bias": False, "dropout": 0.1}])
def test_recurrent_layers_make_what_they_make_on_a_cpu(kind: type[nn.RNNBase], options: dict[str, bool]) -> None:
    expected, state = kind(8, 16, 2, **options)(torch.zeros(5, 3, 8))
    with FakeDevice(HOPPER):
        _compare_layer(kind(8, 16, 2, **options).cuda(), expected, state)


def _compare_layer(layer: nn.RNNBase, expected: torch.Tensor, state: Any) -> None:
    assert len({each.untyped_storage()._cdata for each in layer.parameters()}) == 1
    rows = torch.zeros(5, 3, 8, device="cuda", requires_grad=True)
    made, made_state = layer(rows)
    assert made.shape == expected.shape and made.device.type == "cuda"
    states = [(state, made_state)] if torch.is_tensor(state) else list(zip(state, made_state, strict=True))
    assert all(one.shape == other.shape for one, other in states)
    made.sum().backward()
    assert rows.grad is not None and rows.grad.shape == rows.shape
    assert all(each.grad is not None and each.grad.shape == each.shape for each in layer.parameters())


def test_projected_states_are_narrower_than_cells(fake: FakeDevice) -> None:
    made, (hidden, cell) = nn.LSTM(8, 16, proj_size=4).cuda()(torch.zeros(5, 3, 8, device="cuda"))
    assert made.shape == (5, 3, 4) and hidden.shape[-1] == 4 and cell.shape[-1] == 16


@pytest.mark.parametrize(
    ("kind", "sizes", "options", "kept"),
    [
        (nn.LSTM, (20, 8, 128, 256, 1), {}, 819456),
        (nn.LSTM, (20, 8, 128, 256, 2), {"bidirectional": True}, 3604736),
        (nn.LSTM, (7, 5, 64, 96, 3), {}, 228736),
        (nn.LSTM, (20, 8, 128, 256, 1), {"proj_size": 64}, 1024256),
        (nn.GRU, (20, 8, 128, 256, 2), {}, 2130176),
        (nn.GRU, (100, 32, 512, 512, 1), {}, 39321856),
        (nn.RNN, (7, 5, 64, 96, 3), {}, 67456),
    ],
)
def test_what_is_kept_for_a_backward_is_what_an_h100_kept(
    kind: type[nn.RNNBase], sizes: tuple[int, ...], options: dict[str, int], kept: int, fake: FakeDevice
) -> None:
    steps, batch, width, hidden, layers = sizes
    layer = kind(width, hidden, layers, **options).cuda()
    made, _ = layer(torch.zeros(steps, batch, width, device="cuda"))
    reserve = made.grad_fn._saved_result3  # type: ignore[union-attr]
    assert 0 <= kept - reserve.numel() <= 256


def test_under_autocast_recurrent_layers_run_in_float16(fake: FakeDevice) -> None:
    layer = nn.LSTM(8, 16).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        made, _ = layer(torch.zeros(5, 3, 8, device="cuda"))
    assert made.dtype is torch.float16
    made.float().sum().backward()
    assert {each.grad.dtype for each in layer.parameters() if each.grad is not None} == {torch.float32}


def test_packed_sequences_have_the_rows_that_their_lengths_say(fake: FakeDevice) -> None:
    padded = torch.zeros(3, 7, 8, device="cuda", requires_grad=True)
    packed = pack_padded_sequence(padded, torch.tensor([7, 3, 2]), batch_first=True)
    assert packed.data.shape == (12, 8) and packed.batch_sizes.tolist() == [3, 3, 2, 1, 1, 1, 1]
    made, lengths = pad_packed_sequence(nn.GRU(8, 16).cuda()(packed)[0], batch_first=True)
    assert made.shape == (3, 7, 16) and lengths.tolist() == [7, 3, 2]
    made.sum().backward()
    assert padded.grad is not None and padded.grad.shape == padded.shape


CASES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "histogram": lambda given: torch.histc(given, 10),
    "trapezoid of sorted values": lambda given: torch.trapezoid(given.sort().values),
    "random gamma": lambda given: torch.distributions.Gamma(given, given).rsample(),
    "chosen": lambda given: torch.distributions.Categorical(logits=given).sample(),
    "a cell": lambda given: nn.GRUCell(16, 4).to(given.device)(given),
    "alignment": lambda given: nn.functional.ctc_loss(
        given[:, None].log_softmax(-1), torch.ones(1, 3, dtype=torch.long), torch.tensor([8]), torch.tensor([3])
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_have_the_shapes_and_dtypes_of_a_cpu(name: str) -> None:
    expected = CASES[name](torch.ones(8, 16))
    with FakeDevice(HOPPER):
        made = CASES[name](torch.ones(8, 16, device="cuda"))
    assert (made.shape, made.dtype, made.device.type) == (expected.shape, expected.dtype, "cuda")


def _aligned(**changed: Any) -> tuple[list[str], torch.Tensor]:
    """Operators of a loss of alignments for which ATen takes cuDNN but for what is ``changed``, and its gradient."""
    scores = torch.zeros(40, 4, 16, device="cuda", dtype=changed.get("dtype", torch.float32), requires_grad=True)
    given = {"targets": torch.ones(12, dtype=torch.int32), "input_lengths": [40] * 4, "target_lengths": [3] * 4}
    heard = EagerCalls(lambda: None)
    assert heard.start()
    loss = nn.functional.ctc_loss(scores, **(given | {name: changed[name] for name in changed if name != "dtype"}))
    loss.backward()
    assert heard.stop() and scores.grad is not None
    return [call.call.name for call in heard.calls], scores.grad


@pytest.mark.parametrize(
    "lengths", [[40] * 4, torch.full((4,), 40), torch.full((4,), 40, dtype=torch.int32)], ids=["list", "wide", "narrow"]
)
def test_a_loss_of_alignments_is_cudnns_where_aten_takes_it(fake: FakeDevice, lengths: Any) -> None:
    names, gradient = _aligned(input_lengths=lengths)
    assert "aten::_cudnn_ctc_loss" in names and "aten::_ctc_loss" not in names
    assert gradient.shape == (40, 4, 16) and gradient.is_contiguous()


def test_lengths_on_the_device_are_taken_to_fit(fake: FakeDevice) -> None:
    on_device = {
        name: torch.ones(count, dtype=torch.int32, device="cuda")
        for name, count in (("targets", 12), ("input_lengths", 4), ("target_lengths", 4))
    }
    assert "aten::_cudnn_ctc_loss" in _aligned(**on_device)[0]
    assert "aten::_cudnn_ctc_loss" not in _aligned(**on_device | {"input_lengths": torch.ones(4).long().cuda()})[0]


REFUSED: dict[str, dict[str, Any]] = {
    "another blank": {"blank": 1},
    "wide targets": {"targets": torch.ones(12, dtype=torch.int64)},
    "targets in rows": {"targets": torch.ones(4, 3, dtype=torch.int32)},
    "scores in double": {"dtype": torch.float64},
    "frames that end early": {"input_lengths": [40, 40, 40, 30]},
    "long targets": {"targets": torch.ones(164, dtype=torch.int32), "target_lengths": [41] * 4},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_loss_of_alignments_is_atens_own_where_cudnn_does_not_take_it(fake: FakeDevice, name: str) -> None:
    names, _ = _aligned(**REFUSED[name])
    assert "aten::_ctc_loss" in names and "aten::_cudnn_ctc_loss" not in names


def test_what_dynamo_traces_asks_no_kernel_of_the_device_for_what_it_makes(fake: FakeDevice) -> None:
    torch._dynamo.reset()
    cell = nn.GRUCell(16, 4).cuda()
    made = torch.compile(lambda rows, state: cell(rows, state), backend="aot_eager", fullgraph=True)
    state = torch.zeros(8, 4, device="cuda")
    for _ in range(2):
        state = made(torch.ones(8, 16, device="cuda"), state)
    assert state.shape == (8, 4) and state.device.type == "cuda"
    state.sum().backward()
    assert cell.weight_hh.grad is not None and cell.weight_hh.grad.shape == (12, 4)


def test_an_encoder_that_is_compiled_runs_each_layer_as_one_operator_as_there(fake: FakeDevice) -> None:
    torch._dynamo.reset()
    layers = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2, enable_nested_tensor=False
    )
    layers = layers.to("cuda", torch.bfloat16).eval()
    made = torch.compile(lambda rows: layers(rows).mean(1), backend="aot_eager", fullgraph=True)
    with torch.inference_mode():  # builds for CUDA alone have a kernel that would be asked
        rows = made(torch.ones(8, 16, 64, device="cuda", dtype=torch.bfloat16))
    assert (rows.shape, rows.dtype, rows.device.type) == ((8, 64), torch.bfloat16, "cuda")


PASSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "maximum": lambda given: torch.maximum(given, given.flip(0)),
    "limits that are tensors": lambda given: given.clamp(given.flip(0), given.flip(1)),
    "a sampled grid": lambda given: nn.functional.grid_sample(
        given.view(1, 2, 4, 16), given.view(1, 8, 8, 2), align_corners=True
    ),
    "filled by a tensor": lambda given: given.index_fill(0, torch.tensor([1, 2], device=given.device), given[0, 0]),
    "complex singular vectors": lambda given: torch.linalg.svd(given + 1j * given.flip(1), full_matrices=False)[
        0
    ].abs(),
}


@pytest.mark.parametrize("name", PASSES)
def test_what_has_gradients_on_a_cpu_has_them_without_a_device(name: str) -> None:
    expected = PASSES[name](torch.arange(128.0).sin().view(8, 16))
    with FakeDevice(HOPPER):
        given = torch.ones(8, 16, device="cuda", requires_grad=True)
        made = PASSES[name](given)
        (gradient,) = torch.autograd.grad(made.sum(), given)
    assert (made.shape, made.dtype, gradient.shape) == (expected.shape, expected.dtype, (8, 16))


def test_numbers_are_compared_with_tensors_of_any_size(fake: FakeDevice) -> None:
    given = torch.zeros(4, 5, device="cuda")
    assert (given > given).shape == (4, 5) and torch.linalg.matrix_rank(given, rtol=given[0, :0]).shape == (0,)


@pytest.mark.parametrize(
    ("rows", "others"),
    [((5, 3), (5, 2)), ((5, 3), (5,)), ((2, 5, 3), (2, 5)), ((3, 5), (3, 2)), ((2, 5, 3), (2, 5, 2))],
)
def test_least_squares_have_the_shapes_of_the_driver_that_a_gpu_has(
    rows: tuple[int, ...], others: tuple[int, ...]
) -> None:
    expected = torch.linalg.lstsq(torch.ones(rows), torch.ones(others), driver="gels")
    with FakeDevice(HOPPER):
        made = torch.linalg.lstsq(torch.ones(rows, device="cuda"), torch.ones(others, device="cuda"))
    assert [(each.shape, each.dtype) for each in made] == [(each.shape, each.dtype) for each in expected]


def test_sizes_that_depend_on_values_are_those_of_all_elements_and_noted(fake: FakeDevice) -> None:
    given = torch.rand(4, 3, device="cuda")
    values, inverse, counts = given.unique(return_inverse=True, return_counts=True)
    assert values.shape == counts.shape == (12,) and inverse.shape == given.shape
    assert torch.bincount(given.flatten().long()).shape == (2,)
    assert given.repeat_interleave(torch.ones(4, dtype=torch.long, device="cuda"), 0).shape == given.shape
    assert not torch.equal(given, given) and not torch.allclose(given, given)
    asked = {each.asked for each in fake.tensors.stand_ins}
    assert {f"the size of the result of aten::{name}" for name in ("_unique2", "bincount")} <= asked


def test_different_values_are_as_many_as_a_program_brings(fake: FakeDevice) -> None:
    bounds = torch.tensor([0, 64, 64, 128, 128, 64], dtype=torch.int32).to("cuda")
    assert bounds.unique_consecutive().diff().tolist() == [64, 64, -64]
    values, inverse, counts = bounds.unique(return_inverse=True, return_counts=True)
    assert (values.tolist(), inverse.tolist(), counts.tolist()) == ([0, 64, 128], [0, 1, 1, 2, 2, 1], [1, 3, 2])
    assert bounds.view(3, 2).unique(dim=0).tolist() == [[0, 64], [64, 128], [128, 64]]
    assert bounds.view(2, 3).unique_consecutive(dim=1).shape == (2, 3)
    assert not fake.tensors.stand_ins


def test_counts_of_what_is_chosen_are_equal_shares(fake: FakeDevice) -> None:
    chosen = torch.zeros(6, 2, dtype=torch.long, device="cuda")
    counts = torch.bincount(chosen.flatten(), minlength=5)
    assert counts.tolist() == [3, 3, 2, 2, 2] and counts.cpu().cumsum(0).tolist() == [3, 6, 8, 10, 12]
    assert counts.view(1, 5).sum(1).item() == 12 and counts.sum().cpu().numpy() == 12
    assert torch.histc(chosen.float(), bins=4, min=0, max=3).tolist() == [3.0] * 4
    routed = torch.rand(12, 4, device="cuda").topk(2, -1).indices
    assert torch.nn.functional.one_hot(routed, 4).sum((0, 1)).tolist() == [6] * 4
    counts.add_(torch.randint(3, (5,), device="cuda"))
    assert counts.tolist() == [1] * 5
    assert {str(each.value) for each in fake.tensors.stand_ins} == {"equal shares", "12, an equal share", "1.0"}


def test_synchronized_batch_norm_has_statistics_of_channels(fake: FakeDevice) -> None:
    rows = torch.zeros(2, 6, 4, device="cuda", dtype=torch.bfloat16)
    mean, deviation = torch.batch_norm_stats(rows, 1e-5)
    assert mean.shape == deviation.shape == (6,) and mean.dtype is torch.float32
    assert torch.batch_norm_elemt(rows, None, None, mean, deviation, 1e-5).shape == rows.shape


@pytest.fixture
def operator() -> Iterator[Callable[[torch.Tensor], torch.Tensor]]:
    library = torch.library.Library("tests_of_plans", "DEF")
    library.define("mystery(Tensor given) -> Tensor")
    yield torch.ops.tests_of_plans.mystery
    library._destroy()


def test_an_operator_of_unknown_shape_is_named_with_the_line_that_calls_it(
    operator: Callable[[torch.Tensor], torch.Tensor], fake: FakeDevice
) -> None:
    with pytest.raises(NoShapeError, match=rf"tests_of_plans::mystery at {__file__}:\d+ cannot be run") as failed:
        operator(torch.zeros(3, device="cuda"))
    assert isinstance(failed.value, PlanError) and isinstance(failed.value, RuntimeError)


def test_encoders_are_taken_operator_by_operator_and_it_is_said(fake: FakeDevice) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).cuda().eval()
    with torch.no_grad():
        made = encoder(torch.zeros(3, 5, 8, device="cuda"), src_key_padding_mask=torch.zeros(3, 5).cuda() > 0)
    assert made.shape == (3, 5, 8) and any("TransformerEncoder" in each for each in fake.decisions)


def test_a_random_mask_keeps_the_share_that_its_limit_leaves(fake: FakeDevice) -> None:
    drawn = torch.rand(8, 100, device="cuda")
    assert [drawn[mask].shape[0] for mask in (drawn < 0.15, drawn.t().ge(0.9).t(), drawn < 2.0)] == [120, 80, 800]
    assert drawn[torch.randn(8, 100, device="cuda") < 0.15].shape[0] == 800
    assert drawn[drawn.mul_(4) < 0.15].shape[0] == 800


def test_a_mask_selects_as_many_as_it_finds(fake: FakeDevice) -> None:
    drawn = torch.rand(8, 100, device="cuda")
    for mask in (drawn < 0.15, drawn >= 0.9, drawn > drawn.t()[:8, :1]):
        assert drawn.masked_select(mask).shape[0] == mask.nonzero().shape[0] == drawn[mask].shape[0]
    of_rows = torch.rand(8, 1, device="cuda") < 0.25
    assert drawn.masked_select(of_rows).shape[0] == 200


def test_experts_that_a_router_chooses_are_given_equal_shares_of_the_tokens(fake: FakeDevice) -> None:
    _, chosen = torch.topk(torch.rand(64, 8, device="cuda"), 2, dim=-1)
    assert torch.where(chosen == 3)[0].shape == (16,)
    mask = nn.functional.one_hot(chosen, 8).permute(2, 1, 0)
    assert mask[5].nonzero().shape == (16, 2)
    best = torch.rand(64, 4, device="cuda").argmax(1)
    assert (best == 0).nonzero().shape == (16, 1)
    assert (torch.zeros(64, device="cuda") == 0).nonzero().shape == (64, 1)


def test_what_is_counted_of_a_mask_is_what_was_found_in_it(fake: FakeDevice) -> None:
    keys = torch.randn(40, device="cuda")
    mask = keys[torch.arange(120, device="cuda").view(3, 40) % 40] == keys
    places, found = mask.nonzero(as_tuple=True)
    counts = mask.sum(1).tolist()
    assert counts == [40, 40, 40] and [each.shape for each in found.split(counts)] == [(40,)] * 3
    assert places.shape == (120,) and int(mask.sum()) == 120


def test_floats_of_a_mask_that_a_program_fills_are_known(fake: FakeDevice) -> None:
    negative = torch.zeros(2, 6, 1, device="cuda")
    negative[:, 3:] = 1
    positive = (1 - negative.tile([1, 2, 1])).squeeze(-1)
    padding = torch.zeros(2, 12, dtype=torch.bool, device="cuda")
    padding[0], padding[1, ::3] = 1, 1
    assert torch.nonzero(positive * padding).shape == (6 + 2, 2)
    assert (positive * padding).sum(1).long().tolist() == [6, 2]
    assert (padding.float().sum() - 10).to(torch.int64).item() == 6


def test_what_is_written_into_floats_that_were_filled_is_not_known(fake: FakeDevice) -> None:
    def holds_value(write: Any) -> bool:
        held = torch.zeros(8, device="cuda")
        write(held)
        return (held != 0).nonzero().shape[0] == 0

    drawn = torch.rand(8, device="cuda")
    assert holds_value(lambda held: held + drawn)
    assert not holds_value(lambda held: held.add_(drawn))
    assert not holds_value(lambda held: held[2:4].copy_(drawn[:2]))
    assert not holds_value(lambda held: torch.add(drawn, drawn, out=held))
    assert not holds_value(lambda held: torch._foreach_add_([held], [drawn]))
    assert not holds_value(lambda held: nn.functional.batch_norm(drawn.expand(2, 8), held, drawn, training=True))


def test_products_that_are_added_are_of_the_dtype_that_is_asked_for(fake: FakeDevice) -> None:
    left, right = (torch.rand(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((3, 4, 8), (3, 8, 6)))
    rows = torch.rand(4, 6, device="cuda")
    assert torch.addmm(rows, left[0], right[0], out_dtype=torch.float32).dtype is torch.float32
    assert torch.addmm(rows, left[0], right[0], out_dtype=torch.float32, out=rows) is rows
    made = torch.baddbmm(rows.expand(3, 4, 6), left, right, out_dtype=torch.float32)
    assert made.shape == (3, 4, 6) and made.dtype is torch.float32


def test_levels_between_two_bounds_have_equal_shares(fake: FakeDevice) -> None:
    sizes = torch.rand(8000, device="cuda")
    levels = torch.clamp(torch.floor(4 + torch.log2(sizes)), min=2, max=5).to(torch.int64) - 2
    assert all(torch.where(levels == level)[0].shape == (2000,) for level in range(4))
    assert torch.where(torch.clamp(sizes, 0, 1000) == 3)[0].shape == (8000,)
    assert torch.where(torch.clamp(sizes, 0.5, 2) == 1)[0].shape == (8000,)
    assert torch.where(torch.clamp(sizes, 0, float("inf")) == 1)[0].shape == (8000,)


def test_a_histogram_is_made_between_two_values_that_nobody_computed(fake: FakeDevice) -> None:
    weights = torch.rand(64, device="cuda")
    for _ in range(3):
        low, high = (each.item() for each in weights.aminmax())
        assert torch.histc(weights, 10, min=low, max=high).shape == (10,)


def test_what_torch_has_no_rule_for_is_in_a_graph_as_its_kernel_for_the_cpu_makes_it(fake: FakeDevice) -> None:
    def factors(rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.geqrf(rows.tanh())

    made = torch.compile(factors, backend="aot_eager", fullgraph=True)(torch.rand(6, 4, device="cuda"))
    assert [(each.shape, each.stride(), each.device.type) for each in made] == [
        ((6, 4), (1, 6), "cuda"),
        ((4,), (1,), "cuda"),
    ]


def test_what_no_kernel_makes_of_zeros_is_left_out_of_a_graph(fake: FakeDevice) -> None:
    def compressed(rows: torch.Tensor) -> Any:
        return torch._cslt_compress(rows.tanh())

    with pytest.raises(NoShapeError, match=r"aten::_cslt_compress at .*test_fake_operators\.py:\d+"):
        torch.compile(compressed, backend="aot_eager")(torch.rand(64, 64, device="cuda"))


@pytest.mark.parametrize(
    "draws",
    [
        lambda rates: torch.distributions.Gamma(rates, rates).rsample(),
        lambda rates: torch.distributions.Dirichlet(rates).rsample(),
        lambda rates: torch.distributions.Beta(rates, rates).rsample(),
    ],
)
def test_draws_have_gradients_by_what_they_are_drawn_by(draws: Callable[[Any], torch.Tensor], fake: FakeDevice) -> None:
    rates = torch.rand(5, 3, device="cuda", requires_grad=True)
    draws(rates).sum().backward()
    assert rates.grad is not None and rates.grad.shape == (5, 3)
    assert not any(stand_in.asked.startswith("what ") for stand_in in fake.tensors.stand_ins)


def test_places_of_the_largest_are_different_and_spread_over_all(fake: FakeDevice) -> None:
    strengths = torch.rand(49, device="cuda")
    assert torch.topk(strengths, 5)[1].detach().cpu().numpy().tolist() == [4, 14, 24, 34, 44]
    assert strengths.argsort(descending=True)[:3].tolist() == [8, 24, 40]
    assert {stand_in.value for stand_in in fake.tensors.stand_ins} == {"spread over the 49 that they choose from"}


def test_experts_that_are_read_one_by_one_are_chosen_as_often(fake: FakeDevice) -> None:
    chosen = torch.topk(torch.rand(64, 8, device="cuda"), 2)[1].tolist()
    assert all(first != second for first, second in chosen)
    assert [sum(row.count(expert) for row in chosen) for expert in range(8)] == [16] * 8
    assert torch.rand(8, 4, device="cuda").argmax(1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_gradient_scaler_keeps_its_scale_as_it_finds_no_infinite_gradients(fake: FakeDevice) -> None:
    layer, scaler = nn.Linear(8, 8).cuda(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        scaler.scale(layer(torch.randn(4, 8, device="cuda")).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 65536.0
    assert scaler.state_dict()["_growth_tracker"] == 3


def test_a_mask_that_is_written_at_places_takes_as_many_as_there_are(fake: FakeDevice) -> None:
    """Samplers of detectors: of all anchors so many positive and negative ones."""
    matched = torch.randint(0, 9, (4000,), device="cuda").argmax(0, keepdim=True).expand(4000)
    masks = [torch.zeros_like(matched, dtype=torch.uint8) for _ in range(2)]
    for mask, most in zip(masks, (128, 384), strict=True):
        among = torch.where(matched >= 1)[0]
        mask[among[torch.randperm(among.numel(), device="cuda")[:most]]] = 1
    assert [torch.where(mask)[0].numel() for mask in masks] == [128, 384]
    assert torch.where(masks[0] | masks[1])[0].numel() == 512
    assert torch.where(torch.cat([masks[0], masks[0]]))[0].numel() == 256
