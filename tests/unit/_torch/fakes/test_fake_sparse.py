"""Sparse tensors on a device that is not there hold as many elements as they were given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from torchledger._torch.eager_calls import EagerCalls
from torchledger._torch.fakes.device import FakeDevice
from torchledger._torch.fakes.operators import NoShapeError
from torchledger._torch.fakes.sparse import put_in_order
from torchledger.nouns import Device

HOPPER = Device(name="a Hopper", kind="cuda", compute_capability=(9, 0), num_multiprocessors=78)


@pytest.fixture
def fake() -> Iterator[FakeDevice]:
    with FakeDevice(HOPPER) as made:
        yield made


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda weights: torch.optim.SGD(weights, 0.1),
        lambda weights: torch.optim.SparseAdam(weights),
        lambda weights: torch.optim.Adagrad(weights),
    ],
    ids=["SGD", "SparseAdam", "Adagrad"],
)
def test_sparse_gradients_of_an_embedding_have_a_row_for_each_index(
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer], fake: FakeDevice
) -> None:
    layer = nn.Embedding(50_000_000, 4, sparse=True, device="cuda")
    steps = optimizer(list(layer.parameters()))
    for _ in range(2):
        steps.zero_grad()
        layer(torch.zeros(3, 7, dtype=torch.long, device="cuda")).sum().backward()
        steps.step()
    gradient = layer.weight.grad
    assert gradient is not None and gradient.layout is torch.sparse_coo and gradient._nnz() == 21
    assert gradient.coalesce().values().shape == (21, 4)
    assert ("how many elements aten::_coalesce leaves", "21, all of them") in {
        (each.asked, each.value) for each in fake.tensors.stand_ins
    }


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sparse_gradients_of_bags_take_all_elements_where_some_may_be_padding(mode: str, fake: FakeDevice) -> None:
    layer = nn.EmbeddingBag(50_000_000, 4, sparse=True, mode=mode, padding_idx=0, device="cuda")
    layer(torch.zeros(3, 7, dtype=torch.long, device="cuda")).sum().backward()
    gradient = layer.weight.grad
    assert gradient is not None and gradient.layout is torch.sparse_coo and gradient._nnz() == 21
    assert ("how many elements aten::_embedding_bag_backward leaves", "21, all of them") in {
        (each.asked, each.value) for each in fake.tensors.stand_ins
    }


def test_a_sparse_matrix_is_moved_and_multiplied_with_its_gradient(fake: FakeDevice) -> None:
    places = torch.tensor([[0, 1, 1], [2, 0, 2]])
    moved = torch.sparse_coo_tensor(places, torch.ones(3), (2, 3)).coalesce().cuda()
    assert moved.device.type == "cuda" and moved.is_coalesced() and moved._nnz() == 3
    assert moved.clone()._nnz() == moved.detach()._nnz() == 3 and moved.to(torch.float16).dtype is torch.float16
    turned = moved.t()
    assert turned.shape == (3, 2) and turned._nnz() == 3 and not turned.is_coalesced()
    weights = torch.zeros(3, 5, device="cuda", requires_grad=True)
    made = torch.sparse.mm(moved, weights)
    made.sum().backward()
    assert made.shape == (2, 5) and weights.grad is not None and weights.grad.shape == (3, 5)


def test_what_is_made_sparse_has_as_many_elements_as_may_not_be_zero(fake: FakeDevice) -> None:
    rows = torch.zeros(5_000_000, 40, device="cuda", requires_grad=True)
    made, by_row = rows.to_sparse(), rows.to_sparse(1)
    assert made.layout is torch.sparse_coo and made._nnz() == 200_000_000 and made.is_coalesced()
    assert by_row._indices().shape == (1, 5_000_000) and by_row._values().shape == (5_000_000, 40)
    assert (torch.arange(16, device="cuda") > 3).to_sparse()._nnz() == 12, "which these are is known"
    made.to_dense().sum().backward()
    assert rows.grad is not None and rows.grad.shape == rows.shape and made.to_dense().layout is torch.strided


def test_other_sparse_layouts_are_refused_and_it_is_said_which_are_followed(
    fake: FakeDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    rows = torch.eye(4).to_sparse_csr()
    said = r"test_fake_sparse.py:\d+ .* is given torch.sparse_csr, where a plan follows torch.sparse_coo alone"
    with pytest.raises(NoShapeError, match=said):
        rows.cuda()
    assert not caplog.records


def test_torch_writes_of_what_is_not_said_anew_alone(
    fake: FakeDevice, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("torch"), "propagate", True)
    log = logging.getLogger("torch._subclasses.fake_tensor")
    for words in ("CUDA driver version is insufficient", "sizes do not match"):
        try:
            raise RuntimeError(words)
        except RuntimeError:
            log.exception("failed")
    assert [str(each.exc_info[1]) for each in caplog.records if each.exc_info] == ["sizes do not match"]


def _gradient(nnz: int = 6, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Rows of a table of a thousand words."""
    places = torch.zeros(1, nnz, dtype=torch.long, device="cuda")
    return torch.sparse_coo_tensor(places, torch.zeros(nnz, 8, dtype=dtype, device="cuda"), (1000, 8))


