"""The ranks of a world that is not there: which of them differ, each recorded once, and what prices them together.

Ranks run the same program on shares of the same size, so that one stands for all, but for the stages of a pipeline: one
rank of each stage is recorded, the first stage first, as it tells the next one the shapes that it sends. Whose schedule
is torch's is told by its group, of other programs by what ranks do that send each other messages (``unlike_ranks``).
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torchledger
from torchledger.books import read_memory
from torchledger.capturing.process import check_script
from torchledger.errors import PlanError, TorchledgerError, UsageError
from torchledger.memory.elsewhere import memory_on
from torchledger.nouns import NUMBERS, Collective, Device, DryRun, Launch, Step, StepCall, WorldSpec
from torchledger.planning.rank_entries import RankProgram
from torchledger.planning.rank_processes import RankProcesses
from torchledger.planning.turns import Turn
from torchledger.planning.turns_of_messages import TurnOfMessages, turn_told
from torchledger.planning.unlike_ranks import MOST_RUN, RankTraits, find_unlike_ranks, traits_of
from torchledger.predicting.launches import rounding_of
from torchledger.stepping.communication import PIPELINE
from torchledger.store import open_ledger
from torchledger.store.job import empty_job, write_head
from torchledger.work.meshes import check_mesh, parse_mesh
from torchledger.work.stage_mail import stage_mail, stage_reader

_MOST_NAMED = 8


@dataclass(frozen=True)
class Script:
    """A script, or with ``is_module`` a module, and its arguments."""

    path: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False


@dataclass(frozen=True)
class RecordedRank:
    """A rank that was recorded, the ledger that holds its step, the ranks whose steps are like it, and which of these
    are ``guessed`` to be, as no more ranks were run."""

    rank: int
    ledger: Path
    stands_for: tuple[int, ...]
    guessed: tuple[int, ...] = ()


def world_of(size: int | None, mesh: str | None) -> int:
    """How many ranks are planned for. Raises ``UsageError`` where a mesh does not divide the world, with what does.

    >>> world_of(None, "dp=8,tp=4"), world_of(64, "tp=8")
    (32, 64)
    """
    if mesh is None:
        return size or 1
    sizes = list(parse_mesh(mesh).values())
    if size is not None:
        check_mesh(f"the mesh {mesh}", sizes, size)
    return size or math.prod(sizes)


def record_ranks(
    script: Script,
    folder: Path,
    device: Device,
    world: int,
    *,
    rank: int | None = None,
    ranks_per_node: int = 8,
    force: bool = False,
    model: str | None = None,
    slowness: float = 1.0,
) -> list[RecordedRank]:
    """Record each rank of a world that differs from the others, as a job in ``folder``; with ``rank`` only that one.
    The ``model``, by its name or file, says which products Inductor would pad (``None``: none) where hosts need
    ``slowness`` times as long as a usual one.

    Each runs in a process of its own, the first before the others, and of these as many at once as there are cores.
    Raises ``UsageError`` for a rank that there is not and for a pipeline that does not divide the world, ``StoreError``
    if the folder cannot be written, and ``PlanError`` with the first rank's reason where one failed.
    """
    if rank is not None and not 0 <= rank < world:
        raise UsageError(f"there is no rank {rank} in a world of {world}: --rank is 0 to {world - 1}.")
    if script.is_module is False:
        check_script(script.path)
    empty_job(folder, force=force)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="torchledger-ranks-") as mail:
        spec = WorldSpec(0 if rank is None else rank, world, min(ranks_per_node, world), mail)
        with RankProcesses() as processes:
            ways = How(slowness=slowness)

            def record(ranks: Sequence[WorldSpec]) -> list[Path]:
                return _record(processes, script, folder, device, ranks, model, how=ways)

            recorded: dict[int, Path] = {}
            failed: dict[int, TorchledgerError] = {}
            try:
                recorded[spec.rank] = record([spec])[0]
                pipeline = _pipeline(recorded[spec.rank])
            except (PlanError, UsageError) as error:
                failed[spec.rank] = error
                reader = stage_reader(Path(mail), spec.rank)
                if rank is not None or reader is None or not reader.took_for(stage_mail(Path(mail))):
                    raise
                pipeline = reader.ranks
            turn = _turn(spec)
            # All run one program: where the first has looked on for rarer steps in vain, there are none to look for.
            looks_for_rarer = not _steady(spec).exists()
            ways = replace(ways, looks_for_rarer=looks_for_rarer, looks_for_turns=turn is not None, turn=turn)

            def record_unlike() -> list[RecordedRank]:
                if rank is not None:
                    return [RecordedRank(rank, recorded[rank], tuple(range(world)))]
                if spec.rank in recorded and _sends_by_hand(recorded[spec.rank], Path(mail)):
                    return _record_by_messages(record, spec, recorded[spec.rank])
                _check_pipeline(pipeline, world)
                return _record_stages(record, spec, pipeline, recorded, failed)

            found = record_unlike()
            others = (replace(spec, rank=each.rank) for each in found if each.rank != spec.rank)
            if not all(_are_alike(turn, _turn(each)) for each in others):  # a rank that has no such turn
                ways = replace(ways, looks_for_turns=False, turn=None)
                recorded, failed = {spec.rank: record([spec])[0]}, {}
                found = record_unlike()
    write_head(
        folder,
        {
            "argv": [script.path, *script.arguments],
            "world_size": world,
            "ranks": [each.ledger.name for each in found],
            "stands_for": {str(each.rank): list(each.stands_for) for each in found},
            "torchledger": torchledger.__version__,
        },
    )
    return found


@dataclass(frozen=True)
class How:
    """What a rank looks for, and the ``turn`` that another has taken for its step, for it to take as well;
    ``slowness`` is its host's."""

    looks_for_rarer: bool = True
    looks_for_turns: bool = True
    turn: Turn | TurnOfMessages | None = None
    slowness: float = 1.0

    def turn_of(self, rank: int) -> Turn | TurnOfMessages | None:
        """The turn that a rank is to take; between messages each begins with its own."""
        return self.turn.of_rank(rank) if isinstance(self.turn, TurnOfMessages) else self.turn


