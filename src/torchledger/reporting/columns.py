"""One table of everything that a report can show: label, unit, formatter and meaning.

Column heads, JSON keys and the glossary share the spelling that stands here. JSON holds the raw value; text holds what
the formatter makes of it. ``None`` is unknown and is shown as ``?``; zero is shown as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torchledger.printable import one_line, shorten

UNKNOWN = "?"

UNTIMED = "-"
"""In the place of a time that neither a clock nor a plan has given."""
_LONGEST_CELL = 200


@dataclass(frozen=True)
class Column:
    """One kind of value: ``key`` in JSON, ``label`` above it in a table, ``unit`` of the raw value."""

    key: str
    label: str
    unit: str | None
    formatter: Callable[[Any], str]
    meaning: str
    align: Literal["left", "right"] = "right"

    def format(self, value: Any) -> str:
        """The value as text; unknown is ``?``; ``""`` (no value belongs here) and ``UNTIMED`` stay as they are."""
        if value is None:
            return UNKNOWN
        return value if isinstance(value, str) and value in ("", UNTIMED) else self.formatter(value)


def format_count(value: float) -> str:
    """
    >>> format_count(12345)
    '12,345'
    """
    return f"{value:,}"


def format_si(value: float, unit: str = "") -> str:
    """Three digits and a decimal prefix; exact below 1000.

    >>> format_si(75_497_472), format_si(1_234_567, "B"), format_si(12)
    ('75.5 M', '1.23 MB', '12')
    """
    scaled, prefix = float(value), ""
    for larger in ("k", "M", "G", "T", "P", "E"):
        if abs(scaled) < 999.5:
            break
        scaled, prefix = scaled / 1000, larger
    if not prefix:
        return f"{value:g} {unit}".strip()
    return f"{_three_digits(scaled)} {prefix}{unit}"


def signed(value: float, formatter: Callable[[Any], str]) -> str:
    """A change as text.

    >>> signed(8192, format_bytes), signed(-12, format_bytes)
    ('+8.19 kB', '-12 B')
    """
    return f"+{formatter(value)}" if value > 0 else formatter(value)


def format_bytes(value: float) -> str:
    """Decimal: 1 kB is 1000 bytes.

    >>> format_bytes(8192), format_bytes(12)
    ('8.19 kB', '12 B')
    """
    return format_si(value, "B")


def format_us(value: float) -> str:
    """
    >>> format_us(3.14159), format_us(45_400)
    ('3.14 us', '45.4 ms')
    """
    for factor, unit in ((1.0, "us"), (1e3, "ms"), (1e6, "s")):
        if abs(value) < 999.5 * factor or unit == "s":
            return f"{_three_digits(value / factor)} {unit}"
    raise AssertionError("unreachable")


def format_seconds(value: float) -> str:
    """
    >>> format_seconds(0.0021), format_seconds(75), format_seconds(420)
    ('2.10 ms', '75.0 s', '7.0 min')
    """
    return format_us(value * 1e6) if value < 120 else f"{value / 60:,.1f} min"


def format_share(value: float) -> str:
    """A fraction of a total.

    >>> format_share(0.6204), format_share(1.0)
    ('62.0 %', '100.0 %')
    """
    return f"{value * 100:.1f} %"


def format_percent(value: float) -> str:
    """
    >>> format_percent(2.345), format_percent(-0.5)
    ('2.35 %', '-0.50 %')
    """
    return f"{value:.2f} %"


def format_ratio(value: float) -> str:
    """
    >>> format_ratio(0.1666), format_ratio(85.333)
    ('0.167', '85.3')
    """
    return _three_digits(value)


def format_flag(value: bool) -> str:
    """
    >>> format_flag(True)
    'yes'
    """
    return "yes" if value else "no"


def format_shape(value: tuple[int | str, ...]) -> str:
    """
    >>> format_shape((32, "s0")), format_shape((32,))
    ('(32, s0)', '(32,)')
    """
    sizes = ", ".join(one_line(str(size)) for size in value)
    return f"({sizes},)" if len(value) == 1 else f"({sizes})"


def format_text(value: object) -> str:
    """Any value as one harmless line, no longer than a table can bear; JSON has all of it."""
    return one_line(shorten(str(value), _LONGEST_CELL))


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.9995 or value == 0 else f"{value:.3g}"


def _table(*columns: Column) -> Mapping[str, Column]:
    table = {column.key: column for column in columns}
    if len(table) < len(columns):
        raise ValueError("two columns share a key")
    return table


COLUMNS: Mapping[str, Column] = _table(
    # what it is
    Column("launch_id", "launch", None, format_text, "graph and place in it: forward_0#12", "left"),
    Column("phase", "phase", None, format_text, "what it is for: forward, loss, backward, optimizer, ...", "left"),
    Column("step_call", "call", None, format_text, "compiled graph, eager operator, collective or copy", "left"),
    Column("order", "#", None, format_count, "place among the launches of its graph"),
    Column("kernel_name", "kernel", None, format_text, "name in the generated code", "left"),
    Column("key", "key", None, format_text, "hash of the kernel's source without its name", "left"),
    Column("symbols", "device kernels", None, format_text, "what the profiler calls a launch's kernels", "left"),
    Column("shared_with", "same binary as", None, format_text, "other wrapper names of the same source", "left"),
    Column("category", "category", None, format_text, "Inductor's category, or extern for a library call", "left"),
    Column("backend", "backend", None, format_text, "what made the kernel: triton, cpp, aten", "left"),
    Column("graph", "graph", None, format_text, "compiled graph", "left"),
    Column("direction", "direction", None, format_text, "forward, backward or inference", "left"),
    Column("compile_id", "compiled as", None, format_text, "Dynamo's frame/compilation number", "left"),
    Column("cache_hit", "from cache", None, format_flag, "the graph came out of Inductor's cache", "left"),
    Column("is_dynamic", "dynamic", None, format_flag, "the graph has symbolic sizes", "left"),
    Column("device", "device", None, format_text, "where it runs", "left"),
    Column("wrapper_line", "line", None, format_count, "line of the generated wrapper that calls it"),
    Column("call", "call", None, format_text, "the call as the wrapper makes it", "left"),
    # where it came from
    Column("source", "source line", None, format_text, "line of the model that it was made for", "left"),
    Column("module", "module", None, format_text, "nn.Module that it was made for", "left"),
    Column("aten_ops", "ATen ops", None, format_text, "operators it computes, in the order of the graph", "left"),
    Column("reason", "reason", None, format_text, "why something is unknown or differs", "left"),
    # what it costs
    Column("launches", "launches", "launches", format_count, "calls that the wrappers make"),
    Column("kernels", "kernels", "kernels", format_count, "distinct kernels"),
    Column("flops", "FLOPs", "FLOP", format_si, "tensor FLOPs; one multiply-add is 2"),
    Column("vector_flops", "vector FLOPs", "FLOP", format_si, "pointwise and reduction operations of loop bodies"),
    Column("flops_share", "of FLOPs", None, format_share, "share of the run's tensor FLOPs"),
    Column("bytes_read", "read", "B", format_bytes, "minimum bytes read: each address once"),
    Column("bytes_written", "written", "B", format_bytes, "minimum bytes written: each address once"),
    Column("bytes_moved", "bytes", "B", format_bytes, "minimum bytes read plus written"),
    Column("bytes_share", "of bytes", None, format_share, "share of the run's minimum traffic"),
    Column("arithmetic_intensity", "FLOP/B", "FLOP/B", format_ratio, "tensor FLOPs per byte of minimum traffic"),
    Column("unknown", "unknown", "launches", format_count, "launches whose FLOPs or bytes are unknown"),
    # how long it took
    Column("calls", "calls", "calls", format_count, "times it ran in what was measured"),
    Column("duration_us", "time", "us", format_us, "device time of one launch, median"),
    Column("total_us", "total", "us", format_us, "device time of all its launches"),
    Column("iqr_us", "spread", "us", format_us, "interquartile range of the samples"),
    Column("time_share", "of time", None, format_share, "share of the device time of the step"),
    Column("clock", "clock", None, format_text, "who timed it: cupti, cuda_event, cpu_profiler, host", "left"),
    Column("achieved_gb_per_s", "GB/s", "GB/s", format_ratio, "minimum traffic over time, 1e9 bytes per second"),
    Column("achieved_tflops_per_s", "TFLOP/s", "TFLOP/s", format_ratio, "tensor FLOPs over time, 1e12 per second"),
    Column("roofline_us", "roofline", "us", format_us, "lower-bound time at the measured ceilings"),
    Column("roofline_fraction", "of roofline", None, format_share, "roofline over measured time"),
    Column("bound", "bound", None, format_text, "what limits it: compute, memory or overhead", "left"),
    Column("op", "operator", None, format_text, "operator that launched it, as the profiler names it", "left"),
    Column("symbol", "device kernel", None, format_text, "the kernel's symbol, shortened", "left"),
    Column("stream", "stream", None, format_text, "device and stream", "left"),
    Column("median_us", "median", "us", format_us, "median time of one call"),
    Column("known_share", "known", None, format_share, "share of the time whose FLOPs or bytes are known"),
    Column("quality", "quality", None, format_text, "exact, measured, estimated, upper_bound or unavailable", "left"),
    Column("cause", "cause", None, format_text, "why the device was idle", "left"),
    Column("rank", "rank", None, format_text, "which process of the job, or its trace", "left"),
    Column("wall_us", "wall", "us", format_us, "from the first to the last device event"),
    Column("busy_share", "busy", None, format_share, "union of the device's activity over the wall time"),
    Column("collective_us", "collectives", "us", format_us, "time in kernels that communicate, waiting included"),
    Column("idle_us", "idle", "us", format_us, "time in which the device ran nothing"),
    Column("idle_share", "of idle", None, format_share, "share of the idle time"),
    Column("host_activity", "host was in", None, format_text, "what the launching thread did meanwhile", "left"),
    Column("after", "until", None, format_text, "kernel that ended the pause", "left"),
    # ranks of a job
    Column("operation", "collective", None, format_text, "what a collective does: all_reduce, all_gather, ...", "left"),
    Column("group_size", "ranks", None, format_count, "ranks that take part in the collective"),
    Column("message_bytes", "message", "B", format_bytes, "a collective's message by nccl-tests' count"),
    Column("messages_bytes", "messages", "B", format_bytes, "all messages of a step's collectives together"),
    Column("price_us", "predicted", "us", format_us, "what a step's collectives take, with nothing beside them"),
    Column("stands_for", "stands for", "ranks", format_count, "ranks whose step is like this one's, itself among them"),
    Column("compute_us", "compute", "us", format_us, "time in which a rank computed, communication beside it or not"),
    Column("exposed_us", "exposed", "us", format_us, "communication that no compute hides"),
    Column("hidden_us", "hidden", "us", format_us, "communication beside compute"),
    Column("waiting_us", "waiting", "us", format_us, "time in collectives before the last rank had come"),
    Column(
        "bubble_us",
        "bubble",
        "us",
        format_us,
        "exposed time in a pipeline's sends and receives; in plans, waiting for other ranks",
    ),
    Column("peak_bytes", "memory", "B", format_bytes, "the most that a rank has allocated in a step"),
    Column("in_collective_us", "in it", "us", format_us, "time of a rank in collectives, waiting included"),
    Column("bus_gb_per_s", "bus GB/s", "GB/s", format_ratio, "bus bandwidth from the last arrival on"),
    Column("launched_by", "launched by", None, format_text, "module, bucket or compiled graph that asked", "left"),
    Column("idle_cause", "mostly idle by", None, format_text, "the largest cause of a rank's idle time", "left"),
    Column("cost_us", "cost", "us", format_us, "what a place on one rank makes the others wait in a step"),
    Column("recorded_steps", "in steps", None, format_count, "recorded steps in which it was seen"),
    Column("late_at", "late at", None, format_text, "what the late rank did meanwhile, and where", "left"),
    Column("entry_beside", "entry", None, format_text, "an entry that ran beside a collective and without one", "left"),
    Column("launches_beside", "beside", None, format_count, "recorded launches with a collective beside them"),
    Column("alone_us", "alone", "us", format_us, "median time of a launch without a collective beside it"),
    Column("beside_us", "beside one", "us", format_us, "median time of a launch beside a collective"),
    Column("slower_us", "costs", "us", format_us, "what launches beside collectives take longer in a step"),
    # what is predicted
    Column("subject", "subject", None, format_text, "operator and shape, or launch", "left"),
    Column("low_us", "from", "us", format_us, "lower end of the interval"),
    Column("high_us", "to", "us", format_us, "upper end of the interval"),
    Column("device_us", "device", "us", format_us, "what the device needs for a predicted step"),
    Column("host_us", "host", "us", format_us, "what the host needs to launch a predicted step"),
    Column("layout", "layout", None, format_text, "how a model is spread over ranks", "left"),
    Column("layout_step_us", "step", "us", format_us, "predicted time of a step of the layout"),
    Column("over_best", "over best", None, format_ratio, "its time over that of the quickest layout"),
    Column("layout_peak_bytes", "memory", "B", format_bytes, "the most that a rank of the layout has allocated"),
    Column("layout_decided_by", "decided by", None, format_text, "what the way through the step is made of", "left"),
    Column("range", "range", None, format_text, "inside, at the edge of or beyond what was measured", "left"),
    Column("predicted_us", "predicted", "us", format_us, "time that the model predicts"),
    Column("predicted_total_us", "predicted total", "us", format_us, "predicted time of all its calls in a step"),
    Column("predicted_share", "of predicted", None, format_share, "share of the predicted time of a step's calls"),
    Column("measured_us", "measured", "us", format_us, "time that was measured"),
    Column("error_pct", "error", "%", format_percent, "predicted over measured, less one"),
    Column("entry", "entry", None, format_text, "operator and direction, or family of launches", "left"),
    Column("split", "split", None, format_text, "how rows were held out", "left"),
    Column("rows", "rows", "rows", format_count, "measured rows"),
    Column("shapes", "shapes", "shapes", format_count, "distinct shapes"),
    Column("constants", "constants", None, format_text, "a group of fitted numbers under the baselines", "left"),
    Column("held_out_rows", "held out", "rows", format_count, "measured rows that the fit did not see"),
    Column("mape_before", "MAPE before", "%", format_percent, "MAPE of what the fit began with"),
    Column("mape", "MAPE", "%", format_percent, "mean of |predicted over measured, less one|"),
    Column("median_ape", "median", "%", format_percent, "median of |predicted over measured, less one|"),
    Column("p90_ape", "p90", "%", format_percent, "90th percentile of |predicted over measured, less one|"),
    Column("bias_pct", "bias", "%", format_percent, "mean of predicted over measured, less one"),
    Column("coverage_pct", "coverage", "%", format_percent, "measurements inside their 90 % interval"),
    Column("roofline_mape", "roofline", "%", format_percent, "MAPE of the bare roofline, scaled to the training rows"),
    Column("inductor_mape", "Inductor", "%", format_percent, "MAPE of Inductor's own estimated_runtime"),
    Column("forest_mape", "forest", "%", format_percent, "MAPE of a random forest on the bare shapes"),
    # devices
    Column("known_device", "device", None, format_text, "a device whose times can be predicted", "left"),
    Column("made_of", "made of", None, format_text, "what its model was made of", "left"),
    Column(
        "operators_error_pct", "operators", "%", format_percent, "mean error of operators at shapes not learned from"
    ),
    Column("made_utc", "made", None, format_text, "when the model was made", "left"),
    # sets of samples
    Column("operator", "operator", None, format_text, "operator of the catalogue", "left"),
    Column("parameters", "parameters", None, format_text, "the operator's parameters at this shape", "left"),
    Column("forward_us", "forward", "us", format_us, "predicted device time of one forward"),
    Column("backward_us", "backward", "us", format_us, "predicted device time of one backward"),
    Column("planned", "planned", "shapes", format_count, "shapes that the sweep asks for"),
    Column("finished", "finished", "shapes", format_count, "shapes that were measured, or found impossible"),
    Column("labels", "labels", "labels", format_count, "answers of a set of samples: a shape in one direction"),
    Column("failed", "failed", None, format_text, "labels without a time that one may learn from, by status", "left"),
    Column("cost_s", "cost", "s", format_seconds, "time from one finished group of shapes to the next"),
    Column("timed_s", "timed", "s", format_seconds, "the timed iterations alone"),
    Column("shortest_us", "shortest", "us", format_us, "shortest median of a label"),
    Column("longest_us", "longest", "us", format_us, "longest median of a label"),
    Column("spread", "repeats within", None, format_share, "interquartile range over median, middle of all labels"),
    Column("cold_us", "cold", "us", format_us, "time alone with a flushed cache, median"),
    Column("placed_us", "in place", "us", format_us, "time alone after the launches before it in the step, median"),
    Column("step_us", "in step", "us", format_us, "time of the same launch inside the step, median"),
    Column("step_calls", "a step", "calls", format_count, "times that a step calls its graph; 0: it does not"),
    Column(
        "over_step", "alone/step", None, format_ratio, "time alone (in its place, else warm) over time inside the step"
    ),
    Column("configuration", "configuration", None, format_text, "tile sizes of a Triton kernel", "left"),
    Column("num_warps", "warps", "warps", format_count, "warps per program of a Triton kernel"),
    Column("num_stages", "stages", "stages", format_count, "software pipeline stages of a Triton kernel"),
    Column("n_regs", "registers", "registers", format_count, "registers per thread"),
    Column("n_spills", "spills", "registers", format_count, "registers spilled to memory"),
    Column("shared_bytes", "shared", "B", format_bytes, "shared memory per program"),
    # what fills the memory
    Column("memory_use", "what it is for", None, format_text, "what a storage is for: parameters, activations", "left"),
    Column("alive_bytes", "alive", "B", format_bytes, "bytes alive at the peak, rounded as the allocator does"),
    Column("peak_share", "of peak", None, format_share, "share of the step's peak"),
    Column("tensor", "tensor", None, format_text, "a parameter's path, or what made the storage", "left"),
    Column("first_alive_bytes", "first", "B", format_bytes, "bytes alive at the peak of the first run's step"),
    Column("second_alive_bytes", "second", "B", format_bytes, "bytes alive at the peak of the second run's step"),
    Column("delta_alive_bytes", "change", "B", format_bytes, "bytes alive at the second peak less the first"),
    Column("instances", "instances", "modules", format_count, "modules that a pattern stands for"),
    Column("freed_bytes", "freed", "B", format_bytes, "bytes by which the step's peak falls"),
    Column("added_us", "more time", "us", format_us, "time that a step takes more"),
    Column("added_share", "of step", None, format_share, "time that a step takes more, over its time now"),
    # what changed between two runs
    Column("change", "change", None, format_text, "same, changed, split, merged, regrouped or only in one run", "left"),
    Column("first_calls", "calls, first", "calls", format_count, "times that the first run's step makes it"),
    Column("second_calls", "calls, second", "calls", format_count, "times that the second run's step makes it"),
    Column("quantity", "quantity", None, format_text, "a sum over a run, which `--fail-if` may limit", "left"),
    Column("first_sum", "first", None, format_text, "of the first run, with its unit", "right"),
    Column("second_sum", "second", None, format_text, "of the second run, with its unit", "right"),
    Column("change_sum", "change", None, format_text, "the second less the first", "right"),
    Column("change_pct", "in percent", None, format_text, "the change in percent of the first", "right"),
    Column("first_us", "first", "us", format_us, "device time per step in the first run"),
    Column("second_us", "second", "us", format_us, "device time per step in the second run"),
    Column("delta_us", "change in time", "us", format_us, "time of the second run less that of the first"),
    Column("delta_bytes", "in bytes", "B", format_bytes, "minimum traffic of the second run less that of the first"),
    Column("delta_flops", "in FLOPs", "FLOP", format_si, "tensor FLOPs of the second run less those of the first"),
    # what changed between two jobs
    Column("first_wall_us", "first", "us", format_us, "a rank's step under the profiler in the first job"),
    Column("second_wall_us", "second", "us", format_us, "a rank's step under the profiler in the second job"),
    Column("delta_wall_us", "change", "us", format_us, "a rank's step in the second job less that in the first"),
    Column("delta_compute_us", "compute", "us", format_us, "change of the time in which a rank computed"),
    Column("delta_exposed_us", "exposed", "us", format_us, "change of the communication that no compute hides"),
    Column("delta_idle_us", "idle", "us", format_us, "change of the time in which a rank's device ran nothing"),
    Column(
        "delta_waiting_us", "waiting", "us", format_us, "change of the time in collectives before the last rank came"
    ),
    Column("delta_peak_bytes", "memory", "B", format_bytes, "change of the most that a rank has allocated in a step"),
    Column(
        "first_cost_us", "first", "us", format_us, "what a place on one rank makes the others wait in the first job"
    ),
    Column("second_cost_us", "second", "us", format_us, "what a place on one rank makes the others wait in the second"),
    Column("first_in_us", "in it, first", "us", format_us, "time of a rank in collectives in a step of the first job"),
    Column("second_in_us", "in it, second", "us", format_us, "time of a rank in collectives in a step of the second"),
    # buffers
    Column("name", "name", None, format_text, "name in the generated code", "left"),
    Column("role", "role", None, format_text, "input, output, inout or workspace", "left"),
    Column("dtype", "dtype", None, format_text, "torch's name of the element type", "left"),
    Column("shape", "shape", None, format_shape, "sizes in elements", "left"),
    Column("stride", "stride", None, format_shape, "strides in elements", "left"),
    # reads and writes of a loop nest
    Column("access", "access", None, format_text, "load, store, or atomic addition", "left"),
    Column("buffer", "buffer", None, format_text, "name of the tensor in the generated code", "left"),
    Column("index", "index", None, format_text, "element that is touched, from the loops p0, p1, ...", "left"),
    Column("loops", "loops", None, format_text, "extents of the loops around it", "left"),
    # the balance
    Column("account", "account", None, format_text, "what is counted", "left"),
    Column("ledger", "ledger", None, format_count, "sum over the ledger's entries"),
    Column("reference", "reference", None, format_count, "independent count"),
    Column("difference", "differences", None, format_count, "work that compilation added or took away"),
    Column("missing", "missing", None, format_count, "entries of the list of what is not known"),
    Column("state", "", None, format_text, "whether both counts agree", "left"),
    Column("amount", "amount", None, format_count, "ledger minus reference"),
    Column("where", "where", None, format_text, "graph, launch or kernel", "left"),
)
"""By key. Add a value that a report shows here, once."""
