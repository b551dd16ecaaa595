"""Graph breaks, recompilation, dynamic shapes, control flow, freezing, C++ wrappers, checkpoints: nothing is missed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch._inductor.config
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch._inductor import scheduler

import model_zoo
from captured import Captured, capture_call, eager_flops
from torchledger._torch import guards, inductor
from torchledger.capturing import recorder
from torchledger.nouns import Compilation
from torchledger.reporting.guards import guards_document
from torchledger.reporting.terminal import render
from torchledger.store import open_ledger

WEIGHT = torch.randn(64, 64)


def assert_balanced(captured: Captured) -> None:
    assert captured.gaps == []
    assert len(captured.calls) == captured.wrapper_calls > 0
    assert captured.flops == captured.reference_flops + captured.named_differences


def attention(x: Tensor) -> Tensor:
    return F.softmax(x @ WEIGHT, -1).sum()


def test_both_sides_of_a_graph_break_are_recorded_forward_and_backward(tmp_path: Path) -> None:
    weight = WEIGHT.clone().requires_grad_()

    def broken(x: Tensor) -> Tensor:
        y = (x @ weight).relu()
        torch._dynamo.graph_break()
        return (y @ weight).sum()

    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(broken)(torch.randn(8, 64)).backward())
    assert_balanced(captured)
    assert {graph.name for graph in captured.graphs} == {"forward_0", "forward_1", "backward_0", "backward_1"}


def test_a_recompilation_with_other_shapes_is_a_graph_of_its_own(tmp_path: Path) -> None:
    compiled = torch.compile(attention, dynamic=False)
    captured = capture_call(tmp_path / "a.ledger", lambda: [compiled(torch.randn(rows, 64)) for rows in (8, 24)])
    assert_balanced(captured)
    assert [graph.name for graph in captured.graphs] == ["inference_0", "inference_1"]
    assert captured.flops == 2 * (8 + 24) * 64 * 64


def test_a_recompilation_names_the_guard_that_failed_and_each_graph_those_that_it_needs(tmp_path: Path) -> None:
    compiled = torch.compile(attention, dynamic=False)
    captured = capture_call(tmp_path / "a.ledger", lambda: [compiled(torch.randn(rows, 64)) for rows in (8, 24)])
    with open_ledger(captured.path) as ledger:
        first, second = ledger.read(Compilation)
    assert [first.compile_id, second.compile_id] == [graph.compile_id for graph in captured.graphs]
    assert first.failed_guards == ()
    (failed,) = second.failed_guards
    assert failed.startswith(f"{first.compile_id}: tensor 'x' size mismatch at index 0. expected 8, actual 24")
    assert (second.function, Path(second.file).name) == ("attention", "test_compile_modes.py")
    for compilation, rows in ((first, 8), (second, 24)):
        assert compilation.n_guards == len(compilation.guards) > 0
        assert any("check_tensor(L['x']" in guard and f"size=[{rows}, 64]" in guard for guard in compilation.guards)
        assert not any("\n" in guard or "  # " in guard for guard in compilation.guards)


def test_guards_of_arguments_stand_before_those_of_submodules_and_a_lot_of_them_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "_MOST_GUARDS", 30)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)

    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(Outer())(torch.randn(4, 8)))
    with open_ledger(captured.path) as ledger:
        (compilation,) = ledger.read(Compilation)
    assert len(compilation.guards) == 30 < compilation.n_guards
    is_inside = ["._modules[" in guard for guard in compilation.guards]
    assert is_inside == sorted(is_inside) and True in is_inside
    assert any("size=[4, 8]" in guard for guard in compilation.guards)


def test_a_graph_whose_guards_nobody_told_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder.Recorder, "on_guarded", lambda *_: None)
    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(attention)(torch.randn(8, 64)))
    assert [(gap.account, gap.where, gap.reason) for gap in captured.gaps] == [
        ("run", "guards", "not heard of 1 graphs: inference_0")
    ]


def test_guards_that_cannot_be_read_are_told_and_nothing_else_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(root: object) -> None:
        raise AttributeError("no such tree")

    monkeypatch.setattr(guards, "_leaves", torn)
    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(attention)(torch.randn(8, 64)))
    (gap,) = captured.gaps
    assert (gap.account, gap.where) == ("run", "guards of attention")
    assert "no such tree" in gap.reason
    with open_ledger(captured.path) as ledger:
        (compilation,) = ledger.read(Compilation)
        shown = render(guards_document(captured.graphs[0], [compilation]))
    assert (compilation.guards, compilation.n_guards) == ((), None)
    assert "could not be read" in shown
    assert captured.wrapper_calls == len(captured.calls) > 0


def test_the_compilers_own_estimate_is_kept_with_the_launch_that_it_is_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU has none, so the compiler is given one here: a microsecond for each byte that a kernel reads or writes."""
    monkeypatch.setattr(inductor, "_is_on_gpu", lambda snode: True)
    monkeypatch.setattr(inductor, "_knows_bandwidth", lambda: True)
    monkeypatch.setattr(
        scheduler.BaseSchedulerNode,
        "get_estimated_runtime",
        lambda self: self.get_read_write_buffers_sizes() / 1e3,
    )

    def softmax_of_product(x: Tensor) -> Tensor:
        return F.softmax(x @ WEIGHT, -1)

    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(softmax_of_product)(torch.randn(12, 64)))
    rows, weight = 12 * 64 * 4, 64 * 64 * 4
    estimates = {launch.category: launch.compiler_estimate_us for launch in captured.calls}
    assert estimates == pytest.approx({"extern": 2 * rows + weight, "reduction": 2 * rows})


