"""A breakdown in a sentence or two: what dominates, and what to look at first, each claim with its number."""

from __future__ import annotations

from collections.abc import Sequence

from torchledger.nouns import Breakdown, TimeRow
from torchledger.traces.idle import (
    AFTER_SYNCHRONIZATION,
    BETWEEN_KERNELS,
    HOST_LATE,
    NOTHING_RECORDED,
    QUEUED,
    UNKNOWN,
)
from torchledger.work.kernel_names import kernel_label

_DESCRIPTIONS = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "attention": "attention",
    "normalization": "normalization",
    "collective": "communication between devices",
    "memory": "copies, fills and gathers",
    "pointwise": "elementwise kernels",
    "reduction": "reductions",
    "persistent_reduction": "persistent reductions",
    "foreach": "kernels over lists of tensors (optimizer)",
    "template": "Triton templates",
    "user_triton": "hand-written Triton kernels",
    "cpp": "C++ kernels",
    "other": "other kernels",
}
ADVICE = "Look first at"
"""How the sentence of a verdict begins that says what to look at."""

_OF_PLAIN_STEP = "Without the profiler"
"""How the sentence begins that says for how long nothing runs in a step without it."""

_IDLE_WORTH_SAYING = 0.05
_LARGE = 0.3
_SHORT_KERNEL_US = 10.0


def verdict(breakdown: Breakdown, *, plain_us: float | None = None) -> tuple[str, ...]:
    """One or more sentences; empty when there is nothing on the device.

    ``plain_us`` is how long a step takes without the profiler, which makes the host slower and so the device idle.
    """
    if breakdown.device_us <= 0 or not breakdown.categories:
        return ()
    sentences = [_what_dominates(breakdown)]
    if (idle := _idle(breakdown, plain_us)) is not None:
        sentences.append(idle)
    if (advice := _advice(breakdown, plain_us)) is not None:
        sentences.append(advice)
    return tuple(sentences)


def beside_a_step(said: Sequence[str]) -> tuple[str, ...]:
    """The sentences of a verdict on one recorded step, where all recorded ones have told how idle they are and why, and
    what to look at first: of steps that differ, the one would say otherwise."""
    return tuple(sentence for sentence in said if not sentence.startswith((ADVICE, _OF_PLAIN_STEP)))


def time_words(breakdown: Breakdown) -> str:
    """What the events' time is called: of a CPU it is no device's."""
    return "CPU time" if breakdown.is_on_cpu else "device time"


def _is_idle(breakdown: Breakdown) -> str:
    return "no operator runs" if breakdown.is_on_cpu else "the device is idle"


def describe_category(name: str) -> str:
    """A category of kernels in plain words.

    >>> describe_category("gemm"), describe_category("split_scan")
    ('matrix products', 'split scan')
    """
    return _DESCRIPTIONS.get(name, name.replace("_", " "))


def _what_dominates(breakdown: Breakdown) -> str:
    leading = [row for row in breakdown.categories if row.share >= 0.1][:3] or list(breakdown.categories[:1])
    parts = [f"{row.share:.0%} is {_described(breakdown, row.name)}" for row in leading]
    text = f"Of {_time(breakdown.device_us)} {time_words(breakdown)} {_join(parts)}"
    top = breakdown.kernels[0] if breakdown.kernels else None
    if top is not None and top.share >= 0.05:
        text += f"; the most of it, {top.share:.0%}, goes to {_short(top)} in {_calls(top.calls)}"
    return text + "."


def _described(breakdown: Breakdown, category: str) -> str:
    described = describe_category(category)
    return described.replace("kernels", "operators") if breakdown.is_of_operators else described


_REASONS = {
    HOST_LATE: "the device waited for launches",
    AFTER_SYNCHRONIZATION: "the host waited for the device before it launched more",
    QUEUED: "work was launched in time but waited (another stream, or the launch itself)",
    BETWEEN_KERNELS: "the pauses between one kernel and the next",
}


def _idle(breakdown: Breakdown, plain_us: float | None) -> str | None:
    if plain_us is not None and breakdown.steps:
        return _idle_of_plain_step(breakdown, plain_us, plain_us - breakdown.busy_us / breakdown.steps)
    if breakdown.busy_share is None or breakdown.idle_us < _IDLE_WORTH_SAYING * breakdown.wall_us:
        return None
    text = f"{_is_idle(breakdown).capitalize()} for {1 - breakdown.busy_share:.0%} of {_time(breakdown.wall_us)}"
    if breakdown.is_of_operators:
        return text + "."  # which is all that is known of it
    causes = [(cause, time) for cause, time in breakdown.idle_causes.items() if cause != UNKNOWN]
    if not causes:
        return text + "."
    cause, time = causes[0]
    reason = _REASONS.get(cause, cause)
    text += f": for {_time(time)} of that {reason}"
    if cause in (HOST_LATE, AFTER_SYNCHRONIZATION) and breakdown.host_during_idle:
        doing, doing_time = next(iter(breakdown.host_during_idle.items()))
        if doing_time >= 0.2 * time and doing != NOTHING_RECORDED:
            text += f", the host being in {doing} for {_time(doing_time)}"
    return text + "."


