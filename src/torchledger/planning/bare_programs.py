"""Programs that call no module, no compiled graph and no optimizer: models of plain tensors, searches, solvers.

What repeats in them are the lines that call torch; those are listened to once a program is known to be of this kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchledger.followers import Follower

_PRODUCTS = frozenset(
    {
        *("mm", "addmm", "bmm", "baddbmm", "convolution", "mv", "addmv", "dot"),
        *("linear", "matmul", "einsum", "conv1d", "conv2d", "conv3d"),
    }
)
"""The second line comes as it was called in ``torch.inference_mode()``, and is taken apart later."""
_ATTENTION = ("_scaled_dot_product", "scaled_dot_product")

_MOST = 2000
"""So many products a program may make before it calls a module, a graph or an optimizer."""


class BareWork(Follower):
    """Among what follows a program's operators: counts products, and calls ``found`` where there are many before
    anything ``has_begun`` that says where steps end. ``comes_again`` says that a line has called an operator more
    than once until then: else no step can be found by lines."""

    def __init__(self, has_begun: Callable[[], bool], found: Callable[[], None]) -> None:
        self._has_begun, self._found = has_begun, found
        self.n_products = 0
        self.comes_again = False
        self._asked: set[tuple[Any, str]] = set()

    def called(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """An operator has been called."""
        from torchledger._torch.user_lines import user_line

        if not self.comes_again and not self._has_begun():
            asked = func, user_line()
            self.comes_again = asked in self._asked
            self._asked.add(asked)
        name = getattr(func, "_opname", "")
        if name not in _PRODUCTS and not name.startswith(_ATTENTION):
            return
        self.n_products += 1
        if self.n_products >= _MOST and not self._has_begun():
            self._found()
