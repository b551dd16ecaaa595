"""FLOPs of a piece of a running program that is not compiled while it runs, as torch's own counter counts them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, cast

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode, _FlopCounterMode

from torchledger._torch.alignments import read_lengths_first
from torchledger._torch.eager_calls import note_mode
from torchledger._torch.flops import added_formulas
from torchledger._torch.higher_order import run_inside
from torchledger._torch.library_operators import is_own_operator, seen_inside
from torchledger._torch.patching import Patches
from torchledger.signals import let_through

log = logging.getLogger(__name__)


class EagerFlops(FlopCounterMode):
    """``FlopCounterMode`` with nothing compiled, between ``start`` and ``stop``, which belong on one thread.

    It puts no hooks on modules. A formula that fails is noted in ``faults``: the program has its result. While it
    counts, compiled functions run eagerly on every thread: the stance is the process's.
    """

    def __init__(self) -> None:
        super().__init__(display=False, custom_mapping=added_formulas())
        self.mod_tracker = cast(Any, NoModules())
        self.faults: list[str] = []
        self._stance: Any = None
        self._patches = Patches()

    def start(self) -> bool:
        """Begin to count; ``False`` inside another mode, which might end before this one, or in a compiled region."""
        if _get_current_dispatch_mode() is not None:
            return False
        try:
            self._stance = torch.compiler.set_stance("force_eager")
        except RuntimeError:
            return False
        note_mode()
        read_lengths_first(self._patches)
        self.__enter__()
        return True

    def __enter__(self) -> EagerFlops:
        self.flop_counts.clear()
        self.mode = InsideOperators(self)
        self.mode.__enter__()
        return self

    def stop(self) -> bool:
        """Count no more, and compile again; ``False`` if another mode lies on top, so that this one has to stay."""
        if self._stance is None:
            return True
        self._stance.__exit__(None, None, None)
        self._stance = None
        self._patches.undo()
        if _get_current_dispatch_mode() is not self.mode:
            return False
        self.__exit__(None, None, None)
        return True

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        if self._stance is not None:
            try:
                super()._count_flops(func_packet, out, args, kwargs)
            except Exception as error:
                let_through(error)
                log.debug("the FLOPs of an eager operator were not counted", exc_info=error)
                self.faults.append(f"{func_packet}: {type(error).__name__}: {error}")
        return out

    def by_operator(self) -> dict[str, int]:
        """FLOPs by operator (``"aten.mm"``)."""
        return {str(op): int(count) for op, count in self.get_flop_counts().get("Global", {}).items()}


class InsideOperators(_FlopCounterMode):
    """Torch's own runs both ways of ``torch.cond`` and gives the result of the first, leaves other higher-order
    operators without a result, and sees nothing of what operators of the program's own are made of: what is counted is
    a step of the user's."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Count an operator, by its parts where it has no formula."""
        if is_own_operator(func) and func._overloadpacket not in self.counter.flop_registry:
            result = seen_inside(func, self, args, kwargs or {})
            if result is not NotImplemented:
                return result
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _handle_higher_order_ops(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return run_inside(func, self, args, kwargs)


class NoModules:
    """In place of the counter's module tracker, which hooks every module and the tensors that go in, and fails where
    gradients are taken by ``autograd.grad``: what is counted belongs to none."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass


def watch_compiled_functions(entered: Callable[[Any], None]) -> Patches:
    """Hear each call of a compiled function from outside, before it, until the patches are undone.

    It is told of what stands for the function, and may still change the stance that the call is made under.
    """
    from torch._dynamo import eval_frame

    patches = Patches()

    def decide(original: Callable[..., Any], callback: Any) -> Any:
        if callable(callback):
            entered(callback)
        return original(callback)

    patches.around(eval_frame, "_callback_from_stance", decide)
    return patches
