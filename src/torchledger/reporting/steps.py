"""A predicted step: its parts, and its launches beside what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torchledger.nouns import Launch, Prediction, StepPrediction
from torchledger.predicting.job import RankPrediction, slowest
from torchledger.predicting.launches import was_measured_elsewhere
from torchledger.predicting.step import NO_STEP, ran_elsewhere
from torchledger.printable import counted
from torchledger.reporting.columns import format_bytes, format_share, format_us
from torchledger.reporting.document import Block, Document, Facts, Section, Sentence, Table, as_plain, columns, joined
from torchledger.reporting.step import PHASE_WORDS


def step_document(
    step: StepPrediction,
    predictions: Sequence[Prediction],
    measured: Mapping[str, float],
    launches: Sequence[Launch],
    *,
    top: int = 15,
    sort_by: str = "time",
) -> Document:
    """The step's parts, then launches: the longest first, or those that are furthest off. Where there is no step, that
    is said first."""
    graphs = f"{step.launches:,} launches in {counted(sum(step.graph_calls.values()), 'call')} of compiled graphs"
    needs = {"host": step.host_us, "device": step.device_us}
    first, second = sorted(needs, key=lambda who: -needs[who])
    facts = [
        (
            "step" if step.holds_record else "graphs, once each",
            f"{format_us(step.duration_us)} ({format_us(step.low_us)} to {format_us(step.high_us)})",
        ),
        ("decided by", f"the {first}: it needs {format_us(needs[first])}, the {second} {format_us(needs[second])}"),
        ("kernels", f"{format_us(step.kernels_us)} in {graphs}"),
    ]
    if step.tails_us:
        facts.append(("long tails", f"{format_us(step.tails_us)} more: kernels are late by more than they are early"))
    if step.holds_record:
        facts.append(("eager operators", f"{format_us(step.eager_us)} outside compiled graphs"))
    if step.optimizer_us:
        facts.append(("optimizer", format_us(step.optimizer_us)))
    if step.collectives_us:
        facts.append(("collectives", format_us(step.collectives_us)))
    if step.sustained_us:
        facts.append(("power limit", f"{format_us(step.sustained_us)} more for products in a run that lasts"))
    facts += [
        ("gaps between them", format_us(step.gaps_us)),
        ("host", f"{format_us(step.host_us)}, {_told_by(step)}"),
    ]
    if step.peak_allocated_bytes is not None:
        facts.append(("peak memory", f"{format_bytes(step.peak_allocated_bytes)} allocated on {step.device}"))
    if step.measured_us is not None:
        facts.append(("measured step", _beside(step.measured_us, step.duration_us, step)))
    calls = {item.subject: step.graph_calls.get(item.subject.rpartition("#")[0], 1) for item in predictions}
    if step.measured_kernels_us is not None:
        known = [item for item in predictions if item.subject in measured]
        same = sum(item.duration_us * calls[item.subject] for item in known)
        total = sum(measured[item.subject] * calls[item.subject] for item in known)
        if total:
            facts.append(("measured kernels", _beside(total, same, step)))
    blocks: list[Block] = [Facts(tuple(facts))]
    if not step.holds_record:
        said = f"{NO_STEP[0].upper()}{NO_STEP[1:]}. torchledger run --profile records one."
        blocks.insert(0, Sentence(said, "bad"))
    if step.foreign_us:
        share = format_share(step.foreign_us / step.device_us)
        blocks.append(Sentence(f"{share} of the device time is of kernels that this device does not run.", "bad"))
    blocks += [Sentence(f"{note[0].upper()}{note[1:]}.", "quiet") for note in step.notes if note != NO_STEP]
    if step.unlearned:
        share = format_share(step.unlearned_us / step.device_us) if step.device_us else "?"
        blocks.append(
            Sentence(
                f"Of launches and eager calls, {step.unlearned:,} ({share} of the device time) are of kinds that the "
                "model has not learned.",
                "bad",
            )
        )
    if step.extrapolated:
        blocks.append(Sentence(f"{step.extrapolated:,} launches and calls lie beyond what was measured.", "quiet"))
    names = {launch.launch_id: launch.kernel_name for launch in launches}
    rows = [
        (
            item.subject,
            names.get(item.subject, ""),
            calls[item.subject],
            item.duration_us,
            item.duration_us * calls[item.subject],
            measured.get(item.subject),
            _error(item, measured),
            item.range,
        )
        for item in predictions
    ]
    if sort_by == "error":
        # Where times are not compared (those of a CPU with a price on a GPU), the heaviest stand first.
        rows.sort(key=lambda row: (0.0 if row[5] is None or row[6] is None else -abs(row[3] - row[5]), -row[4]))
    else:
        rows.sort(key=lambda row: -row[4])
    keys = ["launch_id", "kernel_name", "calls", "predicted_us", "predicted_total_us", "measured_us", "error_pct"]
    silent = {
        key
        for key, known in {"kernel_name": names, "measured_us": measured, "error_pct": measured}.items()
        if not known
    }
    told = [place for place, key in enumerate([*keys, "range"]) if key not in silent]
    table = Table(
        columns(*([*keys, "range"][place] for place in told)), tuple(tuple(row[k] for k in told) for row in rows[:top])
    )
    mode = "as CUDA graphs" if step.mode == "graphs" else "launched one by one"
    sections = [Section(f"{step.subject} on {step.device}, {mode}", tuple(blocks))]
    if rows:
        sections.append(Section(f"{min(top, len(rows))} of {counted(len(rows), 'launch')}", (table,)))
    if step.eager:
        sections.append(_eager_section(step, top))
    return Document(tuple(sections))


def job_steps_document(ranks: Sequence[RankPrediction], *, top: int = 15, sort_by: str = "time") -> Document:
    """A row for each rank of a job, and then the step of the slowest."""
    last = slowest(ranks)
    rows = tuple(
        (
            f"rank {each.rank}",
            each.step.duration_us,
            each.step.low_us,
            each.step.high_us,
            each.step.device_us,
            each.step.host_us,
            each.step.measured_us,
            each.step.peak_allocated_bytes,
        )
        for each in ranks
    )
    keys = ("rank", "predicted_us", "low_us", "high_us", "device_us", "host_us", "measured_us")
    whole = "step takes" if last.step.holds_record else "graphs take, once each,"
    said = (
        f"The job's {whole} {format_us(last.step.duration_us)} at least, by rank {last.rank}: what ranks "
        "wait for each other (a late rank, a pipeline's bubble) is not in it."
    )
    title = f"{counted(len(ranks), 'rank')} on {last.step.device}"
    table = Table(columns(*keys, "peak_bytes"), rows, optional=("peak_bytes", "low_us", "high_us"))
    document = step_document(last.step, last.predictions, last.measured, last.launches, top=top, sort_by=sort_by)
    return joined(Document((Section(title, (Sentence(said), table)),)), document)


def job_steps_as_plain(ranks: Sequence[RankPrediction]) -> Mapping[str, Any]:
    """The step of each rank as ``step_as_plain``, and the rank that is the slowest."""
    return {
        "slowest_rank": slowest(ranks).rank,
        "duration_us": slowest(ranks).step.duration_us,
        "ranks": [
            {"rank": each.rank, **step_as_plain(each.step, each.predictions, each.measured, each.launches)}
            for each in ranks
        ],
    }


def _told_by(step: StepPrediction) -> str:
    """What says how long the host takes."""
    costs = f"as measured on {step.host}" if step.host else "by usual costs"
    return f"{costs} and what its plain steps took where it was recorded" if step.host_was_seen else costs


def _beside(measured_us: float, predicted_us: float, step: StepPrediction) -> str:
    """A measured time and what the prediction makes of it; of another kind of device nothing can be compared."""
    if ran_elsewhere(step):
        return f"{format_us(measured_us)} on the device of the record"
    return f"{format_us(measured_us)} (predicted {100 * (predicted_us / measured_us - 1):+.1f} %)"


def _eager_section(step: StepPrediction, top: int) -> Section:
    rows = tuple(
        (
            each.prediction.subject,
            PHASE_WORDS[each.phase],
            each.calls,
            each.prediction.duration_us,
            each.total_us,
            each.prediction.range,
        )
        for each in step.eager[:top]
    )
    table = Table(columns("step_call", "phase", "calls", "predicted_us", "predicted_total_us", "range"), rows)
    return Section(
        f"{len(rows)} of {len(step.eager)} kinds of eager calls ({counted(step.eager_calls, 'call')})",
        (table,),
    )


def step_as_plain(
    step: StepPrediction,
    predictions: Sequence[Prediction],
    measured: Mapping[str, float],
    launches: Sequence[Launch],
) -> Mapping[str, Any]:
    """The same as plain data. Times of launches are of one call; ``calls`` says how often the step makes it."""
    names = {launch.launch_id: launch.kernel_name for launch in launches}
    return {
        "step": as_plain(step),
        "launches": [
            {
                **as_plain(item),
                "kernel_name": names.get(item.subject),
                "calls": step.graph_calls.get(item.subject.rpartition("#")[0]),
                "measured_us": measured.get(item.subject),
                "error_pct": _error(item, measured),
            }
            for item in predictions
        ],
    }


def _error(item: Prediction, measured: Mapping[str, float]) -> float | None:
    time_us = measured.get(item.subject)
    if not time_us or was_measured_elsewhere(item):
        return None
    return 100 * (item.duration_us / time_us - 1)
