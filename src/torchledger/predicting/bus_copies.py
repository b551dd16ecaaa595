"""Copies between host and device: what the bus between them needs for a tensor."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from torchledger.fitting.learning import COVERAGE
from torchledger.fitting.time_model import TimeModel
from torchledger.nouns import Prediction, StepCall
from torchledger.work.categories import operator_name

COPIES = "copies over the bus"
"""``Prediction.model`` of a copy."""

_LINKS_BYTES_PER_US = {9: 55_000.0, 8: 25_000.0}
"""Rates of pinned memory by the major compute capability: PCIe 5 and 4 with 16 lanes. The first is what recorded copies
from 4 MB on reach beside an H100, both ways (``docs/results/strangers_scripts.md``); the second is half of it, as the
lanes are."""

_OTHER_LINK_BYTES_PER_US = 12_500.0
_PAGEABLE_BYTES_PER_US, _STAGED_BYTES = 7_000.0, 1 << 20
"""The host copies what is not pinned into a buffer that is, while the device waits but for the first of it: recorded
copies of 134 MB beside an H100 (6 GB/s), of 3 and 8 MB beside H200s (7 and 9); those up to 0.5 MB take what pinned ones
take (``docs/results/public_scripts.md``)."""

_LAUNCH_US = 1.5
_MILLISECOND = 1e3
_WIDE_AS_RECORDED, _WIDE_BY_RATE = 1.1, 1.7


def is_copy(call: StepCall) -> bool:
    """True for a tensor that is copied between host and device, also where kernels change it on the way; one number
    that the host reads is none."""
    if call.kind == "operator":
        is_changed = call.kernels > 0 and operator_name(call.name)[1] in ("copy", "_to_copy")
        return is_changed and bool(call.samples_us) and (call.device or "").startswith("cpu")
    return call.kind == "copy" and not reads_a_number(call)


def reads_a_number(call: StepCall) -> bool:
    """True for one number of a tensor that the host reads (``item()``)."""
    return operator_name(call.name)[1] == "_local_scalar_dense"


def price_copy(model: TimeModel, call: StepCall) -> Prediction | None:
    """What a copy takes: as long as it was recorded, as the bus is the host's; else by its bytes. ``None`` where these
    are unknown.

    One that the host does not wait for is taken for one of pinned memory (``is_pinned``).
    """
    if call.bytes_moved is None:
        return None
    link = _link_of(model)
    least_us = call.bytes_moved / link
    if call.samples_us:
        time_us, wide, note = statistics.median(call.samples_us), _WIDE_AS_RECORDED, "as recorded"
    else:
        waited = 0 if is_pinned(call) else max(0, call.bytes_moved - _STAGED_BYTES)
        rate = min(link, _PAGEABLE_BYTES_PER_US)
        time_us, wide = _LAUNCH_US + (call.bytes_moved - waited) / link + waited / rate, _WIDE_BY_RATE
        note = f"by its bytes, at {(rate if waited else link) / 1e3:g} GB/s"
    return Prediction(
        subject=" ".join([call.name, *(str(argument.shape) for argument in call.arguments)]),
        duration_us=time_us,
        low_us=time_us / wide,
        high_us=time_us * wide,
        coverage=COVERAGE,
        range="inside",
        device=model.device,
        model=COPIES,
        roofline_us=least_us,
        note=note,
    )


def is_pinned(call: StepCall) -> bool:
    """Whether memory of the host is known to be pinned, or the host goes on while it is copied, which asks for that."""
    return any(each in (call.settings or ()) for each in (("pinned", (1,)), ("non_blocking", (1,))))


def main_stream(calls: Sequence[StepCall]) -> str | None:
    """The stream that most of a step's calls run on."""
    counted = Counter(call.streams[0] for call in calls if call.streams and call.kind != "collective")
    return max(counted, key=lambda stream: counted[stream], default=None)


def runs_beside(call: StepCall, main: str | None) -> bool:
    """True for a copy on a stream of its own: other work goes on meanwhile."""
    return bool(call.streams) and main is not None and call.streams[0] != main


def notes_on_copies(model: TimeModel, calls: Sequence[StepCall], *, ran_on_cpu: bool) -> tuple[str, ...]:
    """What a step says of its copies between host and device."""
    copies = [call for call in calls if is_copy(call)]
    if not copies:
        return ()
    main, notes = main_stream(calls), []
    beside = [call for call in copies if runs_beside(call, main)]
    inline = [call for call in copies if not runs_beside(call, main)]
    prices = [None if ran_on_cpu else price_copy(model, call) for call in inline]
    priced = [(call, found) for call, found in zip(inline, prices, strict=True) if found is not None]
    if priced:
        took_us = sum(found.duration_us for _, found in priced)
        took = f"{took_us / 1e3:,.4g} ms" if took_us >= _MILLISECOND else f"{took_us:.3g} us"
        how = "as recorded" if any(call.samples_us for call, _ in priced) else _rates(model)
        size = _size(call for call, _ in priced)
        notes.append(f"copies between host and device ({size}) take {took}, {how}")
    if beside:
        notes.append(f"copies between host and device on streams of their own ({_size(beside)}) run beside other work")
    if unpriced := [call for call, found in zip(inline, prices, strict=True) if found is None]:
        notes.append(f"copies between host and device ({_size(unpriced)}) are left out of the device's time")
    return tuple(notes)


def _size(calls: Iterable[StepCall]) -> str:
    calls = list(calls)
    known = [call.bytes_moved for call in calls if call.bytes_moved is not None]
    return f"{len(calls):,}, {sum(known):,} bytes" if len(known) == len(calls) else f"{len(calls):,}"


def _rates(model: TimeModel) -> str:
    link = _link_of(model) / 1e3
    pageable = min(link, _PAGEABLE_BYTES_PER_US / 1e3)
    return f"at {link:g} GB/s from and to pinned memory and, beyond 1 MiB, {pageable:g} GB/s else"


def _link_of(model: TimeModel) -> float:
    major = (model.machine.device.compute_capability or (0, 0))[0]
    return _LINKS_BYTES_PER_US.get(major, _OTHER_LINK_BYTES_PER_US)
