"""Whether Inductor would find a product quicker between padded copies, which it times on the device.

It takes the least of a hundred times of each, with what the L2 held gone, and pads where that saves a tenth. What both
take is predicted here: of 3,500 drawn products that an H200 was asked about, none of which taught this, 95 % are
decided as there (``benchmarks/plans/choices_cuda.py``); 9 % of them it times within a tenth of the border.

Where the host cannot launch as fast as the device runs, it is the host that is timed: padded copies are several calls,
so that small products are not padded by a host that is slow. Of 30 products of three compilations on an H200 beside
Xeons that other machines share, which had them to themselves, own calls of 11 us were timed at 23 to 58, and their
padded forms at 49 to 243.
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

_CALL_US, _RESULT_US, _PLANNED_US, _COPIED_US = 23.5, 20.0, 20.0, 55.0
"""What a usual host needs to time a product; further for a result that is cut to its size, for each factor that is
written padded, and for each that is copied there."""

_AHEAD_US = 17.0
"""So far ahead of the device it is meanwhile, which empties the L2 before each."""

SAVES = 1.1
"""``is_padded_faster`` of Inductor's ``pad_mm``."""


class PaddingRule:
    """Says for a product whether Inductor would pad it on a host of some ``slowness`` (1 for a usual one); the model is
    found when it is first asked."""

    def __init__(self, find: Callable[[], TimeModel], *, slowness: float = 1.0) -> None:
        self._find, self._slowness = find, slowness
        self._known: dict[UnalignedProduct, bool] = {}

    def __call__(self, product: UnalignedProduct) -> bool:
        """Whether its padded copies are quicker by what Inductor asks for."""
        if product not in self._known:
            own_us, padded_us = padding_times(self._find(), product, slowness=self._slowness)
            self._known[product] = own_us > SAVES * padded_us
        return self._known[product]


def padding_times(model: TimeModel, product: UnalignedProduct, *, slowness: float = 0.0) -> tuple[float, float]:
    """Microseconds that Inductor would time a product at, and what it would between padded copies: the device's, or the
    host's where those are more; a ``slowness`` of 0 is a host that always keeps up."""
    launches = [product.launch(is_padded=is_padded) for is_padded in (False, True)]
    own, padded = predict_launches(model, launches, allow_tf32=product.is_rounded)
    across = _ACROSS[element_size(product.dtype) or 4] * product.copied_across_bytes
    moved = _SLOWNESS * (product.filled_bytes + product.copied_bytes) + across
    beside_us = _TIMED_US + _KERNEL_US * product.further_kernels + moved / model.machine.bytes_per_us
    own_us, padded_us = own.duration_us + _TIMED_US, padded.duration_us + beside_us
    further_us = sum(
        _PLANNED_US if is_planned else _COPIED_US
        for grows, is_planned in zip(product.grows, product.is_planned, strict=True)
        if grows
    ) + (_RESULT_US if product.added[0] or product.added[2] else 0.0)
    return max(own_us, _host_us(_CALL_US, slowness)), max(padded_us, _host_us(_CALL_US + further_us, slowness))


def _host_us(usual_us: float, slowness: float) -> float:
    return slowness * (usual_us + _AHEAD_US) - _AHEAD_US
