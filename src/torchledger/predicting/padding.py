"""Whether Inductor would find a product quicker between padded copies, which it times on the device.

It takes the least of a hundred times of each, with what the L2 held gone, and pads where that saves a tenth. What both
take is predicted here: of 3,500 drawn products that an H200 was asked about, none of which taught this, 95 % are
decided as there (``benchmarks/choices_cuda.py``); 9 % of them it times within a tenth of the border.
"""

from __future__ import annotations

from collections.abc import Callable

from torchledger.fitting.time_model import TimeModel
from torchledger.predicting.launches import predict_launches
from torchledger.work.element_sizes import element_size
from torchledger.work.unaligned import UnalignedProduct

_TIMED_US = 3.6
"""What the events around anything timed add to it."""

_KERNEL_US = 2.3
"""A further kernel between these events, beside what it moves."""

_SLOWNESS = 1.7
"""How many times as long as their bytes need copies take."""

_ACROSS = {2: 5.4, 4: 1.9}
"""How many times longer those take that read by columns, by the bytes of an element."""

SAVES = 1.1
"""``is_padded_faster`` of Inductor's ``pad_mm``."""


class PaddingRule:
    """Says for a product whether Inductor would pad it; the model is found when it is first asked."""

    def __init__(self, find: Callable[[], TimeModel]) -> None:
        self._find = find
        self._known: dict[UnalignedProduct, bool] = {}

    def __call__(self, product: UnalignedProduct) -> bool:
        """Whether its padded copies are quicker by what Inductor asks for."""
        if product not in self._known:
            own_us, padded_us = padding_times(self._find(), product)
            self._known[product] = own_us > SAVES * padded_us
        return self._known[product]


def padding_times(model: TimeModel, product: UnalignedProduct) -> tuple[float, float]:
    """Microseconds that Inductor would time a product at, and what it would between padded copies."""
    launches = [product.launch(is_padded=is_padded) for is_padded in (False, True)]
    own, padded = predict_launches(model, launches, allow_tf32=product.is_rounded)
    across = _ACROSS[element_size(product.dtype) or 4] * product.copied_across_bytes
    moved = _SLOWNESS * (product.filled_bytes + product.copied_bytes) + across
    beside_us = _TIMED_US + _KERNEL_US * product.further_kernels + moved / model.machine.bytes_per_us
    return own.duration_us + _TIMED_US, padded.duration_us + beside_us
