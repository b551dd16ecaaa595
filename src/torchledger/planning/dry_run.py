"""A program's step without its device: the script runs on fake tensors until one step is in a ledger."""

from __future__ import annotations

import contextlib
import functools
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchledger.capturing.process import check_script
from torchledger.capturing.session import Capture
from torchledger.errors import LoneRankError, PlanError, UsageError
from torchledger.nouns import Device, DryRun, StandIn, WorldSpec
from torchledger.planning.device_memory import room_for_tensors
from torchledger.planning.loading import StepLoading
from torchledger.planning.program_threads import (
    Ending,
    StepRecorded,
    explain,
    explain_by,
    makes_lone_group,
    our_error,
)
from torchledger.planning.rare_collectives import RareCollectives
from torchledger.planning.step_hearing import StepHearer
from torchledger.planning.turns import Turn
from torchledger.planning.turns_of_messages import TurnOfMessages
from torchledger.profiling.profile import hear_steps
from torchledger.work.meshes import uneven_view
from torchledger.work.unaligned import Pays, stays_as_it_is

if TYPE_CHECKING:
    from torchledger._torch.fakes.tensors import FakeTensors
    from torchledger._torch.fakes.world import FakeWorld

_MOST_HINTS = 2


@dataclass(frozen=True)
class DryRunOutcome:
    """A ledger that was made without a device, and what its program was told.

    ``is_steady`` says that steps behind the recorded one were looked on, and that none held more than it; ``turn`` is
    what the step is where it is one of a loop, or from one exchange of messages to the next.
    """

    path: Path
    dry_run: DryRun
    is_steady: bool = False
    turn: Turn | TurnOfMessages | None = None


def run_without_device(
    program: Callable[[], Any],
    path: Path,
    device: Device,
    *,
    force: bool = False,
    argv: Sequence[str] = (),
    world: WorldSpec | None = None,
    pays: Pays = stays_as_it_is,
    looks_for_rarer: bool = True,
    looks_for_turns: bool = True,
    turn: Turn | TurnOfMessages | None = None,
) -> DryRunOutcome:
    """Run ``program`` without ``device`` until one of its steps is in the ledger at ``path``.

    With a ``world`` it runs as one of its ranks, and unless another has done so (``looks_for_rarer``) looks on for what
    rarer steps exchange; its step is the ``turn`` that another has found, or it looks for one itself, or for none.
    ``pays`` says which products Inductor would pad. Raises ``PlanError`` where that cannot be (no Triton, no compiler),
    where the program fails, and where it ends before a step was recorded; ``StoreError`` if the ledger cannot be
    written.
    """
    run = functools.partial(
        _run_without_device,
        program,
        path,
        device,
        argv=argv,
        world=world,
        pays=pays,
        looks_for_rarer=looks_for_rarer,
        looks_for_turns=looks_for_turns,
        turn=turn,
    )
    try:
        return run(force=force)
    except _NothingCalledError as error:
        return run(force=True, from_products=error.n_products > 0)


class _NothingCalledError(PlanError):
    """A program has called no module, no graph and no optimizer, and made ``n_products`` products."""

    def __init__(self, message: str, n_products: int) -> None:
        super().__init__(message)
        self.n_products = n_products


def _run_without_device(
    program: Callable[[], Any],
    path: Path,
    device: Device,
    *,
    force: bool,
    argv: Sequence[str],
    world: WorldSpec | None,
    pays: Pays,
    looks_for_rarer: bool,
    looks_for_turns: bool,
    turn: Turn | TurnOfMessages | None,
    from_products: bool | None = None,
) -> DryRunOutcome:
    """``run_without_device`` once: by lines that call torch where ``from_products`` is not ``None`` (those from the
    first product on, or all). Raises ``_NothingCalledError`` where that is the way to run it."""
    from torchledger._torch.fakes.device import FakeDevice

    place = (world.local_rank, world.local_size) if world is not None else (0, 1)
    with FakeDevice(device, index=place[0], count=place[1], pays=pays) as fake, _world(world) as around:
        capture = Capture(path, force=force, argv=tuple(argv), devices=(device,))
        ending = Ending(fake.tensors.end)
        fake.tensors.on_over = ending.check
        fake.memory.limit_bytes = room_for_tensors(fake.memory.total_bytes)
        fake.threads.on_error = ending.thread_failed
        rare = RareCollectives()
        if around is not None:
            fake.tensors.on_collective += (around.check_backend, rare.asked)
        devices = (device,) * place[1]
        loading = StepLoading(fake.loading.seconds)
        hearer = StepHearer(
            capture,
            ending,
            fake.tensors,
            devices,
            rare,
            fake.captures,
            loading,
            fake.memory,
            around,
            looks_for_rarer=looks_for_rarer,
            looks_for_turns=looks_for_turns,
            turn=turn,
            hears_lines=from_products is not None,
        )
        hear_steps(hearer)
        capture.watch(hearer)
        status = "failed"
        lines = contextlib.nullcontext() if from_products is None else hearer.hear_lines(from_products=from_products)
        try:
            with lines:
                _run_to_its_step(lambda: ending.run(program, fake.join), fake.tensors, around)
            status = "finished"
        except PlanError:
            if not hearer.has_heard:
                raise
            status = "finished"
        finally:
            fake.tensors.end()
            hearer.end()
            stand_ins = (*fake.tensors.stand_ins, *_of_world(around))
            groups = () if around is None else tuple(around.groups.values())
            dry_run = DryRun(
                device.name,
                stand_ins,
                dict(fake.decisions),
                world,
                groups,
                rare.found if hearer.has_step else (),
                rare.optimizer_steps,
                rare.calls,
                hearer.rarer,
            )
            capture.note(f"made without a device: the program ran on fake tensors for {device.name}")
            capture.add(dry_run)
            capture.close(status=status, exit_code=0 if status == "finished" else 1)
            why_not = None if hearer.has_step else hearer.why_not()
    if why_not is not None:
        asked = _asked_before_its_end(fake.tensors.last_asked)
        message = f"no step was recorded: {why_not}.{ending.hint}{asked}"
        if hearer.is_bare and hearer.may_repeat and from_products is None:
            raise _NothingCalledError(message, hearer.n_products)
        raise PlanError(f"{message}{_BARE if hearer.is_bare else ''}")
    return DryRunOutcome(path, dry_run, hearer.is_steady, hearer.turn)


