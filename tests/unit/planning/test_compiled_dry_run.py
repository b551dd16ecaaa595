"""Compiled programs without their device: Triton writes their kernels, so that ``make test-slow`` installs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchledger
from torchledger._torch.fakes import wrappers as fake_wrappers
from torchledger.balance import balance_books
from torchledger.books import open_books
from torchledger.nouns import Device, Kernel, Launch, LiveStorage, Step, StepCall, StepMemory
from torchledger.planning.dry_run import run_without_device
from torchledger.store import open_ledger
from torchledger.work.sizes import sizes_at

pytestmark = pytest.mark.slow

WIDTH, HEADS, BATCH, LENGTH = 128, 4, 2, 64
MADE_UP = Device(name="a made-up device", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).view(BATCH, LENGTH, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


def program() -> None:
    model = Block().cuda().bfloat16()
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters())
    inputs = torch.randn(BATCH, LENGTH, WIDTH, device="cuda", dtype=torch.bfloat16)
    while True:
        compiled(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_without_device(program, tmp_path_factory.mktemp("compiled") / "plan.ledger", MADE_UP).path


def test_kernels_are_written_for_the_device(path: Path) -> None:
    with open_ledger(path) as reader:
        sources = [kernel.source or "" for kernel in reader.read(Kernel) if kernel.backend == "triton"]
    assert sources
    assert all("multi_processor_count=78" in source and "cc=90" in source for source in sources)


def test_attention_runs_the_kernel_that_the_device_would_take(path: Path) -> None:
    with open_ledger(path) as reader:
        names = {launch.kernel_name for launch in reader.read(Launch)}
    assert any("_scaled_dot_product_cudnn_attention_backward" in name for name in names)


class Deep(nn.Module):
    """One weight in many layers."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(24):
            x = (x @ self.weight).sin()
        return x