def test_a_kernel_of_a_cpu_has_no_estimate_of_the_compiler(tmp_path: Path) -> None:
    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(attention)(torch.randn(8, 64)))
    assert {launch.compiler_estimate_us for launch in captured.launches} == {None}


def test_symbolic_sizes_are_kept_beside_their_hints(tmp_path: Path) -> None:
    compiled = torch.compile(attention, dynamic=True)
    captured = capture_call(tmp_path / "a.ledger", lambda: compiled(torch.randn(8, 64)))
    assert_balanced(captured)
    (graph,) = captured.graphs
    assert graph.is_dynamic
    assert set(graph.symbols.values()) >= {8, 64}
    product = next(launch for launch in captured.calls if launch.flops)
    assert product.flops == 2 * 8 * 64 * 64
    assert any(buffer.shape_expr and "s" in "".join(buffer.shape_expr) for buffer in product.buffers)
    assert all(isinstance(extent, int) for buffer in product.buffers for extent in buffer.shape)


def test_both_branches_of_a_condition_are_recorded(tmp_path: Path) -> None:
    def choose(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: (x @ WEIGHT).sin(), lambda x: (x @ WEIGHT).cos() * 2, (x,))

    with torch.no_grad():
        captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(choose)(torch.randn(8, 64)))
    assert_balanced(captured)
    assert sum(launch.flops == 2 * 8 * 64 * 64 for launch in captured.calls) == 2


def test_the_body_of_a_loop_is_recorded_once(tmp_path: Path) -> None:
    def repeat(x: Tensor) -> Tensor:
        counted = torch._higher_order_ops.while_loop(
            lambda i, x: i < 3, lambda i, x: (i + 1, (x @ x).sin()), (torch.tensor(0), x)
        )
        return counted[1]

    with torch.no_grad():
        captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(repeat)(torch.randn(16, 16)))
    assert_balanced(captured)
    assert captured.flops == 2 * 16**3


def test_frozen_convolutions_and_linears_keep_their_flops(tmp_path: Path) -> None:
    model = model_zoo.make("conv_net").module.eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad(), torch._inductor.config.patch(freezing=True):
        captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(model)(x))
        assert captured.flops == eager_flops(lambda: model(x))
    assert captured.gaps == []
    assert any("mkldnn" in launch.kernel_name for launch in captured.calls)


def test_a_cpp_wrapper_is_counted_from_its_own_text(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    with torch._inductor.config.patch(cpp_wrapper=True):
        captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(model)(torch.randn(4, 8)).sum().backward())
    assert_balanced(captured)
    assert {graph.wrapper_language for graph in captured.graphs} == {"cpp"}


def test_checkpointed_work_is_counted_as_often_as_it_runs(tmp_path: Path) -> None:
    block = model_zoo.make("gpt_block").module
    x = torch.randn(2, 16, 64, requires_grad=True)

    def checkpointed(x: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()

    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(checkpointed)(x).backward())
    assert_balanced(captured)
    assert captured.flops == eager_flops(lambda: checkpointed(x).backward())
    assert all(difference.is_eager_too for difference in captured.differences) and captured.differences
    assert any(launch.recomputed_ops for launch in captured.calls)


def test_what_an_eager_checkpoint_does_not_run_again_is_a_difference_from_it(tmp_path: Path) -> None:
    block, norm = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), nn.LayerNorm(8)
    x = torch.randn(4, 8, requires_grad=True)

    def checkpointed(x: Tensor) -> Tensor:
        return norm(torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)).square().sum()

    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(checkpointed)(x).backward())
    alone = sum(int(each.amount) for each in captured.differences if not each.is_eager_too)
    assert captured.flops == eager_flops(lambda: checkpointed(x).backward()) + alone
    assert_balanced(captured)
    assert alone == 2 * 4 * 16 * 8