def _asked_before_its_end(last_asked: Sequence[StandIn]) -> str:
    """The lines that were given made-up values, one of which may have ended the program; empty where there are none.

    What was asked last comes first: a loop that ends asks for nothing more."""
    values = [each for each in last_asked if each.asked.startswith(_VALUE)]
    truths_first = sorted(values, key=lambda each: each.value not in ("True", "False"))
    if not values:
        return ""
    named = ", ".join(f"{each.source} ({each.value})" for each in truths_first[:_MOST_ASKED])
    more = ", and others" if len(values) > _MOST_ASKED else ""
    return (
        " It was given values that nobody knows without the device, which may have ended it, the last of them first: "
        f"at {named}{more}. "
        f"A loop that goes on by such a value has to make a fixed number of turns to be planned."
    )


_BARE = (
    " It calls no nn.Module, compiled function or optimizer, and the lines at which it calls torch do not repeat: end "
    "each step with torchledger.step()."
)
_VALUE = "the value of a tensor"
_MOST_ASKED = 3


def _world(spec: WorldSpec | None) -> contextlib.AbstractContextManager[FakeWorld | None]:
    if spec is None:
        return contextlib.nullcontext()
    from torchledger._torch.fakes.world import FakeWorld

    return FakeWorld(spec)


def _of_world(world: FakeWorld | None) -> Iterator[StandIn]:
    """What other ranks would have given."""
    for each in world.stand_ins if world is not None else ():
        asked, _, value = each.partition(": ")
        yield StandIn("another rank", asked, value)


def _run_to_its_step(program: Callable[[], Any], tensors: FakeTensors, around: FakeWorld | None) -> None:
    try:
        program()
    except StepRecorded:
        return
    except SystemExit as error:
        if error.code == UsageError.exit_code:
            raise UsageError(
                "the program did not take its arguments (exit code 2; it says why above): what follows SCRIPT is "
                "passed to it, and options of the plan come before SCRIPT."
            ) from error
        if error.code not in (None, 0):
            ended = f"with exit code {error.code}" if isinstance(error.code, int) else f"itself ({error.code})"
            raise PlanError(f"the program ended {ended} before a step was recorded.") from error
    except Exception as error:
        ours = our_error(error)
        if ours is not None:
            raise ours from error
        if around is None and makes_lone_group(error):
            raise LoneRankError(explain(error)) from error
        traceback.print_exc()
        if around is not None and (reasons := _of_ranks(around, error)):
            raise PlanError(explain_by(reasons, error)) from error
        raise PlanError(explain(error, made_up=bool(tensors.stand_ins))) from error


def _of_ranks(around: FakeWorld, error: Exception) -> list[str]:
    """What of the program does not divide over the ranks, as far as it is known."""
    view = uneven_view(str(error), sorted(around.tensor_parallel), around.spec.size)
    return around.hints[:_MOST_HINTS] or ([] if view is None else [view])


def script_program(script: str, arguments: Sequence[str], *, is_module: bool = False) -> Callable[[], None]:
    """What runs a script, or a module, as ``python`` would; what it prints goes to stderr.

    Raises ``UsageError`` if there is no such file, or it is a ledger.
    """

    if not is_module:
        check_script(script)

    def program() -> None:
        with _as_main(script, arguments, is_module=is_module), contextlib.redirect_stdout(sys.stderr):
            if is_module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")

    return program


@contextlib.contextmanager
def _as_main(script: str, arguments: Sequence[str], *, is_module: bool) -> Iterator[None]:
    before = sys.argv, sys.path[:]
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if is_module else str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = before
