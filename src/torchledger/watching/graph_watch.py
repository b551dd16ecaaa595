"""One loaded wrapper and its calls: what each launch reads and writes is looked at, then handed on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from torchledger._torch.kernel_marks import note_wrapper
from torchledger.claims import claim
from torchledger.nouns import Launch
from torchledger.signals import let_through
from torchledger.watching.call_frames import Frame, PlannedFrame
from torchledger.watching.call_records import Planned, Sink
from torchledger.watching.planned import Look, Plan
from torchledger.watching.reductions import Queued, Summary
from torchledger.watching.rewrite import ALLOCATE, LAUNCH, Rewritten, Site, launch_name, rewrite_wrapper
from torchledger.watching.roles import Roles

log = logging.getLogger(__name__)

_PLANS_KEPT = 16


class GraphWatch:
    """Stands in for the ``call`` of one loaded wrapper."""

    def __init__(self, sink: Sink, module: ModuleType, source: str, rewritten: Rewritten | None) -> None:
        self.sink = sink
        self.source = source
        self.name: str | None = None
        self.n_calls = 0
        self.n_watched_calls = 0
        self.sites: tuple[Site, ...] = rewritten.sites if rewritten is not None else ()
        self.launches: dict[int, Launch] = {}
        self.n_launches = 0
        self.module: Any = None
        self.seen: set[int] = set()
        self.input_names: tuple[str, ...] = rewritten.inputs if rewritten is not None else ()
        self._module = module
        self._original = module.call
        self._watched = module.call
        self._roles: dict[int, Roles] = {}
        self._local = threading.local()
        self._plans: dict[Hashable, Planned | None] = {}
        # Freed storage is no launch, and what runs on other streams is not in the order of the lines.
        self._may_hold = "resize_storage_bytes_" not in source and "torch.ops.streams." not in source
        self._may_plan = len({site.function for site in self.sites}) == 1
        if rewritten is not None:
            namespace = dict(vars(module))
            namespace[LAUNCH], namespace[ALLOCATE] = self._launch, self._allocate
            exec(rewritten.code, namespace)
            self._watched = namespace["call"]
            note_wrapper(self._watched)

    @claim
    def stand_in(self) -> bool:
        """Take the place of the wrapper's ``call``, once all is there that a call needs; true once that is done."""
        self._module.call = self  # type: ignore[attr-defined]
        return True

    def identify(self, name: str, launches: Iterable[Launch]) -> None:
        """Tell which graph this is, and which launch stands at each site."""
        self.name = name
        waiting: dict[tuple[int, str], list[Launch]] = {}
        for launch in launches:
            if launch.is_call:
                self.n_launches += 1
                if launch.wrapper_line is not None and launch.call is not None:
                    waiting.setdefault((launch.wrapper_line, launch.call), []).append(launch)
        for site in self.sites:
            found = waiting.get((site.line, site.name))
            if found:
                self.launches[site.index] = found.pop(0)

    @property
    def asked(self) -> frozenset[int]:
        """The sites whose launches are asked for."""
        return frozenset(index for index, launch in self.launches.items() if self.sink.takes_launch(launch))

    @property
    def asked_buffers(self) -> frozenset[str] | None:
        """What the launches that are asked for read and write; ``None`` where all launches are."""
        asked = self.asked
        if len(asked) == len(self.launches):
            return None
        return frozenset(buffer.name for index in asked for buffer in self.launches[index].buffers)

    def subject(self, site: Site) -> str:
        """The launch id of a site, or its line where the ledger has no entry for it."""
        launch = self.launches.get(site.index)
        return launch.launch_id if launch is not None else f"{self.name or 'unrecorded graph'}, line {site.line}"

    # --- what runs in the user's program ------------------------------------------------------------------------

    def __call__(self, args: list[Any]) -> Any:
        frame, run = None, self._original
        try:
            frame, run = self._begin(args)
        except Exception as error:  # the user's program must go on
            let_through(error)
            self._lose(error)
        result = None
        try:
            result = run(args)
        finally:  # what was seen until a fault is what explains it
            try:
                if not self._end(frame, result):
                    raise RuntimeError("what was seen of a call was not kept")
            except Exception as error:  # the user's program has its result
                let_through(error)
                self._lose(error)
        return result

    def _begin(self, args: list[Any]) -> tuple[Any, Callable[[list[Any]], Any]]:
        """The frame of a call, ``None`` if this one is not watched, and what to call in it."""
        index = self.n_calls
        self.n_calls += 1
        if not self.sink.is_active or not self.sink.takes_call(self, index):
            return None, self._original
        self.n_watched_calls += 1
        frames = self._frames()
        key = self._plan_key(args)
        planned = self._plans.get(key) if key is not None else None
        frame: Any
        if planned is not None:
            frame, run = PlannedFrame(self, index, planned), planned.run
        else:
            frame = Frame(self, index, plan_key=key if key is not None and key not in self._plans else None)
            run = self._watched
        frame.guard(frame.start, args)
        frames.append(frame)
        return frame, run

    def _end(self, frame: Any, result: Any) -> bool:
        """Keep what was seen of a call; true once that is done."""
        if frame is None:
            return True
        frames = self._frames()
        while frame in frames:
            frames.pop()
        frame.guard(frame.end, result)
        return True

    def _lose(self, error: Exception) -> None:
        """Tell of what failed outside any frame's guard."""
        try:
            self.sink.on_fault(self.name or "a graph", error)
        except Exception as second:  # whoever should list the fault is at fault too
            let_through(second)
            log.warning("torchledger lost what it knew of %s: %s; %s", self.name or "a graph", error, second)

    def _plan_key(self, args: Sequence[Any]) -> Hashable | None:
        """What decides what happens in a call: the question, and the shapes and numbers that come in."""
        question = self.sink.plans_for() if self._may_plan else None
        if question is None:
            return None
        key = (
            question,
            tuple(
                (value.shape, value.stride(), value.dtype) if isinstance(value, torch.Tensor) else value
                for value in args
            ),
        )
        try:
            hash(key)
        except TypeError:  # an input that is neither a tensor nor a number
            return None
        return key

    def run_for(self, plan: Plan) -> Callable[[list[Any]], Any]:
        """The wrapper's ``call`` with nothing in it but what a plan looks at."""
        sites = plan.before.keys() | plan.after.keys() | plan.flushes
        namespace = dict(vars(self._module))
        for site in sites:
            before, after = plan.before.get(site, ()), plan.after.get(site, ())
            namespace[launch_name(site)] = self._planned_launch(before, after, flushes=site in plan.flushes)
        rewritten = rewrite_wrapper(self.source, str(self._module.__file__), only=sites)
        assert rewritten is not None
        exec(rewritten.code, namespace)
        run: Callable[[list[Any]], Any] = namespace["call"]
        note_wrapper(run)
        return run

    def keep_plan(self, key: Hashable, planned: Planned | None) -> None:
        """Follow a plan in later calls with the same key; ``None``: there is no plan for such calls."""
        while len(self._plans) >= _PLANS_KEPT:
            self._plans.pop(next(iter(self._plans)))
        self._plans[key] = planned

    def plan(
        self,
        looks: Sequence[Look],
        queued: Mapping[int, Queued],
        done: Mapping[int, Summary],
        written: Mapping[int, set[int]],
    ) -> Plan | None:
        """The plan of a call, from what was looked at and written in it; ``None`` where there is none."""
        return Plan.make(looks, queued, done, written if self._may_hold else {})

    def drop_plans(self) -> None:
        """Follow no plan any more."""
        self._plans.clear()
        self._may_plan = False

    def _frames(self) -> list[Any]:
        frames: list[Any] | None = getattr(self._local, "frames", None)
        if frames is None:
            frames = self._local.frames = []
        return frames

    def _launch(self, site_index: int, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        event = frame = None
        try:
            frames = self._frames()
            if frames:
                frame = frames[-1]
                event = frame.guard(frame.before, site_index, function, arguments, keywords)
                if event is None and not frame.is_broken:
                    raise RuntimeError("a launch was not looked at")
        except Exception as error:  # the user's launch must be made
            let_through(error)
            self._lose(error)
        result = function(*arguments, **keywords)
        if event is not None and frame is not None:
            try:
                frame.guard(frame.after, event, function, arguments, keywords, result)
            except Exception as error:  # it has been made
                let_through(error)
                self._lose(error)
        return result

    def _allocate(self, function: Any, /, *arguments: Any, **keywords: Any) -> Any:
        tensor = function(*arguments, **keywords)
        try:
            frames = self._frames()
            if frames:
                frames[-1].guard(frames[-1].allocated, tensor)
        except Exception as error:  # the user has the tensor
            let_through(error)
            self._lose(error)
        return tensor

    def _planned_launch(self, before: Sequence[Any], after: Sequence[Any], *, flushes: bool) -> Callable[..., Any]:
        """What a wrapper calls at one site of a planned call."""

        def launch(function: Any, /, *arguments: Any, **keywords: Any) -> Any:
            frame = None
            try:
                frame = self._frames()[-1]
                if before:
                    frame.guard(frame.look, before, function, arguments, keywords, None)
                if flushes:
                    frame.guard(frame.flush)
            except Exception as error:  # the user's launch must be made
                let_through(error)
                self._lose(error)
            result = function(*arguments, **keywords)
            if after and frame is not None:
                try:
                    frame.guard(frame.look, after, function, arguments, keywords, result)
                except Exception as error:  # it has been made
                    let_through(error)
                    self._lose(error)
            return result

        return launch

    def roles(self, site: Site, function: Any) -> Roles:
        """What a site does with its arguments."""
        found = self._roles.get(site.index)
        if found is None:
            found = self._roles[site.index] = Roles.of(site, function, self.launches.get(site.index))
        return found
