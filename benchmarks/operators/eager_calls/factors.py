"""Eager calls that take large matrices apart, as optimizers do that keep a preconditioner for each parameter.

Eigenvalues, singular values, QR, Cholesky, inverses and roots of one matrix of some hundreds to four thousand, or of a
few, of which ``eager_calls/solvers.py`` leaves out what takes long. For ``eager_strangers_cuda.py --factors``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.operators.eager_calls.drawn import Drawn, Tensors

Made = tuple[Any, Tensors]
_FLOPS = 4e10
"""Of an eigenvalue problem, nine times the cube of a side; more takes longer than anybody waits."""


class DrawnFactors(Drawn):
    """Draws calls of these kinds; nothing of them asks for gradients."""

    def kinds(self) -> list[Callable[[], Made]]:
        """All kinds, those whose times depend on more more often."""
        return [*(self._eigenvalues,) * 4, *(self._singular,) * 2, *(self._factored,) * 3, *(self._inverted,) * 2]

    def _matrices(self, *, most: int, deep: float) -> Any:
        """Well-conditioned symmetric matrices; ``deep``: operations by the cube of a side."""
        torch, rng = self.torch, self.rng
        side = round(2.0 ** rng.uniform(5, 12))
        side = min(most, side if rng.random() < 0.3 or side < 64 else side // 64 * 64)
        room = max(1, int(min(_FLOPS / (deep * side**3), 2**25 / side**2)))
        count = 1 if rng.random() < 0.6 else min(room, rng.choice((2, 3, 4, 8, 12, 16)))
        dtype = torch.float32 if rng.random() < 0.85 else torch.float64
        made = torch.randn(count, side, side, device=self.pool.device, dtype=dtype)
        made = made @ made.mT / side + torch.eye(side, device=self.pool.device, dtype=dtype)
        return (made[0] if count == 1 else made).contiguous()

    def _eigenvalues(self) -> Made:
        linalg = self.torch.linalg
        call = self.rng.choice((lambda a: linalg.eigh(a).eigenvectors,) * 3 + (linalg.eigvalsh,))
        return call, (self._matrices(most=2048, deep=9.0),)

    def _singular(self) -> Made:
        linalg = self.torch.linalg
        call = self.rng.choice((lambda a: linalg.svd(a, full_matrices=False).U, linalg.svdvals))
        return call, (self._matrices(most=1024, deep=22.0),)

    def _factored(self) -> Made:
        torch, linalg = self.torch, self.torch.linalg
        calls: tuple[Callable[..., Any], ...] = (
            lambda a: linalg.qr(a).Q, lambda a: linalg.cholesky_ex(a).L, lambda a: linalg.lu_factor_ex(a).LU,
            lambda a: torch.cholesky_inverse(a),
        )  # fmt: skip
        return self.rng.choice(calls), (self._matrices(most=4096, deep=2.0),)

    def _inverted(self) -> Made:
        linalg = self.torch.linalg
        calls: tuple[Callable[..., Any], ...] = (
            lambda a: linalg.inv_ex(a).inverse, linalg.matrix_exp, lambda a: linalg.solve_ex(a, a).result,
        )  # fmt: skip
        return self.rng.choice(calls), (self._matrices(most=2048, deep=4.0),)
