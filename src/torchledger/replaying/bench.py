"""Run entries of a ledger alone and time them: ``torchledger bench``.

Enters: a ledger. Leaves: ``Measurement`` records of kind ``"bench"``, one per launch and cache state, and a
``BenchReport`` that sets them beside what was measured inside the step. Kernels run in a process of their own.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchledger import roofline
from torchledger.device.ceilings import known_ceilings, product_rate
from torchledger.errors import MeasureError, UsageError
from torchledger.nouns import Ceilings, Device, Launch, Measurement, Run, Step
from torchledger.replaying.bench_process import Progress, run_tasks
from torchledger.replaying.bench_report import Benched, BenchReport, Mode
from torchledger.replaying.bench_timing import HOST_FLUSH_BYTES, Budget, relative_interval
from torchledger.replaying.bench_worker import Job, Task
from torchledger.replaying.call_site import CallSite, CallSites
from torchledger.replaying.lead_in import LeadIn, find_lead_in, lead_in_text
from torchledger.replaying.ledger_code import LedgerCode, ledger_code
from torchledger.replaying.sizes import CannotReplay
from torchledger.replaying.standalone import allocated_bytes, body_text, input_bytes, preamble_text
from torchledger.stepping.totals import StepUse, use_of
from torchledger.store import LedgerReader, LedgerWriter, open_ledger
from torchledger.store.find import find_kernel
from torchledger.store.latest import latest, saved_inputs, step_measurements

log = logging.getLogger(__name__)

STATES = ("warm", "cold", "step")
"""What the cache holds: what the last call of the kernel left, nothing of use, or what the launches before it leave."""

SPREAD_LIMIT = 0.05
"""A 95 % confidence interval of the median wider than this share of it is pointed out."""


def bench(
    path: str | os.PathLike[str],
    kernels: Sequence[str] = (),
    *,
    all_kernels: bool = False,
    mode: Mode = "run",
    states: Sequence[str] = STATES,
    budget: Budget | None = None,
    trust: bool = False,
    save: bool = True,
    timeout_s: float = 120.0,
    total_s: float | None = None,
    progress: Progress = lambda done, total, what: None,
) -> BenchReport:
    """Run kernels of a ledger alone and time them.

    ``kernels`` are launch ids, names, keys or unambiguous parts of them; without any, the heaviest ones are taken until
    95 % of the time is covered (``all_kernels``: every one). Launches of one kernel on equal sizes are run once.
    ``budget`` is per kernel and cache state, ``timeout_s`` the longest that one kernel may take with compiling,
    ``total_s`` the longest for all. ``save`` appends the measurements to the ledger. ``progress`` is told timings done,
    their number, and of which launch the last was.

    Raises ``UsageError`` for a name that is not in the ledger and ``MeasureError`` if the ledger's code must not or
    cannot be run here.

    >>> torchledger.bench("gpt.ledger", ["forward_0#12"]).entries[0].duration_us  # doctest: +SKIP
    41.3
    """
    started = time.monotonic()
    with open_ledger(path) as reader:
        run = reader.run()
        launches = [launch for launch in reader.read(Launch) if launch.category != "nop"]
        in_step = step_measurements(reader)
        step = latest(reader, Step)
        saved = saved_inputs(reader)
        chosen, selection = _select(reader, launches, kernels, all_kernels, in_step, run, step)
        codes = ledger_code(reader, (launch.graph for launch in chosen), trust=trust)
    chosen = [codes[launch.graph].launch(launch.launch_id) for launch in chosen]
    sites_of = functools.cache(lambda name: _call_sites(codes[name]))
    _check_machine(str(path), run, chosen)
    devices = {device: _device(run, device) for device in {launch.device for launch in chosen}}
    sites, refused = _find_sites(sites_of, chosen)
    groups = _group(sites)
    plan = _Plan()
    for site, _ in groups:
        for task in _tasks(site, mode, tuple(state for state in states if state != "step"), saved):
            plan.add(task, site.definitions)
    leads = _find_leads(sites, sites_of, devices) if "step" in states and mode == "run" else {}
    # Where a whole step fits into the cache, nothing is cold in its place.
    is_larger = sum(launch.bytes_moved or 0 for launch in launches) > max(map(_cache_bytes, devices.values()))
    for site, launch in sites:
        lead = leads.get(launch.launch_id)
        if isinstance(lead, LeadIn):
            plan.add(_led_task(site, lead, is_flushed=is_larger), lead.definitions, lead.signature)
    job = Job(
        tuple(plan.tasks),
        budget or Budget(),
        plan.kernels,
        settings=dict(run.environment.settings),
        num_threads=run.environment.num_threads,
        is_trusted=trust,
    )
    deadline = None if total_s is None else started + total_s
    answers = run_tasks(job, timeout_s=timeout_s, deadline=deadline, progress=progress)
    ceilings = {name: known_ceilings(device) for name, device in devices.items()}
    allow_tf32 = run.environment.settings.get("float32_matmul_precision") in ("high", "medium")
    by_launch: dict[str, Benched] = {}
    for site, members in groups:
        answer = answers.get(site.launch_id, _NO_TIME_LEFT)
        keeps_lines = any("evict_last" in text for _, text in site.definitions)
        for launch in members:
            entry = _entry(launch, answer, None if launch.launch_id == site.launch_id else site.launch_id)
            entry = replace(entry, keeps_lines=keeps_lines)
            limits = _limits(launch, ceilings.get(launch.device), allow_tf32=allow_tf32)
            if mode != "run" and (other := answers.get(f"{site.launch_id}{_AS_RUN}")) is not None:
                same = _entry(launch, other, entry.same_as)
                entry = replace(entry, as_run=same.warm)
            if launch.launch_id in leads:
                task_id = plan.task_of(_led_id(launch.launch_id))
                entry = _with_place(entry, leads[launch.launch_id], task_id, answers.get(task_id, _NO_TIME_LEFT))
            by_launch[launch.launch_id] = replace(entry, in_step=in_step.get(launch.launch_id), **limits)
    entries = tuple(
        by_launch.get(launch.launch_id) or Benched(launch, "cannot", reason=refused[launch.launch_id])
        for launch in chosen
    )
    if step is not None:
        entries = tuple(replace(entry, use=_use(step, entry)) for entry in entries)
    if save:
        _save(path, entries)
    return BenchReport(str(path), run, entries, selection, mode, time.monotonic() - started, ceilings)


def _use(step: Step, entry: Benched) -> StepUse:
    return use_of(step, entry.launch.graph, entry.in_step.duration_us if entry.in_step is not None else None)


_NO_TIME_LEFT = {"status": "not_run", "reason": "the time for all kernels was used up"}


# --- where it may run -----------------------------------------------------------------------------------------------


def _check_machine(path: str, run: Run, launches: Sequence[Launch]) -> None:
    """Refuse what cannot run here, and say what differs where it can be compiled anew."""
    import torch

    kinds = {launch.device.partition(":")[0] for launch in launches}
    if "cuda" in kinds and not torch.cuda.is_available():
        theirs = ", ".join(device.name for device in run.devices if device.kind == "cuda") or "a CUDA device"
        raise MeasureError(f"{path} holds kernels for {theirs}; torch {torch.__version__} sees no CUDA device here.")
    theirs = (run.environment.torch or "").partition("+")[0]
    here = str(torch.__version__).partition("+")[0]
    if theirs and theirs.split(".")[:2] != here.split(".")[:2]:
        raise MeasureError(
            f"{path} was recorded with torch {run.environment.torch}, whose generated code torch {torch.__version__} "
            "does not run. Bench it with the version that wrote it, or record the model anew."
        )
    if "cuda" in kinds:
        name = torch.cuda.get_device_properties(0).name
        recorded = [device.name for device in run.devices if device.kind == "cuda"]
        if recorded and name not in recorded:
            log.warning("recorded on %s, compiled anew for %s: times are those of this device", recorded[0], name)


def _device(run: Run, name: str) -> Device | None:
    kind, _, index = name.partition(":")
    for device in run.devices:
        if device.kind == kind and (kind == "cpu" or device.index == int(index or 0)):
            return device
    return None


# --- what to run -----------------------------------------------------------------------------------------------------


def _select(
    reader: LedgerReader,
    launches: Sequence[Launch],
    kernels: Sequence[str],
    all_kernels: bool,
    in_step: Mapping[str, Measurement],
    run: Run,
    step: Step | None,
) -> tuple[list[Launch], str]:
    if not launches:
        raise MeasureError(f"{reader.path} holds no launch that could be run: `torchledger show {reader.path}`.")
    if kernels:
        if all_kernels:
            raise UsageError("KERNEL and --all are two choices. Make one.")
        chosen: dict[str, Launch] = {}
        for question in kernels:
            target = find_kernel(reader, question)
            for launch in launches:
                by_id = target.launch_id is not None and launch.launch_id == target.launch_id
                by_kernel = (launch.kernel, launch.kernel_name) == (target.key, target.kernel_name)
                if by_id or (target.launch_id is None and by_kernel):
                    chosen[launch.launch_id] = launch
        return list(chosen.values()), "the kernels that were named"
    if all_kernels:
        return list(launches), "every launch"
    weights, source = _weights(launches, in_step, run, step)
    if weights is None:
        return list(launches), "every launch: nothing tells yet which ones are heavy"
    total = sum(weights.values())
    taken: set[str] = set()
    covered = 0.0
    for launch_id, weight in sorted(weights.items(), key=lambda item: -item[1]):
        if covered >= 0.95 * total:
            break
        taken.add(launch_id)
        covered += weight
    selected = [launch for launch in launches if launch.launch_id in taken]
    share = f"{100 * covered / (total or 1.0):.0f} %"
    return selected, f"the heaviest {len(selected)} of {len(launches)} launches: {share} of {source}"


def _weights(
    launches: Sequence[Launch], in_step: Mapping[str, Measurement], run: Run, step: Step | None
) -> tuple[dict[str, float] | None, str]:
    if in_step:
        timed = {key: found for key, found in in_step.items() if "#" in key}
        # Without a step's record, a launch's samples tell how often the profiled steps ran it.
        calls = {key: found.repeats for key, found in timed.items()}
        if step is not None and any(step.graph_calls.values()):
            calls = {key: step.graph_calls.get(key.rpartition("#")[0], 0) for key in timed}
        return {key: found.duration_us * calls[key] for key, found in timed.items()}, "their time inside the step"
    weights = {}
    for launch in launches:
        found = _limits(launch, known_ceilings(_device(run, launch.device)))["roofline_us"]
        if found is not None:
            weights[launch.launch_id] = found
    return (weights or None), "their roofline time (there is no profile)"


def _find_sites(
    sites_of: Callable[[str], CallSites], chosen: Sequence[Launch]
) -> tuple[list[tuple[CallSite, Launch]], dict[str, str]]:
    sites, refused = [], {}
    for launch in chosen:
        try:
            sites.append((sites_of(launch.graph).find(launch), launch))
        except CannotReplay as error:
            refused[launch.launch_id] = str(error)
    return sites, refused


def _call_sites(code: LedgerCode) -> CallSites:
    return CallSites(code.graph, [launch for launch in code.launches if launch.category != "nop"], code.kernels)


def _find_leads(
    sites: Sequence[tuple[CallSite, Launch]],
    sites_of: Callable[[str], CallSites],
    devices: Mapping[str, Device | None],
) -> dict[str, LeadIn | str]:
    """What runs before each launch, until twice the cache has been moved; or why that is not known."""
    leads: dict[str, LeadIn | str] = {}
    for _, launch in sites:
        cache = _cache_bytes(devices.get(launch.device))
        try:
            leads[launch.launch_id] = find_lead_in(sites_of(launch.graph), launch, window_bytes=2 * cache)
        except CannotReplay as error:
            leads[launch.launch_id] = str(error)
    return leads


def _cache_bytes(device: Device | None) -> int:
    """The last-level cache that launches share; an upper guess where it is not known."""
    return (device.l2_cache_bytes if device is not None and device.kind == "cuda" else None) or HOST_FLUSH_BYTES


def _group(sites: Sequence[tuple[CallSite, Launch]]) -> list[tuple[CallSite, list[Launch]]]:
    groups: dict[str, tuple[CallSite, list[Launch]]] = {}
    for site, launch in sites:
        groups.setdefault(site.signature, (site, []))[1].append(launch)
    return list(groups.values())


_AS_RUN = " as run"


def _led_id(launch_id: str) -> str:
    return f"{launch_id} led in"


@dataclass
class _Plan:
    """Tasks for the worker: equal ones once, each kernel's definition once."""

    tasks: list[Task] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    _by_signature: dict[str, str] = field(default_factory=dict)
    _instead: dict[str, str] = field(default_factory=dict)

    def add(self, task: Task, definitions: Sequence[tuple[str, str]], signature: str | None = None) -> None:
        """Take a task up, unless one of the same signature is there: that is then its task."""
        known = self._by_signature.setdefault(signature, task.task_id) if signature is not None else task.task_id
        if known != task.task_id:
            self._instead[task.task_id] = known
            return
        keys = {name: hashlib.sha256(text.encode()).hexdigest()[:20] for name, text in definitions}
        self.kernels.update((keys[name], text) for name, text in definitions)
        self.tasks.append(replace(task, kernels=keys))

    def task_of(self, task_id: str) -> str:
        """The task that is run for one."""
        return self._instead.get(task_id, task_id)