Record = Callable[[Sequence[WorldSpec]], list[Path]]
"""Records some ranks: their ledgers."""


def _record_by_messages(record: Record, first: WorldSpec, ledger: Path) -> list[RecordedRank]:
    """The ranks that differ where the program sends messages between them by hand, of which the first has run."""
    ledgers = {first.rank: ledger}

    def run(ranks: Sequence[int]) -> list[RankTraits]:
        ledgers.update(zip(ranks, record([replace(first, rank=each) for each in ranks]), strict=True))
        return [traits_of(ledgers[each]) for each in ranks]

    assert first.mail is not None
    tells_sizes = any(Path(first.mail).glob(f"{NUMBERS}*"))
    found = find_unlike_ranks(traits_of(ledger), run, first.size, in_order=tells_sizes)
    for rank in ledgers.keys() - {each.rank for each in found}:
        ledgers[rank].unlink()
    return [RecordedRank(each.rank, ledgers[each.rank], each.stands_for, each.guessed) for each in found]


def _record_stages(
    record: Record,
    first: WorldSpec,
    pipeline: Sequence[int],
    recorded: dict[int, Path],
    failed: dict[int, TorchledgerError],
) -> list[RecordedRank]:
    """A rank of each stage of a pipeline, of which the first has run (``recorded``, or ``failed``)."""
    assert first.mail is not None
    stages = _stages(pipeline)
    specs = [replace(first, rank=number) for number in stages]
    ledgers = _record_until_told(record, specs, recorded, failed, Path(first.mail))
    ranks = _spread(pipeline, stages, first.size)
    return [
        RecordedRank(number, ledger, some, tuple(each for each in some if _stage_of(each, pipeline) not in stages))
        for number, ledger, some in zip(stages, ledgers, ranks, strict=True)
    ]


