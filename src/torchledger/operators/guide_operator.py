"""What the operators of the kernel sampling guide have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchledger.operators.declaration import (
    Input,
    Number,
    Operator,
    Parameters,
    Work,
    ceil_div,
    divides,
)

VOCABULARY = 50257


def padded_vocabulary(mp: Number) -> Number:
    """The vocabulary padded so that each of mp ranks holds a multiple of 128 rows: ceil(50257 / (128 mp)) 128.

    >>> padded_vocabulary(1)
    50304
    """
    return ceil_div(VOCABULARY, 128 * mp) * 128


class GuideOperator(Operator):
    """Base of the guide's operators; ``shares`` are the parameters that mp must divide."""

    guide = True
    shares: tuple[str, ...] = ()

    def check(self, p: Parameters) -> str | None:
        for share in self.shares:
            if reason := divides(p, "mp", share):
                return reason
        if "h" in p and "dim" in p:
            return divides(p, "h", "dim")
        return None


class AsGeneral(GuideOperator):
    """A guide operator whose kernels are those of a general form."""

    form: type[Operator]

    def form_parameters(self, p: Parameters) -> dict[str, Any]:
        raise NotImplementedError

    def general_form(self, p: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
        return self.form.name, self.form_parameters(self.resolve(p))

    def tensors(self, p: Parameters) -> dict[str, Input]:
        form = self.form()
        return form.tensors(form.resolve(self.form_parameters(p)))

    def forward(self, p: Parameters, **tensors: Any) -> Any:
        form = self.form()
        return form.forward(form.resolve(self.form_parameters(p)), **tensors)

    def work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        form = self.form()
        return form.work(form.resolve(self.form_parameters(p)), direction, item_size)

    def least_work(self, p: Parameters, direction: str, item_size: int) -> tuple[Work, ...]:
        form = self.form()
        return form.least_work(form.resolve(self.form_parameters(p)), direction, item_size)
