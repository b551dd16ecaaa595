"""What a program gets that asks for values where there are none."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from torchledger._torch.fakes.attention import CUDNN, EFFICIENT, FLASH, MATH, choose_attention
from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.library import AttentionQuestion
from torchledger._torch.fakes.tensors import DATA_BYTES, REAL_BYTES
from torchledger.nouns import CUDA_GRAPH, Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


def test_numbers_are_one_truths_are_false_and_each_is_noted(fake: FakeDevice) -> None:
    loss = torch.randn((), device="cuda")
    is_large = bool(loss > 3)
    assert loss.item() == 1.0 and f"{loss:.1f}" == "1.0" and not is_large
    assert torch.randint(9, (3,), device="cuda").tolist() == [1, 1, 1]
    assert loss.cpu().numpy().tolist() == 1.0
    assert {each.value for each in fake.tensors.stand_ins} == {"1.0", "False"}
    assert all(each.source.startswith(__file__) for each in fake.tensors.stand_ins)


def test_a_tensor_is_made_of_numbers_that_others_hold(fake: FakeDevice) -> None:
    loss = torch.randn((), device="cuda")
    assert torch.tensor([loss, 3.0]).tolist() == pytest.approx([1.0, 3.0], rel=0.01)
    assert torch.tensor([[loss.long(), loss.long()]], device="cuda").shape == (1, 2)
    assert torch.FloatTensor([loss, loss]).dtype == loss.new_tensor([loss]).dtype == torch.float32
    assert torch.as_tensor([torch.zeros(1, device="cuda", dtype=torch.bool).all()]).dtype == torch.bool
    assert fake.tensors.stand_ins


def test_a_device_that_torch_asks_of_a_fake_tensor_is_its_own_and_counts_as_a_call(fake: FakeDevice) -> None:
    weight = torch.empty(2, device="cuda")
    before = fake.tensors.n_operators
    assert torch.ops.prim.device.default(weight) == torch.device("cuda", 0)
    assert fake.tensors.n_operators == before + 1
    fake.tensors.in_kernel_invocation = True
    assert torch.ops.prim.device.default(weight) == torch.device("meta")
    fake.tensors.in_kernel_invocation = False


def test_a_number_that_is_asked_for_twice_is_the_same_until_it_is_written_to(fake: FakeDevice) -> None:
    loss = torch.randn((), device="cuda")
    for _ in range(3):
        assert loss.item() == float(loss) == loss.item()
    values = set()
    for _ in range(3):
        loss += 1
        values.add(loss.item())
    assert len(values) == 3


def test_a_module_that_is_traced_runs_as_it_is(fake: FakeDevice) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 2)).cuda().eval()
    traced = torch.jit.freeze(torch.jit.trace(model, torch.rand(2, 3, 8, 8, device="cuda")))
    made = traced(torch.rand(5, 3, 8, 8, device="cuda"))
    assert made.shape == (5, 2) and fake.tensors.is_our_fake(made)
    assert any("torch.jit.trace" in each.asked for each in fake.tensors.stand_ins)
    scripted = torch.jit.freeze(torch.jit.script(nn.Linear(3, 2).eval()))
    assert isinstance(scripted, torch.jit.ScriptModule)


def test_checks_of_the_program_pass_whatever_they_ask_for(fake: FakeDevice) -> None:
    x = torch.randn(1 << 20, device="cuda")
    if not (x > 3).all():
        raise ValueError("all are large")
    if (x > 3).any():
        raise ValueError("none is large")
    if not torch.allclose(x, x + 1):
        raise ValueError("they are near")
    torch.testing.assert_close(x, x + 1)
    torch._check_tensor_all(x > 3, lambda: "not all are large")
    assert ("whether a check of the program's holds", "as it passes") in {
        (each.asked, each.value) for each in fake.tensors.stand_ins
    }


def test_what_is_loaded_on_the_device_is_on_the_current_one(tmp_path: Path) -> None:
    torch.save(torch.arange(100), tmp_path / "labels.pt")
    with FakeDevice(HOPPER):
        labels = torch.load(tmp_path / "labels.pt", map_location="cuda")
        made = torch.zeros(100, dtype=torch.int64, device="cuda")
        assert labels.device == made.device == torch.device("cuda:0") and (labels == made).shape == (100,)


def test_numbers_that_a_line_reads_come_nearer_to_each_other_and_are_none_below_one(fake: FakeDevice) -> None:
    read = [torch.randn((), device="cuda").item() for _ in range(900)]
    changes = [abs(after - before) for before, after in itertools.pairwise(read)]
    assert read[0] == min(read) == 1.0 and max(read) < 1.001
    assert min(changes) > 1e-9 and changes[-1] < 2e-9, "LBFGS goes on, and a solver comes to its end"
    assert read[1:] == sorted(read[1:], reverse=True)
    assert [int(each) for each in read] == [1] * 900
    (told,) = fake.tensors.stand_ins
    assert told.count == 900


def test_a_loop_that_only_a_truth_ends_goes_round_once_each_time_whichever_truth_ends_it(fake: FakeDevice) -> None:
    error = torch.randn(4, device="cuda")

    def rounds() -> tuple[int, int, int]:
        first = second = third = 0
        while (error > 1e-3).any():
            first += 1
        while not (error < 1e-3).all():
            second += 1
        while True:
            third += 1
            if error.norm() < 1e-3:
                break
        return first, second, third

    assert [rounds() for _ in range(3)] == [(1, 1, 1)] * 3


def test_a_loop_that_ends_by_what_is_made_of_a_truth_goes_round_once_too(fake: FakeDevice) -> None:
    error = torch.randn(4, device="cuda")

    def is_far() -> bool:
        return bool((error > 1e-3).any())

    def rounds() -> tuple[int, int, int, int]:
        assigned = contrary = returned = broken = 0
        is_done, goes_on = False, True
        while not is_done:
            assigned += 1
            is_done = bool((error < 1e-3).all())
        is_done = False
        while not is_done:
            contrary += 1
            is_done = not is_far()
        while goes_on and is_far():
            returned += 1
        while True:
            broken += 1
            is_done = not is_far() or returned > 99
            if is_done:
                break
        return assigned, contrary, returned, broken

    assert [rounds() for _ in range(3)] == [(1, 1, 1, 1)] * 3


def test_a_loop_that_is_left_halfway_is_entered_again_by_the_next_that_calls(fake: FakeDevice) -> None:
    error = torch.randn(4, device="cuda")

    def left(rounds: int) -> int:
        found = 0
        while (error > 1e-3).any():
            found += 1
            if found == rounds:
                return found
        return found

    assert [left(1) for _ in range(4)] == [1] * 4


@pytest.mark.parametrize("goal", [1e-6, 100.0], ids=["below", "above"])
def test_a_loop_that_only_a_number_ends_comes_to_its_end_on_either_side_of_its_goal(
    fake: FakeDevice, goal: float
) -> None:
    rounds = []
    for _ in range(5):
        rounds.append(0)
        number = torch.randn((), device="cuda").item()
        while (number > goal) == (goal < 1):
            number = torch.randn((), device="cuda").item()
            rounds[-1] += 1
    assert max(rounds) < 70 and rounds[-1] <= 1


def test_a_loop_that_counts_what_is_left_ends(fake: FakeDevice) -> None:
    left, rounds = torch.randn(8, device="cuda") > 0, 0
    while left.sum().item() > 0:
        rounds += 1
    assert rounds == 1


def test_a_loop_that_trains_goes_on_whatever_its_loss(fake: FakeDevice) -> None:
    weight, steps = nn.Parameter(torch.randn(4, device="cuda")), 0
    loss = weight.square().sum()
    while loss > 1e-3 and steps < 9:
        loss = weight.square().sum()
        loss.backward()
        steps += 1
    assert steps == 9


def test_whole_numbers_that_a_program_moves_or_fills_there_are_known_with_what_it_makes_of_them(
    fake: FakeDevice,
) -> None:
    sizes = torch.tensor([64, 128, 256], device="cuda")
    assert sizes.tolist() == [64, 128, 256] and int(sizes.sum()) == 448 and sizes[1].item() == 128
    assert (torch.arange(3).cuda() * 2).cpu().numpy().tolist() == [0, 2, 4]
    assert torch.full((2,), 7, device="cuda").tolist() == [7, 7]
    assert not fake.tensors.stand_ins
    sizes.mul_(2)
    assert sizes.tolist() == [128, 256, 512]
    sizes.mul_(torch.randn(3, 9, device="cuda").argmax(1))
    assert sizes.tolist() == [1, 1, 1], "what was made of something unknown is not known any more"


def test_segments_of_images_and_the_padding_of_a_convolution_are_known_as_they_are_on_the_host(
    fake: FakeDevice,
) -> None:
    images = torch.tensor([[2, 8, 8], [1, 4, 6]])
    there = images.cuda()
    assert there.prod(-1).tolist() == [128, 24]
    assert there.amin(0).tolist() == there.min(0).values.tolist() == [1, 4, 6]
    segments = torch.repeat_interleave(there[:, 1] * there[:, 2], there[:, 0]).cumsum(0)
    ends = nn.functional.pad(segments, (1, 0))
    assert (ends[1:] - ends[:-1]).tolist() == [64, 64, 24]
    kernel, stride = torch.tensor(7).cuda(), torch.tensor(2).cuda()
    turns = torch.ceil((161 - kernel + 5) / stride + 1).to(torch.int64) - 1
    assert int(turns * stride + kernel - 5 - 161) == 1
    assert (
        torch.maximum(there[0], there[1]).flip(0).tolist() == [8, 8, 2] and (-there).abs().tolist() == images.tolist()
    )
    assert not fake.tensors.stand_ins


def test_lengths_of_a_batch_decide_sizes_as_they_are_on_the_host(fake: FakeDevice) -> None:
    words = torch.randint(1, 90, (48, 110)) * (torch.arange(110) < torch.randint(60, 110, (48, 1)))
    durations = torch.randint(3, 10, words.shape) * (words > 0)
    there, lasting = words.cuda(), durations.cuda()
    rows = torch.randn(48, 110, 8, device="cuda")
    spread = [torch.repeat_interleave(row, each, dim=0) for row, each in zip(rows, lasting, strict=True)]
    assert [each.shape[0] for each in spread] == durations.sum(1).tolist()
    frames = nn.utils.rnn.pad_sequence(spread, batch_first=True)
    is_frame = torch.arange(frames.shape[1], device="cuda")[None] < lasting.sum(1)[:, None]
    assert frames.masked_select(is_frame[..., None]).shape[0] == 8 * int(durations.sum())
    assert rows[there != 0].shape[0] == rows[~(there == 0)].shape[0] == int((words != 0).sum())
    assert (there != 0).nonzero().tolist() == (words != 0).nonzero().tolist()
    assert not fake.tensors.stand_ins


def test_what_is_written_into_a_part_is_seen_in_the_whole(fake: FakeDevice) -> None:
    mask = torch.zeros(4, 6, dtype=torch.bool, device="cuda")
    mask[:, :2] = True
    mask[1].fill_(False)
    assert torch.randn(4, 6, device="cuda")[mask].shape == (6,)
    sizes = torch.zeros(4, dtype=torch.long, device="cuda")
    sizes[1:3].copy_(torch.tensor([5, 7]))
    sizes[torch.tensor([0], device="cuda")] = 2
    assert sizes.tolist() == [2, 5, 7, 0]
    given = torch.tensor([3, 4]).cuda()
    sizes[:2].copy_(given)
    given.add_(1)
    assert sizes.tolist() == [3, 4, 7, 0] and given.tolist() == [4, 5]
    sizes[:1].copy_(torch.randn(1, 9, device="cuda").argmax(1))
    assert sizes.tolist() == [1, 1, 1, 1], "of the whole nobody knows one"


@pytest.mark.parametrize("numel", [8, 1 << 18])
def test_whole_numbers_that_are_all_the_same_are_known_however_they_are_made(fake: FakeDevice, numel: int) -> None:
    like = torch.randint(0, 9, (numel,), device="cuda")
    for ones in (
        torch.ones(numel, dtype=torch.int64, device="cuda"),
        torch.ones_like(like),
        torch.full_like(like, 1),
        like.new_ones(numel),
        like.new_full((numel,), 1),
    ):
        assert int(ones.sum()) == numel and bool(ones.bool().all())
    assert not bool(torch.zeros_like(like).any()) and int(like.new_zeros(numel).sum()) == 0
    assert int(torch.full((numel,), 7.0, dtype=torch.int64, device="cuda")[0]) == 7
    assert torch.ones_like(like, dtype=torch.bool).all()


def test_what_is_written_into_many_that_are_the_same_makes_them_unknown(fake: FakeDevice) -> None:
    few, many = (torch.ones(numel, dtype=torch.int64, device="cuda") for numel in (8, 1 << 18))
    for ones in (few, many):
        ones[: len(ones) // 2] = 0
    assert int(few.sum()) == 4
    assert not bool(many.bool().all()), "a stand-in"


def test_a_counter_of_floats_is_known_as_long_as_nothing_unknown_is_added(fake: FakeDevice) -> None:
    layer = nn.BatchNorm1d(4)
    layer.register_buffer("count", torch.zeros(()))
    count = layer.cuda().count
    for _ in range(3):
        if count < 2:
            count += 1
    assert count.item() == 2.0 and not fake.tensors.stand_ins
    torch._foreach_add_([count], 1.0)
    assert count.item() == 1.0, "of lists nothing is followed"
    losses = torch.zeros((), device="cuda")
    losses += torch.rand(3, device="cuda").sum()
    assert losses.item() == 1.0 and losses.sum().item() != 0.0


def test_numbers_that_are_drawn_into_known_ones_are_not_known(fake: FakeDevice) -> None:
    state = torch.get_rng_state()
    numbers = torch.arange(4, device="cuda").random_(9)
    assert numbers.tolist() == [1, 1, 1, 1] and torch.equal(torch.get_rng_state(), state)


def test_a_loop_that_decodes_ends_where_it_was_told_whatever_ends_a_line_before(fake: FakeDevice) -> None:
    tokens = torch.randint(9, (2, 5), device="cuda")
    unfinished, is_done, rounds = torch.ones(2, dtype=torch.long, device="cuda"), False, 0
    while not is_done:
        tokens = torch.cat([tokens, torch.randn(2, 9, device="cuda").argmax(-1, keepdim=True)], 1)
        rounds += 1
        done = torch.full((2,), tokens.shape[1] >= 9, dtype=torch.bool, device="cuda")
        done = done | (tokens[:, -1] == 7)
        unfinished = unfinished & ~done
        is_done = bool(unfinished.max() == 0)
    assert rounds == 4


@pytest.mark.parametrize("form", ["truths", "numbers", "in place", "compared"])
def test_a_loop_goes_on_until_a_limit_of_the_programs_own_whatever_it_is_joined_with(
    fake: FakeDevice, form: str
) -> None:
    hidden = torch.randn(8, 16, device="cuda")
    length, unfinished = torch.zeros(8, dtype=torch.long, device="cuda"), torch.ones(8, dtype=torch.long, device="cuda")

    def has_unfinished(rounds: int) -> torch.Tensor:
        nonlocal unfinished
        ended = hidden.sum(-1) > 1e9
        limit = torch.full((8,), rounds >= 5, device="cuda")
        if form == "truths":
            return ~ended.all() & ~torch.all(limit)
        if form == "in place":
            ended |= limit
            return ended.all().logical_not()
        if form == "compared":
            return ~((length + rounds >= 5) | ended).all()
        unfinished = unfinished & ~(ended | limit)
        return unfinished.max() != 0

    all_rounds = []
    for _ in range(2):
        rounds, finished = 0, False
        unfinished = torch.ones(8, dtype=torch.long, device="cuda")
        while not finished:
            rounds += 1
            finished = not has_unfinished(rounds)
        all_rounds.append(rounds)
    assert all_rounds == [5, 5]


def test_truths_that_a_loop_begins_with_are_no_limit(fake: FakeDevice) -> None:
    ended, rounds = torch.full((8,), False, device="cuda"), 0
    while not ended.all():
        ended = ended | (torch.randn(8, 16, device="cuda").sum(-1) > 1e9)
        rounds += 1
    assert rounds == 1


def test_truths_follow_of_the_programs_own_values_and_not_of_those_that_are_made_up(fake: FakeDevice) -> None:
    sizes, made_up = torch.tensor([64, 128], device="cuda"), torch.randint(9, (2,), device="cuda")
    assert (sizes > 7).all() and (sizes == 64).tolist() == [True, False] and not (sizes < 7).any()
    assert not fake.tensors.stand_ins
    assert not (made_up == 1).all() and not ((made_up == 1) & (sizes > 7)).all()
    is_any = sizes > 7
    assert (is_any | (made_up == 3)).all() and not (is_any & (made_up == 3)).all()
    is_any &= made_up == 3
    assert not is_any.all(), "what was changed in place is not known any more"


def test_a_window_that_begins_at_an_unknown_number_is_as_long_as_the_program_says(fake: FakeDevice) -> None:
    rows = torch.zeros(5000, device="cuda")
    begin = torch.randint(4000, (2,), device="cuda")
    assert torch.stack([rows[i : i + 100] for i in begin]).shape == (2, 100)
    assert "101, made of ones" in {each.value for each in fake.tensors.stand_ins}


def test_random_numbers_below_a_large_bound_are_small_and_real(fake: FakeDevice) -> None:
    begin = torch.randint(10**9, (4,))
    assert len(set(begin.tolist())) > 1 and torch.full((2,), 5_000_000).tolist() == [5_000_000] * 2
    assert not fake.tensors.stand_ins


def test_values_are_finite_and_no_number_is_missing(fake: FakeDevice) -> None:
    gradient = torch.randn(4, device="cuda")
    assert torch.isfinite(gradient).all() and not torch.isnan(gradient).any() and not torch.isinf(gradient).any()


def test_masks_take_every_element(fake: FakeDevice) -> None:
    values = torch.randn(4, 3, device="cuda")
    assert values[values > 0].shape == (12,) and (values > 0).nonzero().shape == (12, 2)


def test_a_parameter_is_made_anew_by_its_own_class_and_attributes(fake: FakeDevice) -> None:
    parameter = nn.Linear(8, 8).weight
    again = type(parameter)(parameter.to("meta"), **(vars(parameter) | {"requires_grad": False}))
    moved = type(again)(torch.zeros(8, 8), requires_grad=True).to("cuda")
    assert isinstance(again, nn.Parameter) and again.shape == (8, 8) and not again.requires_grad
    assert moved.is_cuda and moved.shape == (8, 8)


def test_small_tensors_of_the_host_are_real_and_large_ones_are_not(fake: FakeDevice) -> None:
    small = torch.arange(5) * 2
    assert small.tolist() == [0, 2, 4, 6, 8] and not fake.tensors.stand_ins
    assert fake.tensors.is_our_fake(nn.Linear(1024, 512).weight)
    assert fake.tensors.is_our_fake(small.cuda()) and fake.tensors.is_our_fake(small.cuda().cpu())


def test_data_that_the_program_makes_itself_has_its_values_also_where_it_is_large(fake: FakeDevice) -> None:
    rows = torch.zeros(REAL_BYTES // 2)
    rows[7] = 3.0
    assert float(rows.sum()) == 3.0 and not fake.tensors.stand_ins
    assert fake.tensors.is_our_fake(torch.empty(DATA_BYTES))
    assert fake.tensors.is_our_fake(rows.cuda())


def test_weights_that_a_module_makes_are_no_data(fake: FakeDevice) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = torch.randn(REAL_BYTES)

    assert fake.tensors.is_our_fake(Table().rows)


def test_data_beyond_a_gigabyte_has_no_values(fake: FakeDevice) -> None:
    made = [fake.tensors.is_our_fake(torch.empty(DATA_BYTES // 4)) for _ in range(5)]
    assert made == [False, False, False, False, True]


def test_parameters_that_an_autograd_graph_holds_move_to_the_device(fake: FakeDevice) -> None:
    layer = nn.utils.weight_norm(nn.Linear(8, 4))
    held = dict(layer.named_parameters())
    layer.cuda()
    assert {name: each.device.type for name, each in layer.named_parameters()} == dict.fromkeys(held, "cuda")
    assert all(each is held[name] for name, each in layer.named_parameters())
    layer(torch.rand(2, 8, device="cuda")).sum().backward()
    assert {each.grad.device.type for each in held.values() if each.grad is not None} == {"cuda"}
    assert all(each.grad is not None for each in held.values())


def test_the_state_of_the_device_s_random_numbers_is_taken_and_given_back(fake: FakeDevice) -> None:
    state = torch.cuda.get_rng_state()
    own = torch.Generator(device="cuda")
    for each in (torch.cuda.default_generators[0], own):
        assert each.get_state().shape == state.shape == (16,)
        each.set_state(state)
        each.set_offset(8)
        assert each.get_offset() == 8
    host = torch.Generator().manual_seed(7)
    drawn, state = torch.rand(3, generator=host), host.get_state()
    assert not torch.equal(drawn, torch.rand(3, generator=host))
    assert torch.equal(torch.Generator().set_state(state).get_state(), state)


def test_a_module_keeps_its_parameters_when_it_moves(fake: FakeDevice) -> None:
    model = nn.Linear(2000, 2000)
    held = list(model.parameters())
    model.cuda()
    assert [id(each) for each in model.parameters()] == [id(each) for each in held]
    assert {each.device.type for each in held} == {"cuda"}
    assert len({each.data_ptr() for each in held}) == 2


def test_what_a_program_hangs_on_a_parameter_stays_there_when_its_module_moves_or_is_cast(fake: FakeDevice) -> None:
    layer = nn.Linear(2000, 2000)
    parameter, heard = layer.weight, []
    parameter.is_expert = True
    parameter.register_post_accumulate_grad_hook(heard.append)
    layer.cuda().to(torch.bfloat16)
    assert layer.weight is parameter and parameter.is_expert
    assert (parameter.device.type, parameter.dtype) == ("cuda", torch.bfloat16)
    layer(torch.randn(1, 2000, device="cuda", dtype=torch.bfloat16)).sum().backward()
    assert len(heard) == 1


def test_a_storage_lies_somewhere_while_it_holds_anything(fake: FakeDevice) -> None:
    gathered = torch.empty(64, device="cuda")
    storage = gathered.untyped_storage()
    assert storage.data_ptr() == gathered.data_ptr() == gathered[8:].untyped_storage().data_ptr() > 0
    assert torch.empty(64, device="cuda").untyped_storage().data_ptr() != storage.data_ptr()
    storage.resize_(0)
    assert storage.data_ptr() == 0
    assert torch.UntypedStorage(64, device="cpu").data_ptr() > 0


def test_nothing_is_saved_and_what_was_saved_is_loaded(fake: FakeDevice, tmp_path: Path) -> None:
    model = nn.Linear(3, 3).cuda()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    assert not (tmp_path / "model.pt").exists()
    assert any("torch.save" in each.asked for each in fake.tensors.stand_ins)


def test_random_numbers_of_a_graph_that_recomputes_dropout_have_a_state_of_the_device(fake: FakeDevice) -> None:
    from torch._prims.rng_prims import graphsafe_run_with_rng_state

    state = torch.cuda.default_generators[0].clone_state()
    assert state.device == torch.device("cuda", 0)
    dropped = torch.randn(64, 32, device="cuda")
    mask = graphsafe_run_with_rng_state(torch.ops.aten.rand_like.default, dropped, rng_state=state)
    assert mask.shape == dropped.shape and mask.device.type == "cuda"


def test_what_would_be_a_cuda_graph_is_called_as_it_is_and_noted(fake: FakeDevice) -> None:
    from torch._inductor import compile_fx

    def graph(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return inputs

    assert compile_fx.cudagraphify(graph, static_input_idxs=(), device_index=0, stack_traces=[]) is graph
    assert fake.decisions == {CUDA_GRAPH: 1}


def test_attention_is_differentiable_by_the_kernel_that_hopper_takes(fake: FakeDevice) -> None:
    query = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    mixed = nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert type(mixed.grad_fn).__name__ == "ScaledDotProductCudnnAttentionBackward0"
    mixed.sum().backward()
    assert query.grad is not None and query.grad.shape == query.shape


def test_choosing_a_kernel_of_attention_asks_no_symbol_for_its_value(fake: FakeDevice) -> None:
    shapes = ShapeEnv()
    with FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode:
        query = torch.empty(4, 4, 24, 64, device="cuda", dtype=torch.bfloat16)
        sizes = [DimDynamic.DYNAMIC, DimDynamic.STATIC, DimDynamic.DYNAMIC, DimDynamic.STATIC]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        symbolic = mode.from_tensor(query, symbolic_context=context)
        assert torch._fused_sdp_choice(symbolic, symbolic, symbolic, is_causal=True) == CUDNN
        other = symbolic[:, :, 1:]
        assert torch._fused_sdp_choice(symbolic, other, other, is_causal=True) == CUDNN
    assert not shapes.replacements


def question(**changes: int) -> AttentionQuestion:
    asked = AttentionQuestion()
    sizes = dict(zip(range(4), (2, 16, 512, 64), strict=True))
    for name in ("query", "key", "value"):
        for place, size in sizes.items():
            setattr(asked, f"{name}_{place}", size)
        setattr(asked, f"{name}_stride", 1)
    asked.rank, asked.dtype_bytes, asked.is_half = 4, 2, 1
    for name, value in changes.items():
        setattr(asked, name, value)
    return asked


MASK = {"mask_rank": 4, "mask_0": 1, "mask_1": 1, "mask_2": 512, "mask_3": 512, "mask_stride": 1}


@pytest.mark.parametrize(
    ("changes", "capability", "expected"),
    [
        ({}, (9, 0), CUDNN),
        (MASK, (9, 0), CUDNN),
        ({}, (8, 0), FLASH),
        (MASK, (8, 0), EFFICIENT),
        (MASK | {"mask_stride": 0}, (9, 0), MATH),
        (MASK | {"mask_rank": 3}, (9, 0), EFFICIENT),
        (MASK | {"mask_2": 1}, (9, 0), CUDNN),
        ({"is_half": 0, "dtype_bytes": 4}, (9, 0), EFFICIENT),
        ({"is_half": 0, "dtype_bytes": 4}, (8, 0), EFFICIENT),
        ({"query_2": 1}, (9, 0), CUDNN),
        ({"query_2": 1, "has_dropout": 1}, (9, 0), FLASH),
        ({"key_2": 1, "value_2": 1}, (9, 0), FLASH),
        ({"query_stride": 2}, (9, 0), MATH),
        (MASK | {"mask_requires_grad": 1}, (9, 0), EFFICIENT),
        ({"key_1": 4, "value_1": 4, "enable_gqa": 1}, (9, 0), CUDNN),
        ({"query_3": 512, "key_3": 512, "value_3": 512}, (9, 0), EFFICIENT),
    ],
)
def test_attention_is_chosen_by_the_rules_of_the_device(
    changes: dict[str, int], capability: tuple[int, int], expected: int
) -> None:
    assert choose_attention(question(**changes), capability) == expected


def test_forward_derivatives_of_a_view_are_laid_out_as_it_is_each_time(fake: FakeDevice) -> None:
    rows = torch.randn(5, 12, device="cuda")
    for _ in range(3):
        made = torch.func.jvp(lambda row: row.view(4, 3).square().sum(), (rows[0],), (torch.ones_like(rows[0]),))[1]
        assert fake.tensors.is_our_fake(made) and made.shape == ()
    assert not any("torch.jit.script" in each.asked for each in fake.tensors.stand_ins), "torch's own rules are none"
