"""One line a tensor, one line a finding: what is printed while a program runs and what reports show."""

from __future__ import annotations

from torchledger.nouns import Launch, ValueComparison, ValueFinding, ValueStats


def stats_line(stats: ValueStats) -> str:
    """Name, dtype, shape, NaN and Inf first, then the rest; what was not taken is left out.

    >>> stats_line(ValueStats("forward_0#1", 0, "buf0", "after", "float32", (2, 3), 0, 0, -1.0, 2.0, 0.5, 1.0))
    'forward_0#1 call 0 after  buf0 float32 (2, 3)  nan 0  inf 0  min -1  max 2  mean 0.5  std 1'
    """
    parts = [f"{stats.subject} call {stats.call_index} {stats.moment:<6} {stats.buffer} {stats.dtype} {stats.shape}"]
    parts += [
        f"{label} {value:,}" for label, value in (("nan", stats.n_nan), ("inf", stats.n_inf)) if value is not None
    ]
    for label, number in (
        ("min", stats.minimum), ("max", stats.maximum), ("mean", stats.mean), ("std", stats.std)
    ):  # fmt: skip
        if number is not None:
            parts.append(f"{label} {number:.6g}")
    numel = 1
    for extent in stats.shape:
        numel *= extent
    if numel:
        for label, count in (("zeros", stats.n_zero), ("subnormal", stats.n_subnormal)):
            if count is not None:
                parts.append(f"{label} {100 * count / numel:.1f} %")
    if stats.elements is not None:
        parts.append(f"= {stats.elements}")
    if stats.note:
        parts.append(f"({stats.note})")
    if stats.path:
        parts.append(f"-> {stats.path}")
    return "  ".join(parts)


_QUESTIONS = {"nan": "NaN", "inf": "Inf", "overflow": "overflow", "uninitialised": "memory that nothing has written"}


def nothing_found(question: str, calls: int, *, is_filtered: bool = False) -> str:
    """What a clean run says; of what a filter left out it says nothing.

    >>> nothing_found("nan", 3)
    'no NaN in 3 calls of compiled graphs: no watched launch reads or writes one'
    """
    what = _QUESTIONS.get(question, f"tensor for which {question} is true")
    where = "launch that the filters pass" if is_filtered else "watched launch"
    return f"no {what} in {calls:,} call{'s' * (calls != 1)} of compiled graphs: no {where} reads or writes one"


def finding_line(finding: ValueFinding, launch: Launch | None = None) -> str:
    """What was found, where, and which line of the model asked for it."""
    count = f"{finding.count:,} x " if finding.count else ""
    named = _QUESTIONS.get(finding.question)
    what = f"{count}{named}" if named is not None else f"{finding.question} is true {count}".rstrip() + ","
    where = f"{finding.buffer} {finding.dtype} {finding.shape}"
    kernel = f" {launch.kernel_name}" if launch is not None else ""
    text = f"{what} {finding.verdict}: {finding.subject}{kernel}, {where}, call {finding.call_index}"
    if finding.indices:
        shown = ", ".join(str(index) for index in finding.indices[:4])
        more = ", ..." if (finding.count or 0) > len(finding.indices[:4]) else ""
        text += f", at {shown}{more}"
    if launch is not None and launch.source:
        text += f"; {launch.source}"
    if launch is not None and launch.module:
        text += f"; module {launch.module}"
    if finding.reaches_output is False and finding.verdict == "created here":
        text += "; masked later: no output of the graph holds it"
    return text


def comparison_line(comparison: ValueComparison) -> str:
    """Both errors against float64, and which is larger."""
    text = (
        f"{comparison.subject} call {comparison.call_index} {comparison.buffer} {comparison.dtype} {comparison.shape}"
    )
    if comparison.compiled_error is not None:
        text += f"  compiled {comparison.compiled_error:.3g}"
        if comparison.compiled_ulps is not None:
            text += f" ({comparison.compiled_ulps:.3g} ulp)"
    if comparison.eager_error is not None:
        text += f"  eager {comparison.eager_error:.3g}"
        if comparison.eager_ulps is not None:
            text += f" ({comparison.eager_ulps:.3g} ulp)"
    if comparison.n_different is not None:
        text += f"  {comparison.n_different:,} elements differ"
    if comparison.is_within is False:
        text += "  leaves the tolerance" + (f" {comparison.tolerance:.3g}" if comparison.tolerance is not None else "")
    if comparison.note:
        text += f"  ({comparison.note})"
    return text
