"""What runs before a launch in its step: the wrapper's own lines, so that the cache can be put into the state it meets.

A kernel alone finds its inputs in the cache (warm) or nowhere in it (cold). Inside the step it finds what the launches
before it have left there, which lies between. The *lead-in* of a launch is the piece of the generated wrapper before
it, allocations and frees included, that moves at least as many bytes as are given; like a call site it is text only.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchledger.nouns import Launch
from torchledger.replaying.call_site import Allocation, CallSites
from torchledger.replaying.sizes import CannotReplay

MOST_LAUNCHES = 64
"""More launches than this do not come before one, however little they move."""


@dataclass(frozen=True)
class LeadIn:
    """The piece of a wrapper that ends in one launch.

    ``launches`` are the ids of those before it, ``bytes_moved`` their minimum traffic. ``setup``, ``before`` and
    ``stream`` are those of a call site; ``statements`` run before the launch, which ``call`` makes. ``definitions`` are
    all kernels of the piece by name, ``arguments`` the names that it needs from outside.
    """

    launches: tuple[str, ...]
    bytes_moved: int
    definitions: tuple[tuple[str, str], ...]
    setup: tuple[Allocation | str, ...]
    before: tuple[str, ...]
    stream: tuple[str, ...]
    statements: tuple[str, ...]
    call: str
    arguments: tuple[str, ...]

    @property
    def signature(self) -> str:
        """Equal for pieces that do the same work; the names of tensors are left out."""
        lines = [step.code if isinstance(step, Allocation) else step for step in self.setup]
        lines += [*self.before, *self.statements, self.call]
        own = {name for line in (*self.statements, self.call) for name in _STORED.findall(line)}
        own.update(self.arguments)
        own.update(line.partition(" = ")[0] for line in lines if " = " in line)
        numbers: dict[str, str] = {}

        def rename(found: re.Match[str]) -> str:
            name = found[0]
            return numbers.setdefault(name, f"n{len(numbers)}") if name in own else name

        return _IDENTIFIER.sub(rename, "\n".join(lines))


_IDENTIFIER = re.compile(r"\b[A-Za-z_]\w*\b")
_STORED = re.compile(r"^([A-Za-z_]\w*) = ")
_CHECKS = ("assert_size_stride(", "assert_alignment(")


def find_lead_in(sites: CallSites, launch: Launch, *, window_bytes: int, most: int = MOST_LAUNCHES) -> LeadIn:
    """The lines before ``launch`` that move ``window_bytes``, or all that its graph has.

    Raises ``CannotReplay`` if the launch, or a name that the lines need, cannot be found in the wrapper.
    """
    if launch.wrapper_line is None:
        raise CannotReplay(f"{launch.launch_id} has no line in the generated code that calls it.")
    finder = sites.builder()
    function, statement = finder.statement(launch.wrapper_line)
    block, places = _block(function, statement)
    last = places[statement]
    before: list[tuple[int, Launch]] = []
    for other in reversed([other for other in sites.launches if other.order < launch.order]):
        if len(before) >= most + _MORE_LAUNCHES:
            break
        place = None if other.wrapper_line is None else places.get(finder.statement(other.wrapper_line)[1])
        if place is None or place > last:
            break
        before.append((place, other))
    count, moved = 0, 0
    while count < min(most, len(before)) and moved < window_bytes:
        moved += before[count][1].bytes_moved or 0
        count += 1
    while True:
        chosen = before[:count]
        try:
            return _cut(sites, launch, function, block[min([last, *(place for place, _ in chosen)]) : last + 1], chosen)
        except CannotReplay:
            # A call of several results stands before the piece and is unpacked in it: let the piece begin earlier.
            if count >= min(len(before), most + _MORE_LAUNCHES):
                raise
            count += 1


_MORE_LAUNCHES = 20


def _cut(
    sites: CallSites,
    launch: Launch,
    function: ast.FunctionDef,
    piece: list[ast.stmt],
    chosen: list[tuple[int, Launch]],
) -> LeadIn:
    """The piece as text, with what it needs from outside."""
    others = [other for _, other in reversed(chosen)]
    builder = sites.builder(*others, launch)
    needed: dict[str, None] = {}
    made: set[str] = set()
    lines: list[str] = []
    for part in _without_checks(piece):
        for name in builder.needed(part):
            if name not in made and name not in needed:
                needed[name] = None
                builder.resolve(name, function, piece[0].lineno)
        kept = _only(part, made | set(needed)) if isinstance(part, ast.Delete) else part
        if kept is not None:
            lines.append(_text(kept) if kept is part else ast.unparse(kept))
        made.update(_stored(part))
    return LeadIn(
        launches=tuple(other.launch_id for other in others),
        bytes_moved=sum(other.bytes_moved or 0 for other in others),
        definitions=tuple(builder.used.items()),
        setup=builder.bounded_setup(),
        before=tuple(builder.before),
        stream=tuple(dict.fromkeys(builder.stream)),
        statements=tuple(lines[:-1]),
        call=lines[-1],
        arguments=tuple(name for name in needed if name in builder.known),
    )


def lead_in_text(lead_in: LeadIn) -> str:
    """``make_led_inputs() -> dict``, ``prepare_led(...)`` and ``run_led(mark, ...)``, which calls ``mark`` before and
    after the launch."""
    made = [step.code if isinstance(step, Allocation) else step for step in lead_in.setup]
    workspaces = dict.fromkeys(line.partition(".")[0] for line in lead_in.before)
    names = tuple(dict.fromkeys([*lead_in.arguments, *workspaces]))
    returned = ", ".join(f"{name}={name}" for name in names)
    pieces = [
        ("def make_led_inputs():", ["torch.manual_seed(0)", *made, f"return dict({returned})"]),
        (f"def prepare_led({', '.join([*workspaces, '**others'])}):", list(lead_in.before) or ["pass"]),
        (
            f"def run_led({', '.join(['mark', *lead_in.arguments, '**others'])}):",
            [*lead_in.stream, *lead_in.statements, "mark()", lead_in.call, "mark()"],
        ),
    ]
    return "\n\n".join(
        "\n".join([head, *(f"    {line}" for text in body for line in text.splitlines())]) + "\n"
        for head, body in pieces
    )


def _block(function: ast.FunctionDef, statement: ast.stmt) -> tuple[list[ast.stmt], dict[ast.stmt, int]]:
    """The block of statements that one stands in, and the place of each in it."""
    for block, places in _blocks(function):
        if statement in places:
            return block, places
    raise CannotReplay(f"{ast.unparse(statement)[:60]} stands in no block of the generated code.")


@functools.lru_cache(maxsize=64)
def _blocks(function: ast.FunctionDef) -> list[tuple[list[ast.stmt], dict[ast.stmt, int]]]:
    blocks = [
        block
        for node in ast.walk(function)
        for block in (getattr(node, "body", None), getattr(node, "orelse", None), getattr(node, "finalbody", None))
        if isinstance(block, list) and block
    ]
    return [(block, {statement: place for place, statement in enumerate(block)}) for block in blocks]


def _without_checks(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        if not (isinstance(statement, ast.Expr) and _text(statement).startswith(_CHECKS)):
            yield statement


def _only(statement: ast.Delete, names: set[str]) -> ast.Delete | None:
    """Of ``del a, b`` what the piece has: what is only freed in it was never made."""
    kept = [target for target in statement.targets if isinstance(target, ast.Name) and target.id in names]
    return ast.Delete(targets=list(kept)) if kept else None


@functools.lru_cache(maxsize=8192)
def _text(statement: ast.stmt) -> str:
    return ast.unparse(statement)


@functools.lru_cache(maxsize=8192)
def _stored(statement: ast.stmt) -> frozenset[str]:
    """The names that a statement makes."""
    names = (node for node in ast.walk(statement) if isinstance(node, ast.Name))
    return frozenset(node.id for node in names if isinstance(node.ctx, ast.Store))
