"""Eager calls of linear algebra, from batches of small matrices (filters, flows, poses) to a few large ones (Gaussian
processes, preconditioners), and calls on sparse tensors (gradients of tables, their optimizers, products of graphs).
For ``eager_strangers_cuda.py --solvers``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]


class DrawnSolvers(Drawn):
    """Draws calls of these kinds."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those whose times depend on more more often."""
        return [
            *(self._triangular,) * 4, *(self._by_cholesky,) * 4, *(self._by_lu,) * 4, *(self._inverted,) * 2,
            *(self._determinants,) * 2, *(self._decomposed,) * 2, *(self._table_gradients,) * 4,
            *(self._sparse_products,) * 2,
        ]  # fmt: skip

    def _matrices(self, *, most: int = 2048, flops: float = 2e11) -> tuple[Any, int, int]:
        """Well-conditioned matrices, their number and their side: many small ones, or a few large."""
        torch = self.torch
        side = self.size(2, 48) if self.rng.random() < 0.5 else self.size(32, most, of=8)
        room = max(1, min(2**24 // side**2, int(flops / side**3), self.most // side**2))
        count = self.size(1, min(8192, room)) if self.rng.random() < 0.75 else 1
        single = self.rng.random() < 0.8
        made = torch.randn(count, side, side, device=self.pool.device, dtype=torch.float32 if single else torch.float64)
        made = made @ made.mT / side + torch.eye(side, device=self.pool.device, dtype=made.dtype)
        return (made[0] if count == 1 and self.rng.random() < 0.6 else made).contiguous(), count, side

    def _beside(self, matrices: Any, side: int, *, is_left: bool = True) -> Any:
        """Columns to solve for: one, a few, as many as the matrices have, now and then lying across."""
        columns = self.rng.choice((1, 1, 2, self.size(2, 32), min(side, 512), side))
        columns = max(1, min(columns, 2**25 // max(1, matrices.numel() // side)))
        last = (side, columns) if is_left else (columns, side)
        lies_across = self.rng.random() < 0.4
        made = self.torch.randn(
            *matrices.shape[:-2], *(last[::-1] if lies_across else last), device=self.pool.device, dtype=matrices.dtype
        )
        return (made.mT if lies_across else made).requires_grad_()

    def _triangular(self) -> Made:
        linalg, rng = self.torch.linalg, self.rng
        matrices, _, side = self._matrices()
        is_upper, is_left, is_unit = rng.random() < 0.5, rng.random() < 0.75, rng.random() < 0.1
        factor = matrices.triu() if is_upper else matrices.tril()
        if rng.random() < 0.4:
            factor, is_upper = factor.mT, not is_upper
        beside = self._beside(matrices, side, is_left=is_left)
        solve = lambda a, b: linalg.solve_triangular(  # noqa: E731
            a, b, upper=is_upper, left=is_left, unitriangular=is_unit
        )
        return solve, (factor.detach().requires_grad_(), beside)

    def _by_cholesky(self) -> Made:
        torch, rng = self.torch, self.rng
        matrices, _, side = self._matrices()
        factor = torch.linalg.cholesky_ex(matrices).L
        factor = factor.detach() if rng.random() < 0.5 else factor.detach().contiguous()
        calls: tuple[Callable[[], Made], ...] = (
            lambda: (lambda a: torch.linalg.cholesky_ex(a).L, (matrices.requires_grad_(),)),
            lambda: (lambda a: torch.linalg.cholesky_ex(a).L, (matrices.requires_grad_(),)),
            lambda: (lambda a, b: torch.cholesky_solve(b, a), (factor, self._beside(matrices, side))),
            lambda: (
                lambda a, b: torch.cholesky_solve(b, a),
                (factor.requires_grad_(), self._beside(matrices, side)),
            ),
            lambda: (lambda a: torch.cholesky_inverse(a), (factor.requires_grad_(),)),
        )
        return rng.choice(calls)()

    def _by_lu(self) -> Made:
        linalg, rng = self.torch.linalg, self.rng
        matrices, _, side = self._matrices(most=1024)
        factored, pivots, _ = linalg.lu_factor_ex(matrices)
        is_adjoint, is_left = rng.random() < 0.3, rng.random() < 0.8
        calls: tuple[Callable[[], Made], ...] = (
            lambda: (lambda a: linalg.lu_factor_ex(a).LU, (matrices.requires_grad_(),)),
            lambda: (
                lambda a, b: linalg.solve_ex(a, b).result,
                (matrices.requires_grad_(), self._beside(matrices, side)),
            ),
            lambda: (
                lambda a, b: linalg.solve_ex(a, b).result,
                (matrices.requires_grad_(), self._beside(matrices, side)),
            ),
            lambda: (
                lambda b: linalg.lu_solve(factored, pivots, b, adjoint=is_adjoint, left=is_left),
                (self._beside(matrices, side, is_left=is_left),),
            ),
            lambda: (
                lambda a, b: linalg.lu_solve(a, pivots, b),
                (factored.detach().requires_grad_(), self._beside(matrices, side)),
            ),
        )
        return rng.choice(calls)()

    def _inverted(self) -> Made:
        torch, linalg = self.torch, self.torch.linalg
        matrices, _, side = self._matrices(most=1024)
        calls: tuple[Callable[..., Any], ...] = (
            lambda a: linalg.inv_ex(a).inverse, lambda a: linalg.inv_ex(a).inverse, torch.inverse,
            lambda a: linalg.matrix_power(a, 3),
        )  # fmt: skip
        if side <= 256:
            calls = (*calls, linalg.matrix_exp)
        return self.rng.choice(calls), (matrices.requires_grad_(),)

    def _determinants(self) -> Made:
        torch, linalg = self.torch, self.torch.linalg
        matrices, _, _ = self._matrices(most=512)
        calls: tuple[Callable[..., Any], ...] = (
            lambda a: linalg.slogdet(a).logabsdet, lambda a: linalg.slogdet(a).logabsdet, linalg.det, torch.logdet,
        )  # fmt: skip
        return self.rng.choice(calls), (matrices.requires_grad_(),)

    def _decomposed(self) -> Made:
        linalg = self.torch.linalg
        matrices, count, side = self._matrices(most=512, flops=2e9)
        calls: tuple[Callable[..., Any], ...] = (
            lambda a: linalg.qr(a).R, lambda a: linalg.qr(a).Q, lambda a: linalg.eigh(a).eigenvalues, linalg.eigvalsh,
        )  # fmt: skip
        if side <= 32 or count <= 4:
            calls = (*calls, linalg.svdvals)
        return self.rng.choice(calls), (matrices.requires_grad_(),)

    def _table_gradients(self) -> Made:
        """What an optimizer does to the sparse gradient of a table."""
        torch, rng = self.torch, self.rng
        rows, width = self.size(1024, 2**21), self.size(4, 256, of=8)
        rows = max(64, min(rows, self.most // width))
        count = max(8, min(self.size(256, 2**19), self.most // width))
        table = self.pool.take(torch.float32, (rows, width)).detach().requires_grad_()
        spread = torch.rand(count, device=self.pool.device) ** rng.choice((1.0, 1.0, 2.0, 4.0))
        places = (spread * (rows - 1)).long()
        dense, bag = torch.zeros(rows, width, device=self.pool.device), self.size(1, 32)
        embedding, bags = self.functional.embedding, self.functional.embedding_bag
        whole = places[: count - count % bag].view(-1, bag)
        mode = rng.choice(("sum", "mean"))
        gradient = torch.sparse_coo_tensor(
            places[None], self.pool.take(torch.float32, (count, width)), (rows, width), check_invariants=False
        )
        summed = gradient.coalesce()

        def stepped() -> Any:
            made = gradient.coalesce()
            dense.add_(made, alpha=-1e-3)
            second = dense.sparse_mask(made)
            values = second._values().mul_(0.9).add_(made._values(), alpha=0.1)
            return dense.add_(torch.sparse_coo_tensor(made._indices(), values, made.size(), is_coalesced=True)).detach()

        calls: tuple[Callable[[], Made], ...] = (
            lambda: (lambda x: embedding(places, x, sparse=True), (table,)),
            lambda: (lambda x: bags(whole, x, mode=mode, sparse=True), (table,)),
            lambda: (lambda: gradient.coalesce()._values(), ()),
            lambda: (lambda: dense.add_(summed, alpha=-0.1).detach(), ()),
            lambda: (lambda: dense.sparse_mask(summed)._values(), ()),
            lambda: (stepped, ()),
            lambda: (stepped, ()),
        )
        return rng.choice(calls)()

    def _sparse_products(self) -> Made:
        """Neighbours' features added up: a graph's sparse matrix times a dense one."""
        torch = self.torch
        nodes, width = self.size(256, 2**18), self.size(8, 256, of=8)
        nodes = max(16, min(nodes, self.most // width))
        edges = max(16, min(nodes * self.size(2, 32), 2**23, self.most))
        places = torch.randint(0, nodes, (2, edges), device=self.pool.device)
        values = self.pool.take(torch.float32, (edges,))
        graph = torch.sparse_coo_tensor(places, values, (nodes, nodes), check_invariants=False).coalesce()
        features = self.pool.take(torch.float32, (nodes, width)).detach().requires_grad_()
        return lambda x: torch.sparse.mm(graph, x), (features,)
