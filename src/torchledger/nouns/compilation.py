"""What Dynamo compiled, and what must hold for it to be called again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Compilation:
    """One compilation of a piece of the user's code (a frame) by Dynamo; the graphs with its ``compile_id`` came of it.

    ``file`` and ``line`` are where ``function`` begins. ``failed_guards`` say in torch's words why no earlier
    compilation of the frame could be called, one for each of those: ``"0/0: tensor 'x' size mismatch at index 0.
    expected 8, actual 9"``; empty for the first of a frame. ``guards`` is what must hold where this one is called,
    arguments before submodules; of ``n_guards`` the first 1,000 are kept (``None``: they could not be read).
    """

    compile_id: str | None
    function: str
    file: str
    line: int
    failed_guards: tuple[str, ...] = ()
    guards: tuple[str, ...] = ()
    n_guards: int | None = None

    @property
    def source(self) -> str:
        """``"model.py:12"``."""
        return f"{self.file}:{self.line}"

    @property
    def reason(self) -> str | None:
        """The failed guards in one line; ``None`` for the first compilation of a frame."""
        return "; ".join(self.failed_guards) or None