def _record_until_told(
    record: Record,
    ranks: Sequence[WorldSpec],
    recorded: dict[int, Path],
    failed: dict[int, TorchledgerError],
    mail: Path,
) -> list[Path]:
    """The ledgers of ranks of which the first has run (``recorded``, or ``failed``): the others at once, and again
    those that took another stage's shapes for what a later rank then told otherwise, until none did.

    A pipeline with several stages on a rank needs that where its stages differ: the first rank's second stage is sent
    what the last rank's first one makes.
    """
    if recorded:
        try:
            others = ranks[1:]
            recorded.update(zip((each.rank for each in others), record(others), strict=True))
        except (PlanError, UsageError):
            readers = [stage_reader(mail, each.rank) for each in ranks]
            if not any(reader is not None and reader.took_for(stage_mail(mail)) for reader in readers):
                raise
    while True:
        before = stage_mail(mail)
        for each in ranks:
            reader = stage_reader(mail, each.rank)
            has_run = each.rank in recorded or each.rank in failed
            if has_run and (reader is None or reader.is_current(stage_mail(mail))):
                continue
            recorded.pop(each.rank, None)
            failed.pop(each.rank, None)
            try:
                (recorded[each.rank],) = record([each])
            except (PlanError, UsageError) as error:
                failed[each.rank] = error
        if stage_mail(mail) != before:
            continue
        if failed:
            raise failed[min(failed)]
        return [recorded[each.rank] for each in ranks]


def _record(
    processes: RankProcesses,
    script: Script,
    folder: Path,
    device: Device,
    ranks: Sequence[WorldSpec],
    model: str | None,
    *,
    how: How,
) -> list[Path]:
    """The ledgers of some ranks. Raises with the first rank's reason where one failed."""
    if not ranks:
        return []
    paths = [folder / f"rank{each.rank}.ledger" for each in ranks]
    requests = [_request(script, path, device, each, model, how) for path, each in zip(paths, ranks, strict=True)]
    codes = processes.record([request for request, _ in requests])
    for path, world, code, (_, failure) in zip(paths, ranks, codes, requests, strict=True):
        if failure.exists():
            kind = UsageError if code == UsageError.exit_code else PlanError
            raise kind(f"rank {world.rank} of {world.size}: {failure.read_text()}")
        if code is not None and (code or not path.exists()):
            raise PlanError(f"rank {world.rank} of {world.size} ended with exit code {code}; see above.")
    return paths


def _request(
    script: Script, path: Path, device: Device, world: WorldSpec, model: str | None, how: How
) -> tuple[Path, Path]:
    """The file that asks for a rank, and the one that says why there is no ledger of it, if there is none."""
    assert world.mail is not None
    request, failure = (Path(world.mail) / name for name in (f"request_{world.rank}.json", f"failure_{world.rank}.txt"))
    failure.unlink(missing_ok=True)  # of an earlier try
    turn = how.turn_of(world.rank)
    request.write_text(
        json.dumps(
            {
                "script": script.path,
                "arguments": list(script.arguments),
                "is_module": script.is_module,
                "path": str(path.absolute()),
                "device": dataclasses.asdict(device),
                # The script may go elsewhere before the model is asked.
                "model": str(Path(model).absolute()) if model is not None and Path(model).exists() else model,
                "world": dataclasses.asdict(world),
                "failure": str(failure),
                "steady": str(_steady(world)),
                "turn": str(_turn_file(world)),
                "slowness": how.slowness,
                "looks_for_rarer": how.looks_for_rarer,
                "looks_for_turns": how.looks_for_turns,
                "given_turn": None if turn is None else dataclasses.asdict(turn),
            }
        )
    )
    return request, failure


def _steady(world: WorldSpec) -> Path:
    """The file that a rank makes which has looked on behind its recorded step, and has seen no step that holds more."""
    assert world.mail is not None
    return Path(world.mail) / f"steady_{world.rank}"


def _turn(world: WorldSpec) -> Turn | TurnOfMessages | None:
    """The turn that a rank has taken for its step; ``None`` where it is another step."""
    file = _turn_file(world)
    return turn_told(json.loads(file.read_text())) if file.exists() else None


def _are_alike(first: Turn | TurnOfMessages | None, other: Turn | TurnOfMessages | None) -> bool:
    """Whether two ranks took the same for their steps: between messages each has its own turns, which meet."""
    if isinstance(first, TurnOfMessages):
        return isinstance(other, TurnOfMessages)
    return first == other


def _turn_file(world: WorldSpec) -> Path:
    assert world.mail is not None
    return Path(world.mail) / f"turn_{world.rank}.json"


# --- which ranks differ ---------------------------------------------------------------------------------------------


def _pipeline(ledger: Path) -> tuple[int, ...]:
    """The ranks of the pipeline that a rank is in, in order of their stages; itself alone where it is in none."""
    with open_ledger(ledger) as opened:
        run = opened.read(DryRun)[-1]
        groups = [each.ranks for each in opened.read(Collective) if each.operation in ("send", "recv") and each.ranks]
    return groups[0] if groups else (run.world.rank if run.world is not None else 0,)