def test_what_the_wrapper_of_a_graph_calls_when_it_runs_first_is_no_work_outside_the_step(tmp_path: Path) -> None:
    def program() -> None:
        model = Deep().cuda()
        compiled, optimizer = torch.compile(model), torch.optim.SGD(model.parameters())
        for _ in range(8):
            compiled(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    path = run_without_device(program, tmp_path / "plan.ledger", MADE_UP).path
    with open_ledger(path) as reader:
        (step,) = reader.read(Step)
    assert not [note for note in step.notes if "outside the recorded step" in note]


def _train_by(update: Callable[[], object], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Eight steps, each ended by ``update``."""
    for _ in range(8):
        model(torch.randn(BATCH, WIDTH, device="cuda")).sum().backward()
        update()
        optimizer.zero_grad()


def test_the_state_of_an_optimizer_that_is_compiled_is_made_on_the_device(tmp_path: Path) -> None:
    def training() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), torch.tensor(1e-3))
        _train_by(torch.compile(lambda: optimizer.step()), model, optimizer)

    with open_ledger(run_without_device(training, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        (step,) = reader.read(Step)
        launches, calls = reader.read(Launch), reader.read(StepCall)
    assert len(step.graph_calls) == 1 and any(launch.category == "foreach" for launch in launches)
    assert step.found_by == "optimizer" and [call.phase for call in calls if call.kind == "graph"] == ["optimizer"]


def test_a_compiled_optimizer_is_planned_as_ever_behind_a_plan_of_one_that_no_graph_holds(tmp_path: Path) -> None:
    def training(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
        _train_by(torch.compile(lambda: optimizer.step()), model, optimizer)

    def fused() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        training(torch.optim.AdamW(model.parameters(), fused=True), model)

    def foreach() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        training(torch.optim.AdamW(model.parameters(), torch.tensor(1e-3)), model)

    run_without_device(fused, tmp_path / "fused.ledger", MADE_UP)
    with open_ledger(run_without_device(foreach, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        assert {launch.category for launch in reader.read(Launch)} == {"foreach"}


def test_what_is_compiled_is_planned_again_as_it_was(path: Path, tmp_path: Path) -> None:
    again = run_without_device(program, tmp_path / "again.ledger", MADE_UP).path
    with open_ledger(path) as first, open_ledger(again) as second:
        for kind in (Launch, StepMemory):
            assert first.read(kind) == second.read(kind)
        assert [each.name for each in first.read(StepCall)] == [each.name for each in second.read(StepCall)]


def test_what_a_plan_compiled_for_the_host_computes_again_behind_it(tmp_path: Path) -> None:
    layer = nn.LayerNorm(WIDTH).requires_grad_(False)
    compiled = torch.compile(lambda x: layer(x) + 1)

    def serving() -> None:
        while True:
            compiled(torch.randn(BATCH, WIDTH))

    run_without_device(serving, tmp_path / "plan.ledger", MADE_UP)
    inputs = torch.arange(float(BATCH * WIDTH)).view(BATCH, WIDTH)
    assert torch.allclose(compiled(inputs), layer(inputs) + 1, atol=1e-4)


def test_an_optimizer_of_another_program_is_not_waited_for_where_calls_are_compiled(tmp_path: Path) -> None:
    others: list[torch.optim.Optimizer] = []

    def training() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        others.append(torch.optim.SGD(model.parameters(), 0.1))
        _train_by(others[0].step, model, others[0])

    def serving() -> None:
        compiled = torch.compile(nn.Linear(WIDTH, 8).cuda().requires_grad_(False))
        for _ in range(12):
            compiled(torch.randn(BATCH, WIDTH, device="cuda"))

    run_without_device(training, tmp_path / "training.ledger", MADE_UP)
    with open_ledger(run_without_device(serving, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        (step,) = reader.read(Step)
    assert step.found_by == "period" and others


def test_the_books_of_a_plan_balance(path: Path) -> None:
    with open_ledger(path) as reader:
        books = balance_books(open_books(reader))
        (step,) = reader.read(Step)
        (memory,) = reader.read(StepMemory)
    assert books.accounts["launches"].is_balanced and books.accounts["flops"].is_balanced
    assert step.graph_calls == {"forward_0": 1, "backward_0": 1}
    assert memory.device == "cuda:0" and not memory.notes


def test_a_plan_is_the_same_where_wrappers_ask_the_dispatcher_for_each_tensor(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for views, which the dispatcher makes of what is saved for the backward, and which are detached then."""
    torch._dynamo.reset()
    monkeypatch.setattr(fake_wrappers, "_who_is_told", lambda mode: None)
    slow = run_without_device(program, tmp_path / "slow.ledger", MADE_UP).path
    with open_ledger(path) as quickly, open_ledger(slow) as slowly:
        for kind in (Launch, StepMemory):
            assert quickly.read(kind) == slowly.read(kind)
        calls = [[each.name for each in ledger.read(StepCall)] for ledger in (quickly, slowly)]
        lives = [
            Counter((each.nbytes, each.category) for each in ledger.read(LiveStorage)) for ledger in (quickly, slowly)
        ]
    without = [[name for name in names if name != "aten::detach"] for names in calls]
    assert without[0] == without[1] and lives[0] == lives[1]


def test_a_graph_that_stays_on_the_host_computes_nothing(tmp_path: Path) -> None:
    def on_host() -> None:
        model = nn.Sequential(nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, 3))
        compiled = torch.compile(model)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        while True:
            loss = compiled(torch.randn(BATCH, WIDTH)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            assert 1.0 <= loss.item() < 1.001  # the stand-in: no kernel read an address that is none

    with open_ledger(run_without_device(on_host, tmp_path / "host.ledger", MADE_UP).path) as reader:
        assert "cpp" in {kernel.backend for kernel in reader.read(Kernel)}


def test_what_values_decide_in_a_graph_is_said_with_the_programs_line(tmp_path: Path) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def solving() -> None:
        weight = torch.randn(WIDTH, WIDTH, device="cuda")

        def solve(x: torch.Tensor) -> torch.Tensor:
            x = torch.cond(x.sum() > 0, torch.sin, lambda x: x @ weight @ weight, (x,))
            (x,) = while_loop(lambda x: x.sum() > 0, lambda x: (x @ weight,), (x,))
            return x

        compiled = torch.compile(solve)
        while True:
            compiled(torch.randn(BATCH, WIDTH, device="cuda"))

    outcome = run_without_device(solving, tmp_path / "plan.ledger", MADE_UP)
    with open_ledger(outcome.path) as reader:
        (step,) = reader.read(Step)
        (graph,) = [call for call in reader.read(StepCall) if call.kind == "graph"]
    assert graph.flops == 3 * 2 * BATCH * WIDTH * WIDTH and graph.not_taken == 1
    ways, turns = step.notes
    here = Path(__file__).name
    assert f"which way torch.cond takes at {here}:" in ways.replace(str(Path(__file__).parent) + "/", "")
    assert "while_loop goes round" in turns and "one turn is priced (1 launch" in turns
    told = {(Path(each.source.rpartition(":")[0]).name, each.value) for each in outcome.dry_run.stand_ins}
    assert told == {(here, "True"), (here, "False")}


def test_a_package_is_planned_as_the_graph_that_is_in_it(tmp_path: Path) -> None:
    def serving() -> None:
        inputs = torch.randn(BATCH, WIDTH, device="cuda")
        program_of_layer = torch.export.export(nn.Linear(WIDTH, WIDTH).cuda().eval(), (inputs,))
        model = torch._inductor.aoti_load_package(
            torch._inductor.aoti_compile_and_package(program_of_layer, package_path=str(tmp_path / "model.pt2"))
        )
        while True:
            model(inputs)

    with open_ledger(run_without_device(serving, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        (call,) = [call for call in reader.read(StepCall) if call.kind == "graph"]
    assert call.name == "inference_0" and call.flops == 2 * BATCH * WIDTH * WIDTH


def test_a_function_that_is_compiled_no_more_is_named(tmp_path: Path) -> None:
    def training() -> None:
        weight = torch.ones(WIDTH, WIDTH, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([weight])

        @torch.compile(dynamic=False)
        def cut(count: int) -> torch.Tensor:
            return weight[:count].square().sum()

        with torch._dynamo.config.patch(recompile_limit=2):
            for _ in range(8):
                sum(cut(count) for count in (1, 2, 3, 4)).backward()  # type: ignore[union-attr]
                optimizer.step()
                optimizer.zero_grad()

    with open_ledger(run_without_device(training, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        (step,) = reader.read(Step)
    assert [note for note in step.notes if note.startswith("Dynamo compiles cut (test_compiled_dry_run.py:")]


def test_what_adagrad_counts_its_steps_by_comes_to_the_device_where_its_step_is_compiled(tmp_path: Path) -> None:
    def training() -> None:
        model = nn.Linear(WIDTH, WIDTH).cuda()
        optimizer = torch.optim.Adagrad(model.parameters(), foreach=True)
        _train_by(torch.compile(optimizer.step), model, optimizer)

    with open_ledger(run_without_device(training, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        (step,) = reader.read(Step)
    assert list(step.graph_calls.values()) == [1]


def test_an_optimizer_whose_step_is_compiled_inside_a_backward_is_planned(tmp_path: Path) -> None:
    def training() -> None:
        weight = nn.Parameter(torch.randn(WIDTH, WIDTH, device="cuda"))
        optimizer = torch.optim.AdamW([weight], torch.tensor(1e-3, device="cuda"), capturable=True)
        update = torch.compile(optimizer.step)

        def updated(_: torch.Tensor) -> None:
            update()
            optimizer.zero_grad()

        weight.register_post_accumulate_grad_hook(updated)
        for _ in range(8):
            (torch.randn(BATCH, WIDTH, device="cuda") @ weight).sum().backward()
            torchledger.step()

    with open_ledger(run_without_device(training, tmp_path / "plan.ledger", MADE_UP).path) as reader:
        (step,) = reader.read(Step)
    assert step.found_by == "torchledger.step" and list(step.graph_calls.values()) == [1]


def test_what_a_graph_copies_to_the_host_has_that_wait_in_the_step_with_the_programs_line(tmp_path: Path) -> None:
    weight = torch.nn.Linear(WIDTH, WIDTH)

    def halves(x: torch.Tensor) -> torch.Tensor:
        return x * (x.sum(1).to("cpu") + 1).to("cuda")[:, None]

    def program() -> None:
        model = weight.cuda()
        first, second = torch.compile(halves), torch.compile(torch.nn.Sequential(model))
        optimizer = torch.optim.SGD(model.parameters())
        while True:
            second(first(torch.randn(BATCH, WIDTH, device="cuda"))).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    made = run_without_device(program, tmp_path / "plan.ledger", MADE_UP)
    with open_ledger(made.path) as reader:
        calls = sorted(reader.read(StepCall), key=lambda call: call.order)
    found = [call.name for call in calls if call.kind in ("graph", "synchronization")]
    assert found == ["inference_0", "cudaStreamSynchronize", "cudaStreamSynchronize", "forward_1", "backward_1"]
    waits = [call for call in calls if call.kind == "synchronization"]
    assert all("test_compiled_dry_run.py" in call.sources[-1] for call in waits)


@torch._dynamo.config.patch(  # type: ignore[untyped-decorator]
    capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
)
def test_calls_of_graphs_tell_the_sizes_that_their_operators_make(tmp_path: Path) -> None:
    layer = torch.nn.Linear(WIDTH, WIDTH)

    def chosen(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return layer(x[mask]).sum() + torch.ones((x.sum() > 0).sum().item() + 2, device="cuda").sum()

    def program() -> None:
        optimizer = torch.optim.SGD(layer.cuda().parameters())
        compiled = torch.compile(chosen, fullgraph=True)
        while True:
            mask = torch.arange(WIDTH, device="cuda") < 7
            compiled(torch.randn(WIDTH, WIDTH, device="cuda"), mask).backward()
            optimizer.step()
            optimizer.zero_grad()

    made = run_without_device(program, tmp_path / "plan.ledger", MADE_UP)
    with open_ledger(made.path) as reader:
        calls = [call for call in reader.read(StepCall) if call.kind == "graph"]
        launches = list(reader.read(Launch))
    forward, backward = (dict(next(each.sizes for each in calls if kind in each.name)) for kind in ("forw", "backw"))
    assert 7 in forward.values() and len(forward) == 2
    assert 7 in backward.values()
    products = [each for each in launches if "mm" in each.kernel_name and "forward" in each.graph]
    assert [each.flops for each in sizes_at(products, forward)] == [2 * 7 * WIDTH**2]


def test_calls_of_graphs_tell_which_blocks_documents_of_the_program_leave(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = 512

    def program() -> None:
        weight = torch.nn.Parameter(torch.randn(2, 1, length, 64, device="cuda"))
        optimizer = torch.optim.SGD([weight])
        attention = torch.compile(flex_attention)
        while True:
            ids = torch.stack([torch.arange(length) // 128, torch.zeros(length, dtype=torch.int64)]).cuda()

            def attends(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor, ids: Any = ids) -> Any:
                return (q >= k) & (ids[b, q] == ids[b, k])

            mask = create_block_mask(attends, 2, None, length, length, device="cuda")
            attention(weight, weight, weight, block_mask=mask).sum().backward()
            optimizer.step()

    made = run_without_device(program, tmp_path / "plan.ledger", MADE_UP)
    with open_ledger(made.path) as reader:
        calls = {call.name: dict(call.sizes) for call in reader.read(StepCall) if call.kind == "graph"}
        launches = [each for each in reader.read(Launch) if "blocks_told_by" in each.kwargs and each.graph in calls]
    assert len(launches) >= 2
    for launch in launches:
        (known,) = sizes_at([launch], calls[launch.graph])
        # Of sixteen blocks the four on the diagonal, and of one document also those below it.
        assert float(known.kwargs["visited_blocks"]) == (4 + 10) / 32
        assert float(known.kwargs["partial_blocks"]) == (4 + 4) / 32