def _tasks(site: CallSite, mode: Mode, states: Sequence[str], saved: Mapping[str, str] | None = None) -> Iterator[Task]:
    """The task of a call site, and before it the same with the run's own configuration where others are tried."""
    task = Task(
        site.launch_id,
        site.device,
        preamble_text(site),
        body_text(site),
        input_bytes(site),
        states=tuple(states),
        saved_inputs=(saved or {}).get(site.launch_id),
    )
    has_choice = any("async_compile.triton" in text for _, text in site.definitions)
    if mode == "run" or not has_choice:
        yield task
    else:
        yield replace(task, task_id=f"{site.launch_id}{_AS_RUN}", states=("warm",))
        yield replace(task, mode=mode, states=("warm",))


def _led_task(site: CallSite, lead: LeadIn, *, is_flushed: bool) -> Task:
    return Task(
        _led_id(site.launch_id),
        site.device,
        preamble_text(site),
        lead_in_text(lead),
        allocated_bytes(lead.setup),
        states=("step",),
        is_flushed=is_flushed,
    )


# --- what came of it -------------------------------------------------------------------------------------------------


def _entry(launch: Launch, answer: Mapping[str, Any], same_as: str | None) -> Benched:
    if answer["status"] != "ok":
        return Benched(launch, str(answer["status"]), reason=str(answer.get("reason", "")), same_as=same_as)
    configurations = tuple(
        _measurement(launch, found, "warm", same_as)
        for found in answer.get("configurations", ())
        if "warm" in found["samples_us"]
    )
    best = min(configurations, key=lambda found: found.duration_us, default=None)
    if answer.get("configurations") is not None:
        if best is None:
            return Benched(launch, "failed", reason="no configuration could be timed", same_as=same_as)
        return Benched(launch, "ok", warm=best, same_as=same_as, configurations=configurations)
    found = {state: _measurement(launch, answer, state, same_as) for state in answer["samples_us"]}
    notes = list(answer.get("notes", ()))
    for state, measured in found.items():
        width = relative_interval(measured.samples_us)
        if SPREAD_LIMIT < width < float("inf"):
            notes.append(
                f"{state}: the median of {measured.repeats} samples is known to {100 * width:.0f} % only; "
                "try --seconds 5, or `torchledger doctor` to see what else runs here"
            )
    return Benched(
        launch,
        "ok",
        warm=found.get("warm"),
        cold=found.get("cold"),
        same_as=same_as,
        notes=tuple(dict.fromkeys(notes)),
        clock_fell=bool(answer.get("clock_fell")),
    )