def _sends_by_hand(ledger: Path, mail: Path) -> bool:
    """Whether a rank exchanges messages, and no schedule or stage of torch's pipelines does it."""
    if stage_mail(mail):
        return False
    with open_ledger(ledger) as opened:
        by = {each.launched_by for each in opened.read(Collective) if each.operation in ("send", "recv")}
    return bool(by) and PIPELINE not in by


def _stages(pipeline: Sequence[int]) -> list[int]:
    """The stages of a pipeline that are recorded: of a long one the first, and the last two."""
    ranks = list(pipeline)
    return ranks if len(ranks) <= MOST_RUN else [*ranks[: MOST_RUN - 2], *ranks[-2:]]


def _stage_of(rank: int, pipeline: Sequence[int]) -> int:
    """The rank of a pipeline whose stage another rank has in its own."""
    apart = pipeline[1] - pipeline[0] if len(pipeline) > 1 else 1
    return pipeline[(rank // apart) % len(pipeline)]


def _check_pipeline(pipeline: Sequence[int], world: int) -> None:
    """Raises ``UsageError`` for a pipeline of which a world is no multiple: some ranks would be in none."""
    named = ", ".join(map(str, pipeline[:_MOST_NAMED])) + (", ..." if len(pipeline) > _MOST_NAMED else "")
    try:
        check_mesh(f"rank {pipeline[0]}'s pipeline (ranks {named})", [len(pipeline)], world)
    except UsageError as error:
        raise UsageError(f"{error} With --rank {pipeline[0]} all ranks are taken to be like that one.") from error


def _spread(pipeline: Sequence[int], stages: Sequence[int], world: int) -> list[tuple[int, ...]]:
    """The ranks that each recorded one stands for: those of its stage, and of stages like it that were not recorded.

    >>> _spread((0, 2), (0, 2), 8)
    [(0, 1, 4, 5), (2, 3, 6, 7)]
    """
    recorded = {number: place for place, number in enumerate(stages)}
    middle = recorded[stages[max(0, len(stages) - 3)]]
    found: list[list[int]] = [[] for _ in stages]
    for rank in range(world):
        found[recorded.get(_stage_of(rank, pipeline), middle)].append(rank)
    return [tuple(each) for each in found]


# --- what prices them -----------------------------------------------------------------------------------------------


def program_of(recorded: RecordedRank, device: Device) -> RankProgram:
    """A recorded rank's step as it is priced: its calls, launches, groups, what waits for what, and its memory."""
    with open_ledger(recorded.ledger) as ledger:
        calls = ledger.read(StepCall)
        notes = tuple(note for step in ledger.read(Step) for note in step.notes)
        memory = read_memory(ledger, calls[0].step) if calls else None
        collectives = ledger.read(Collective)
        made = ledger.read(DryRun)[-1].groups
        settings = ledger.run().environment.settings
        launches: dict[str, list[Launch]] = {}
        for launch in ledger.read(Launch):
            launches.setdefault(launch.graph, []).append(launch)
    every = [launch for some in launches.values() for launch in some]
    rounding = rounding_of(settings)
    there = None
    if memory is not None:
        there = memory_on(device, memory, calls, every, convolution_tf32=rounding["convolution_tf32"])
    return RankProgram(
        rank=recorded.rank,
        calls=calls,
        launches=launches,
        groups={group.name: group.ranks for group in made},
        stands_for=recorded.stands_for,
        waits={call.order: call.waits_for for call in calls if call.waits_for},
        peers=_peers(collectives),
        by_fsdp=frozenset(
            each.call for each in collectives if each.call is not None and (each.launched_by or "").startswith("FSDP")
        ),
        by_hand=frozenset(
            each.call
            for each in collectives
            if each.call is not None and each.peer is not None and each.launched_by != PIPELINE
        ),
        knows_waits=True,
        notes=notes,
        peak_allocated_bytes=None if there is None else there.peak_allocated_bytes,
    )


def _peers(collectives: Sequence[Collective]) -> Mapping[int, int]:
    return {
        each.call: each.ranks[each.peer]
        for each in collectives
        if each.call is not None and each.peer is not None and each.peer < len(each.ranks)
    }