@pytest.mark.parametrize(
    "scaled",
    [
        lambda rows: rows / 8,
        lambda rows: rows * 0.5,
        lambda rows: 0.5 * rows,
        lambda rows: torch.tensor(0.5, device="cuda") * rows,
        lambda rows: rows * torch.ones(1000, 8, device="cuda"),
        lambda rows: -rows,
        lambda rows: rows * _gradient(9),
    ],
)
def test_what_is_scaled_has_new_values_at_the_same_places(
    scaled: Callable[[torch.Tensor], torch.Tensor], fake: FakeDevice
) -> None:
    made = scaled(_gradient())
    assert made.layout is torch.sparse_coo and made._nnz() == 6 and made.shape == (1000, 8)
    assert made._values().shape == (6, 8) and made.dtype is torch.float32 and made.device.type == "cuda"


def test_whole_numbers_that_are_divided_are_none_any_more(fake: FakeDevice) -> None:
    assert (_gradient(dtype=torch.int64) / 2).dtype is torch.float32
    assert (_gradient(dtype=torch.float16) * 2.0).dtype is torch.float16


def test_sums_keep_the_elements_of_the_dimensions_that_stay(fake: FakeDevice) -> None:
    over_words, over_width = torch.sparse.sum(_gradient(), 0), torch.sparse.sum(_gradient(), -1)
    assert (over_words.layout, over_words.shape) == (torch.strided, (8,))
    assert (over_width.layout, over_width.shape, over_width._nnz()) == (torch.sparse_coo, (1000,), 6)
    assert torch.sparse.sum(_gradient()).shape == _gradient().sum().shape == ()
    matrix = torch.sparse_coo_tensor(
        torch.zeros(2, 5, dtype=torch.long, device="cuda"), torch.zeros(5, device="cuda"), (3, 4)
    )
    assert torch.sparse.sum(matrix, 1).shape == (3,) and torch.sparse.sum(matrix, 1)._nnz() == 5


def test_a_product_with_places_out_of_order_is_one_call_that_holds_them_in_order_and_transposing_copies(
    fake: FakeDevice,
) -> None:
    places, values = torch.zeros(2, 9, dtype=torch.long, device="cuda"), torch.ones(9, device="cuda")
    unordered = torch.sparse_coo_tensor(places, values, (4, 5))
    rows = torch.zeros(5, 3, device="cuda")

    def names(act: Callable[[], torch.Tensor]) -> list[str]:
        heard = EagerCalls(lambda: None)
        assert heard.start()
        try:
            act()
        finally:
            assert heard.stop()
        assert not heard.faults
        return [each.call.name.removeprefix("aten::") for each in heard.calls]

    for product in (lambda: torch.sparse.mm(unordered, rows), lambda: unordered @ rows):
        assert "_coalesce" not in names(product)
    multiply = torch.ops.aten.mm.default
    held, ordered = put_in_order(multiply, (unordered, rows)), unordered.coalesce()
    assert held.is_coalesced() and held.shape == unordered.shape
    assert put_in_order(multiply, (ordered, rows)) is None and put_in_order(multiply, (rows, rows)) is None
    turned = names(ordered.t)
    assert turned.count("clone") == 1 and turned.count("copy_") == 3 and "t" not in turned


def test_products_with_sparse_matrices_are_of_any_size(fake: FakeDevice) -> None:
    places, values = torch.zeros(2, 9, dtype=torch.long, device="cuda"), torch.ones(9, device="cuda")
    matrix = torch.sparse_coo_tensor(places, values, (3_000_000, 2_000_000))
    rows = torch.zeros(2_000_000, 64, device="cuda", requires_grad=True)
    made = torch.sparse.addmm(torch.zeros(3_000_000, 64, device="cuda"), matrix, rows)
    for each in (made, matrix @ rows, torch.sparse.mm(matrix, rows)):
        assert each.shape == (3_000_000, 64)
    made.sum().backward()
    assert rows.grad is not None and rows.grad.shape == rows.shape
    assert not any(each.asked.startswith("what aten") for each in fake.tensors.stand_ins)


def test_gradients_of_one_table_that_is_looked_up_twice_hold_the_rows_of_both(fake: FakeDevice) -> None:
    layer = nn.Embedding(5000, 4, sparse=True, device="cuda")
    tokens, others = torch.randint(5000, (8, 33), device="cuda"), torch.randint(5000, (16,), device="cuda")
    (layer(tokens[:, :-1]) * layer(tokens[:, 1:])).sum().add(layer(others).sum()).backward()
    gradient = layer.weight.grad
    assert gradient is not None and gradient._nnz() == 2 * 8 * 32 + 16 and not gradient.is_coalesced()
    assert gradient.coalesce()._nnz() == 8 * 33 + 16
    assert {each.value for each in fake.tensors.stand_ins} == {"280, of 528: others are copies of the same numbers"}