def _with_place(entry: Benched, lead: LeadIn | str, task_id: str, answer: Mapping[str, Any]) -> Benched:
    """The entry with its time after its lead-in, or why there is none."""
    if isinstance(lead, str):
        return replace(entry, unplaced=lead)
    if answer["status"] != "ok":
        return replace(entry, unplaced=f"after its lead-in: {answer.get('reason', '')}")
    ran = task_id.partition(" ")[0]
    placed = _measurement(entry.launch, answer, "step", None if ran == entry.launch.launch_id else ran)
    notes = tuple(dict.fromkeys([*entry.notes, *(f"in place: {note}" for note in answer.get("notes", ()))]))
    fell = entry.clock_fell or bool(answer.get("clock_fell"))
    return replace(entry, placed=placed, lead_in=len(lead.launches), notes=notes, clock_fell=fell)


def _measurement(launch: Launch, answer: Mapping[str, Any], state: str, same_as: str | None) -> Measurement:
    return Measurement(
        subject=launch.launch_id,
        kind="bench",
        clock=answer["clock"],
        samples_us=tuple(answer["samples_us"][state]),
        warmup=int(answer["warmup"]),
        l2_state=state,  # type: ignore[arg-type]
        note=f"run as {same_as}" if same_as else None,
        configuration=answer.get("configuration"),
        num_warps=answer.get("num_warps"),
        num_stages=answer.get("num_stages"),
        n_regs=answer.get("n_regs"),
        n_spills=answer.get("n_spills"),
        shared_bytes=answer.get("shared_bytes"),
    )


def _limits(launch: Launch, ceilings: Ceilings | None, *, allow_tf32: bool = False) -> dict[str, Any]:
    """Roofline time and bound of a launch at the measured ceilings; ``None`` where there are none."""
    if ceilings is None:
        return {"roofline_us": None, "bound": None}
    dtypes = [buffer.dtype for buffer in launch.buffers if buffer.role == "input" and "int" not in buffer.dtype]
    rate = product_rate(ceilings, dtypes[-1], allow_tf32=allow_tf32) if dtypes and launch.flops else None
    peaks = {"peak_tflops_per_s": rate, "peak_gb_per_s": ceilings.copy_gb_per_s}
    return {
        "roofline_us": roofline.roofline_us(launch.flops, launch.bytes_moved, **peaks),
        "bound": roofline.bound(launch.flops, launch.bytes_moved, **peaks),
    }


def _save(path: str | os.PathLike[str], entries: Sequence[Benched]) -> None:
    records = [
        measured
        for entry in entries
        for measured in (
            *entry.configurations,
            *((entry.warm,) if not entry.configurations else ()),
            entry.cold,
            entry.placed,
        )
        if measured is not None
    ]
    if records:
        with LedgerWriter(path, append=True) as writer:
            writer.add(*records)