def test_attention_rewritten_by_a_pass_is_named(tmp_path: Path) -> None:
    def plain_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ((query @ key.transpose(-1, -2)) / 4.0).softmax(-1) @ value

    tensors = [torch.randn(2, 4, 32, 16, requires_grad=True) for _ in range(3)]
    call = torch.compile(plain_attention)
    captured = capture_call(tmp_path / "a.ledger", lambda: call(*tensors).sum().backward())
    assert_balanced(captured)
    assert any("_scaled_dot_product" in difference.reason for difference in captured.differences)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.sort(x, dim=-1)[0].cumsum(0).sum() + torch.topk(x, 3)[0].sum(),
        lambda x: torch.fft.rfft(x).abs().sum(),
        lambda x: x.index_put((torch.tensor([1, 2]),), torch.ones(64)).sum(),
        lambda x: F.dropout(x, 0.5).sum(),
        lambda x: torch.scatter_reduce(x, 0, torch.zeros(8, 64, dtype=torch.int64), x, "amax").sum(),
    ],
    ids=["sort_topk", "fft", "index_put", "dropout", "scatter_reduce"],
)
def test_library_calls_that_are_no_products_have_entries_and_no_flops(
    tmp_path: Path, function: Callable[[Tensor], Tensor]
) -> None:
    captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(function)(torch.randn(8, 64)))
    assert_balanced(captured)
    assert captured.flops == 0


def test_a_compiled_optimizer_step_is_recorded(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(torch.randn(4, 8)).sum().backward()
    captured = capture_call(tmp_path / "a.ledger", torch.compile(optimizer.step))
    assert_balanced(captured)


def test_flex_attention_is_a_template_with_the_flops_of_attention(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    tensors = [torch.randn(1, 2, 64, 16) for _ in range(3)]
    with torch.no_grad():
        captured = capture_call(tmp_path / "a.ledger", lambda: torch.compile(flex_attention)(*tensors), builds=True)
    assert_balanced(captured)
    template = next(launch for launch in captured.calls if launch.category == "template")
    assert template.flops == 4 * 2 * 64 * 64 * 16
    assert template.kwargs == {"simple_score_operations": "0", "hard_score_operations": "0"} | {
        "visited_blocks": "1",
        "partial_blocks": "0",
    }


@pytest.mark.slow
@pytest.mark.parametrize("inverted", [False, True])
def test_flex_attention_says_how_many_blocks_a_mask_that_reads_data_leaves_at_most(
    tmp_path: Path, inverted: bool
) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, window = 512, 128
    tensors = [torch.randn(1, 2, length, 16) for _ in range(3)]
    documents = torch.arange(length) // 64

    def attends(b: torch.Tensor, h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        if inverted:
            return ~((q < k) | (documents[q] != documents[k]) | (q - k >= window))
        return (q >= k) & (documents[q] == documents[k]) & (q - k < window)

    mask = create_block_mask(attends, None, None, length, length, device="cpu")
    with torch.no_grad():
        captured = capture_call(
            tmp_path / "a.ledger", lambda: torch.compile(flex_attention)(*tensors, block_mask=mask), builds=True
        )
    (template,) = (launch for launch in captured.calls if launch.category == "template")
    assert float(template.kwargs["most_visited_blocks"]) == (4 + 3) / 16
    assert "visited_blocks" not in template.kwargs


def test_flex_attention_says_which_blocks_its_mask_leaves(tmp_path: Path) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length, window, slope = 512, 128, 0.5
    tensors = [torch.randn(1, 2, length, 16) for _ in range(3)]
    mask = create_block_mask(lambda b, h, q, k: (q >= k) & (q - k < window), None, None, length, length, device="cpu")

    def call() -> torch.Tensor:
        compiled = torch.compile(flex_attention)
        return compiled(*tensors, score_mod=lambda s, b, h, q, k: torch.tanh(s * slope), block_mask=mask)

    with torch.no_grad():
        captured = capture_call(tmp_path / "a.ledger", call, builds=True)
    (template,) = (launch for launch in captured.calls if launch.category == "template")
    # The diagonal and the blocks below it, of sixteen; a window ends inside each.
    assert float(template.kwargs["visited_blocks"]) == (4 + 3) / 16
    assert float(template.kwargs["partial_blocks"]) == (4 + 3) / 16
    assert (template.kwargs["simple_score_operations"], template.kwargs["hard_score_operations"]) == ("1", "1")
