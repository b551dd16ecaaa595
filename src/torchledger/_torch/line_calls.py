"""Lines of a program that ask torch for something, one after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode

from torchledger._torch.user_lines import user_line


class LineCalls(TorchFunctionMode):
    """While entered tells ``reached`` of each line of the program that calls a function of torch, on the thread that
    has made this, before the first of its calls; once ``is_open`` says so."""

    def __init__(self, reached: Callable[[str], None], is_open: Callable[[], bool]) -> None:
        super().__init__()
        self._reached, self._is_open = reached, is_open
        self._thread, self._last = threading.get_ident(), ""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        if threading.get_ident() == self._thread and self._is_open():
            line = user_line()
            if line != self._last:
                self._last = line
                self._reached(line)
        return func(*args, **(kwargs or {}))