def _idle_of_plain_step(breakdown: Breakdown, plain_us: float, idle_us: float) -> str | None:
    if idle_us < _IDLE_WORTH_SAYING * plain_us:
        return None
    text = f"{_OF_PLAIN_STEP} {_is_idle(breakdown)} for {idle_us / plain_us:.0%} of a {_time(plain_us)} step"
    causes = [cause for cause in breakdown.idle_causes if cause != UNKNOWN]
    return f"{text}; in most of the idle time under it {_REASONS.get(causes[0], causes[0])}." if causes else f"{text}."


def _advice(breakdown: Breakdown, plain_us: float | None) -> str | None:
    """The first thing to look at, from the largest loss that the numbers show."""
    scale, whole = 1.0, breakdown.wall_us
    if plain_us is not None and breakdown.steps and breakdown.idle_us > 0:
        # Idle causes are known under the profiler only: their shares hold, their times are those of a plain step.
        scale = max(plain_us - breakdown.busy_us / breakdown.steps, 0.0) / breakdown.idle_us
        whole = plain_us
    late = breakdown.idle_causes.get(HOST_LATE, 0.0) * scale
    waits = breakdown.idle_causes.get(AFTER_SYNCHRONIZATION, 0.0) * scale
    overhead = breakdown.launch_overhead
    kernels = breakdown.kernels
    if whole and late > _LARGE * whole:
        median = _median_kernel_us(breakdown)
        doing, doing_time = next(iter(breakdown.host_during_idle.items()), ("", 0.0))
        doing_time *= scale
        if doing_time > late / 2 and doing != NOTHING_RECORDED:
            return f"{ADVICE} {doing} on the host: the device waits {_time(doing_time)} for it."
        text = f"{ADVICE} launching: {_time(late)} of {_time(whole)} is lost to it"
        if overhead is not None and not overhead.graph_launches and median is not None and median < _SHORT_KERNEL_US:
            text += f" with kernels of {median:.1f} us (median); CUDA graphs or fewer, larger kernels would help"
        return text + "."
    if whole and waits > _LARGE * whole:
        return f"{ADVICE} synchronization: {_time(waits)} of {_time(whole)} follows waits of the host."
    if breakdown.copy_us > _LARGE * breakdown.device_us:
        share = breakdown.copy_us / breakdown.device_us
        return f"{ADVICE} copies: {_time(breakdown.copy_us)}, {share:.0%} of {time_words(breakdown)}."
    eager = sum(
        row.total_us
        for row in kernels
        if row.category in ("pointwise", "reduction", "memory")
        and not row.name.startswith(("triton_", "cpp_", "Memcpy", "Memset"))
    )
    if eager > _LARGE * breakdown.device_us:
        return (
            f"{ADVICE} fusion: {_time(eager)} ({eager / breakdown.device_us:.0%}) are unfused elementwise, "
            f"reduction and copy {'operators' if breakdown.is_of_operators else 'kernels'}; torch.compile would merge "
            "many of them."
        )
    if not kernels:
        return None
    top = kernels[0]
    rates = []
    if top.achieved_tflops_per_s:
        tflops = top.achieved_tflops_per_s
        at_most = "at most " if top.flops_quality == "upper_bound" else ""
        rates.append(f"{at_most}{tflops:.1f} TFLOP/s" if tflops >= 1 else f"{at_most}{tflops:.2g} TFLOP/s")
    if top.achieved_gb_per_s:
        bandwidth = top.achieved_gb_per_s
        rates.append(f"{bandwidth:.0f} GB/s" if bandwidth >= 10 else f"{bandwidth:.2g} GB/s")
    reached = f", which reaches {' and '.join(rates)}" if rates else ""
    return f"{ADVICE} {_short(top)}{reached}."


def _median_kernel_us(breakdown: Breakdown) -> float | None:
    rows = sorted(breakdown.kernels, key=lambda row: row.median_us)
    half = sum(row.calls for row in rows) / 2
    for row in rows:
        half -= row.calls
        if half <= 0:
            return row.median_us
    return None


def _short(row: TimeRow) -> str:
    label = kernel_label(row.name)
    return label if len(label) <= 60 else label[:57] + "..."


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number} calls"


def _time(us: float) -> str:
    return f"{us / 1e6:.2f} s" if us >= 1e6 else f"{us / 1e3:.2f} ms" if us >= 1e3 else f"{us:.1f} us"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " and " + parts[-1]
