"""Whether a value that a line reads may decide how often a loop goes round, and which value ends it, told from the
program's text.

A solver reads how far it is from its goal and ends there; a check for infinite numbers, an assertion or a line for a
log reads as often, and goes on all the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchledger.program_text import FUNCTIONS, LOOPS, parsed, statements_around, statements_in

_CHECKS = frozenset({"isfinite", "isnan", "isinf"})
"""A loop that ends by one of these has failed."""

_TRAINS = frozenset({"backward", "zero_grad"})
"""A loop in which these are called, or an optimizer's ``step``, goes round once for each step."""

_ASKED = "asked"
"""Stands among names for the condition, or the value, that asks."""

_PASS_TRUTHS_ON = frozenset({"item", "all", "any", "bool", "clone", "cpu", "detach"})

_LENGTHS = frozenset({"len", ".shape", ".size"})

_COLLECTS = frozenset({"append", "appendleft", "extend", "insert", "add", "update"})
"""Methods that keep in their object what they are given."""

_ENDLESS = frozenset({"count", "cycle", "repeat", "iter"})
"""What a ``for`` goes through that has no end of its own."""

_Names = frozenset[str]
"""Variables, and attributes with a dot before them (``.converged``), of whatever object."""

_Truths = Mapping[str, bool]
"""Of such names what they hold where what is read is true; those of which the text does not tell are left out."""


def may_end_a_loop(lines: Sequence[str]) -> bool:
    """Whether what the last of these lines reads may end a loop; True where the text is not there to be read.

    They are those of a stack (``"/home/me/train.py:12"``), each called from the one before. What a function returns,
    and attributes that it sets, is followed to the line that calls it.
    """
    carried: _Names = frozenset()
    for line in reversed(lines):
        found = _Line.find(line)
        if found is None:
            return True
        if found.ends_a_loop(carried):
            return True
        carried = found.carried(carried)
        if not carried:
            return False
    return False


@dataclass(frozen=True)
class Comparison:
    """How a way out of a loop compares what is read: the loop is left where a value is ``above`` a bound, or else below
    it. ``bound`` is the number that the text names, ``None`` where it names a variable."""

    above: bool
    bound: float | None = None


@dataclass(frozen=True)
class ValueLoop:
    """A loop that goes round as long as a value says: a ``while``, or a ``for`` that a value may have it leave.

    ``goes_on`` is the truth that has it go on, where a truth is asked for and the text tells; ``None`` where it follows
    from what is read otherwise. ``is_test`` is True where its own condition asks, False where its body does. One that
    ``trains`` goes round once for each step, and one that counts ends at its last number, too (``ends_anyway``). Where
    what is read says whether a solver takes its step or tries a smaller one, the loop ``advances`` if it is true.
    ``has_end`` is True of a ``for``, which ends with what it goes through; ``left`` tells of it, and of another loop
    that ends anyway, by which numbers it is left before, where the text says so.
    """

    goes_on: bool | None
    is_test: bool
    trains: bool
    counts: bool = False
    advances: bool = False
    has_end: bool = False
    left: Comparison | None = None

    @property
    def ends_anyway(self) -> bool:
        """Whether no value has to end it for the program to go on."""
        return self.trains or self.counts or self.has_end


def value_loop(lines: Sequence[str]) -> ValueLoop | None:
    """The loop that what the last of these lines reads may end; ``None`` where there is none, or no text.

    They are those of a stack, as for ``may_end_a_loop``.
    """
    carried: _Names = frozenset()
    told: _Truths = {}
    trains = chooses = False
    for line in reversed(lines):
        found = _Line.find(line)
        if found is None:
            return None
        chooses = chooses or (not carried and found.chooses())
        told = found.truths(carried, told)
        if (loop := found.value_loop(carried, told)) is not None:
            return replace(loop, trains=loop.trains or trains, advances=loop.advances or chooses)
        trains = trains or found.trains()
        carried = found.carried(carried)
        if not carried:
            return None
        told = {name: truth for name, truth in told.items() if name in carried}
    return None


_RETURNED = "return"
"""Stands among names for what the function at hand returns."""


class _Line:
    """A statement of a program, with the statements around it in its function, innermost first."""

    def __init__(self, around: Sequence[ast.stmt], scope: ast.AST) -> None:
        self._statement, self._around, self._scope = around[0], around, scope

    @classmethod
    def find(cls, line: str) -> _Line | None:
        """``None`` where there is no such text."""
        file, _, number = line.rpartition(":")
        tree = parsed(file)
        if tree is None:
            return None
        around: list[ast.stmt] = []
        scope: ast.AST = tree
        inside: ast.AST = tree
        for inner in statements_around(tree, int(number)):
            if isinstance(inside, FUNCTIONS):
                scope, around = inside, []
            around.insert(0, inner)
            inside = inner
        return cls(around, scope) if around else None

    def ends_a_loop(self, carried: _Names) -> bool:
        """Whether a loop of this function may end by what is read here; of a call that is made here, by what it has
        ``carried`` out."""
        is_read_here = not carried or _RETURNED in carried
        if is_read_here and self._is_check():
            return False
        if is_read_here and isinstance(self._statement, LOOPS):
            return True
        loops = [each for each in self._around if isinstance(each, LOOPS)]
        if not loops:
            return False
        if is_read_here and isinstance(self._statement, ast.If) and _leaves(self._statement):
            return True
        names = self._reached(carried)
        for loop in loops:
            if isinstance(loop, ast.While) and names & _mentioned(loop.test):
                return True
            if any(names & _mentioned(test) and not _checks(test) for test in _ways_out(loop)):
                return True
        return False

    def trains(self) -> bool:
        """Whether the function around it trains."""
        return isinstance(self._scope, FUNCTIONS) and _trains(self._scope)

    def value_loop(self, carried: _Names, told: _Truths) -> ValueLoop | None:
        """The innermost loop of this function that ends by what is read here or was ``carried`` out of a call; ``told``
        is what ``truths`` says."""
        is_read_here = not carried or _RETURNED in carried
        if is_read_here and self._is_check():
            return None
        names = self._reached(carried)
        for loop in (each for each in self._around if isinstance(each, LOOPS)):
            if not isinstance(loop, ast.While):
                if (found := self._for_loop(loop, carried, told)) is not None:
                    return found
                continue
            trains, counts = _trains(loop), _counts(loop)
            if is_read_here and loop is self._statement:
                return ValueLoop(told.get(_ASKED), True, trains, counts)
            if is_read_here and isinstance(self._statement, ast.If) and _leaves(self._statement):
                goes_on = _goes_on(self._statement, told.get(_ASKED))
                left = _left_by(self._statement, self._values(carried), is_asked=True) if trains or counts else None
                return ValueLoop(goes_on, False, trains, counts, left=left)
            if any(names & _mentioned(test) and not _checks(test) for test in (loop.test, *_ways_out(loop))):
                goes_on = _truth_of_going_on(loop, told)
                is_condition = goes_on is None and not carried
                advances = is_condition and self._alone_assigns(names & _mentioned(loop.test), loop)
                left = _left(_own_ways_out(loop), self._values(carried)) if trains or counts else None
                return ValueLoop(goes_on, False, trains, counts, advances, left=left)
        return None

    def _for_loop(self, loop: ast.For | ast.AsyncFor, carried: _Names, told: _Truths) -> ValueLoop | None:
        """A ``for`` around the statement that one of its own ways out may have it leave; ``None`` where none does by
        what is read, or where nothing else ends it."""
        if loop is self._statement or {each.removeprefix(".") for each in _mentioned(loop.iter)} & _ENDLESS:
            return None
        names, values = self._reached(carried), self._values(carried)
        ways = _own_ways_out(loop)
        if (not carried or _RETURNED in carried) and isinstance(self._statement, ast.If) and self._statement in ways:
            goes_on = _goes_on(self._statement, told.get(_ASKED))
            left = _left_by(self._statement, values, is_asked=True)
            return ValueLoop(goes_on, False, _trains(loop), has_end=True, left=left)
        ways = [each for each in ways if names & _mentioned(each.test) and not _checks(each.test)]
        if not ways:
            return None
        truths = (_goes_on(each, _truth_of(each.test, told)) for each in ways)
        goes_on = next((each for each in truths if each is not None), None)
        return ValueLoop(goes_on, False, _trains(loop), has_end=True, left=_left(ways, values))

    def truths(self, carried: _Names, told: _Truths) -> _Truths:
        """What the names of this function hold where what is read is true; ``told`` is the same of what was ``carried``
        out of a call.

        A name is told once: of one that is assigned in several ways the first that tells decides.
        """
        known = {name: truth for name, truth in told.items() if name != _RETURNED}
        asked, value = told.get(_RETURNED) if carried else True, _decides(self._statement)
        if asked is not None and value is not None and (not carried or isinstance(_asking(value), ast.Call)):
            known[_ASKED] = asked ^ _is_contrary(value)
            known |= {name: truth for name, truth in _told_by(self._statement, known[_ASKED]) if name not in known}
        statements = [each for each in ast.walk(self._scope) if isinstance(each, ast.stmt)]
        while True:
            further = {
                name: truth
                for each in statements
                if (test := _decides(each)) is not None and (follows := _truth_of(test, known)) is not None
                for name, truth in _told_by(each, follows)
                if name not in known
            }
            if not further:
                return known
            known |= further

    def chooses(self) -> bool:
        """Whether it is an ``if`` that assigns the same names either way."""
        if not isinstance(self._statement, ast.If) or _leaves(self._statement):
            return False
        ways = self._statement.body, self._statement.orelse
        taken, other = (frozenset[str]().union(*map(_assigned_by, way)) for way in ways)
        return bool(taken & other)

    def _alone_assigns(self, names: _Names, loop: ast.While) -> bool:
        """Whether names change in a loop only where this ``if`` holds."""
        if not names or not isinstance(self._statement, ast.If):
            return False
        inside = set(ast.walk(self._statement))
        others = (each for each in ast.walk(loop) if isinstance(each, ast.stmt) and each not in inside)
        simple = (each for each in others if not isinstance(each, (ast.If, *LOOPS)))
        return not any(names & _assigned_by(each) for each in simple)

    def carried(self, carried: _Names) -> _Names:
        """What tells the caller of this function of what is read here."""
        names = self._reached(carried)
        is_returned = any(name == _RETURNED for name, _ in _told_by(self._statement, True))
        if (is_returned and (not carried or _RETURNED in carried)) or any(
            isinstance(each, ast.Return) and each.value is not None and names & _mentioned(each.value)
            for each in ast.walk(self._scope)
        ):
            names |= {_RETURNED}
        return frozenset(each for each in names if each == _RETURNED or each.startswith("."))

    def _values(self, carried: _Names) -> _Names:
        """Of the names that ``_reached`` tells those that hold what is read, or what is made of it: a count of rounds
        without progress does not."""
        return self._reached(carried, by_ways=False)

    def _reached(self, carried: _Names, *, by_ways: bool = True) -> _Names:
        """The names whose values follow from what is read here, or from what was ``carried`` out of a call; those too
        that are assigned in one of the ways that it decides (``by_ways``)."""
        reached = frozenset(each for each in carried if each.startswith("."))
        follows = [
            each
            for each in ast.walk(self._scope)
            if isinstance(each, ast.stmt) and (by_ways or not isinstance(each, (ast.If, *LOOPS)))
        ]
        is_read_here = not carried or _RETURNED in carried
        if is_read_here and not self._is_check() and (by_ways or self._statement in follows):
            reached |= _assigned_by(self._statement)
        while True:
            further = frozenset[str]().union(
                *(_assigned_by(each) for each in follows if (value := _decides(each)) and reached & _mentioned(value))
            )
            if further <= reached:
                return reached
            reached |= further

    def _is_check(self) -> bool:
        """Whether what is read says that numbers are finite: by the statement's text, or by that of what it asks."""
        value = _decides(self._statement)
        if value is None:
            return False
        names = _mentioned(value)
        return _checks(value) or any(
            _assigned_by(each) & names and _checks(made)
            for each in ast.walk(self._scope)
            if isinstance(each, (ast.Assign, ast.AnnAssign)) and (made := each.value) is not None
        )


def _told_by(statement: ast.stmt, truth: bool) -> Iterator[tuple[str, bool]]:
    """What a statement assigns or returns where the expression that decides it is of that ``truth`` when what is read
    is true: the expression itself, or in either way of a condition ``True`` or ``False``."""
    if isinstance(statement, ast.If):
        for way, sign in ((statement.body, truth), (statement.orelse, not truth)):
            for each in way:
                written = getattr(each, "value", None)
                if isinstance(written, ast.Constant) and isinstance(written.value, bool):
                    yield from _told_by(each, sign == written.value)
    elif isinstance(statement, ast.Return):
        yield _RETURNED, truth
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield next(iter(_targets_in(target))), truth


def _truth_of(expression: ast.expr, told: _Truths) -> bool | None:
    """Which truth an expression has where what is read is true; ``None`` where its text does not say."""
    if isinstance(expression, ast.Name):
        return told.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return told.get(f".{expression.attr}")
    if isinstance(expression, ast.UnaryOp) and isinstance(expression.op, (ast.Not, ast.Invert)):
        truth = _truth_of(expression.operand, told)
        return None if truth is None else not truth
    if isinstance(expression, ast.Call):
        is_bool = isinstance(expression.func, ast.Name) and expression.func.id == "bool" and len(expression.args) == 1
        if is_bool:
            return _truth_of(expression.args[0], told)
        is_passed_on = isinstance(expression.func, ast.Attribute) and expression.func.attr in _PASS_TRUTHS_ON
        return _truth_of(expression.func.value, told) if is_passed_on else None  # type: ignore[attr-defined]
    parts: Sequence[ast.expr] = ()
    if isinstance(expression, ast.BoolOp):
        parts = expression.values
    elif isinstance(expression, ast.BinOp) and isinstance(expression.op, (ast.BitAnd, ast.BitOr)):
        parts = expression.left, expression.right
    truths = {truth for part in parts if (truth := _truth_of(part, told)) is not None}
    return truths.pop() if len(truths) == 1 else None


def _truth_of_going_on(loop: ast.While, told: _Truths) -> bool | None:
    """Which truth of what is read has a loop go on, by its condition or a way out of it."""
    if (truth := _truth_of(loop.test, told)) is not None:
        return truth
    ways = (each for each in ast.walk(loop) if isinstance(each, ast.If) and _leaves(each))
    return next((goes_on for way in ways if (goes_on := _goes_on(way, _truth_of(way.test, told))) is not None), None)


def _goes_on(way_out: ast.If, truth: bool | None) -> bool | None:
    """Which truth of what is read does not leave the loop by an ``if``, whose condition has that ``truth`` where what
    is read is true."""
    leaves_if = any(_may_leave(each) for each in way_out.body)
    return None if truth is None else truth ^ leaves_if


def _decides(statement: ast.stmt) -> ast.expr | None:
    """The expression that decides what a statement assigns, or whether."""
    if isinstance(statement, (ast.If, ast.While)):
        return statement.test
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return statement.iter
    value = getattr(statement, "value", None)
    return value if isinstance(value, ast.expr) else None


def _assigned_by(statement: ast.stmt) -> _Names:
    """What a statement assigns; a conditional what either of its ways does."""
    if isinstance(statement, ast.If):
        return frozenset[str]().union(*(_assigned_by(each) for each in (*statement.body, *statement.orelse)))
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Expr):
        called = statement.value.func if isinstance(statement.value, ast.Call) else None
        targets = (called.value,) if isinstance(called, ast.Attribute) and called.attr in _COLLECTS else ()
    elif isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = (statement.target,)
    named = [each.target for each in ast.walk(statement) if isinstance(each, ast.NamedExpr)]
    return frozenset[str]().union(*(_targets_in(each) for each in (*targets, *named)))


def _targets_in(target: ast.expr) -> _Names:
    if isinstance(target, (ast.Tuple, ast.List)):
        return frozenset[str]().union(*map(_targets_in, target.elts))
    if isinstance(target, (ast.Subscript, ast.Starred)):
        return _targets_in(target.value)
    if isinstance(target, ast.Attribute):
        return frozenset({f".{target.attr}"})
    return frozenset({target.id} if isinstance(target, ast.Name) else ())


def _mentioned(expression: ast.expr) -> _Names:
    found = list(ast.walk(expression))
    names = {each.id for each in found if isinstance(each, ast.Name)}
    return frozenset(names | {f".{each.attr}" for each in found if isinstance(each, ast.Attribute)})


def _trains(node: ast.AST) -> bool:
    inside = list(ast.walk(node))
    calls_back = any(isinstance(each, ast.Attribute) and each.attr in _TRAINS for each in inside)
    return calls_back or any(_is_optimizer_step(each) for each in inside if isinstance(each, ast.Call))


def _is_optimizer_step(call: ast.Call) -> bool:
    """Whether it is an optimizer's, by its name or by what it is given to call; simulations and solvers step, too."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "step":
        return False
    return "opt" in ast.unparse(call.func.value).lower() or "closure" in map(ast.unparse, call.args)


def _is_contrary(test: ast.expr) -> bool:
    """Whether a condition holds where what it asks does not: of several that must hold, of the last that asks."""
    last = _last_that_asks(test)
    return isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.Not)


def _asking(test: ast.expr) -> ast.expr:
    """What a condition asks, or the contrary of which."""
    last = _last_that_asks(test)
    return last.operand if isinstance(last, ast.UnaryOp) and isinstance(last.op, ast.Not) else last


def _last_that_asks(test: ast.expr) -> ast.expr:
    asks = [each for each in _parts(test) if any(isinstance(inner, ast.Call) for inner in ast.walk(each))]
    return asks[-1] if asks else test


def _counts(loop: ast.While) -> bool:
    """Whether a loop ends at a number of rounds or a length, by its own condition or a way out of it."""
    counted = {
        each.target.id
        for each in ast.walk(loop)
        if isinstance(each, ast.AugAssign)
        and isinstance(each.target, ast.Name)
        and isinstance(each.value, ast.Constant)
    }
    return any(
        isinstance(part, ast.Compare) and bool(_mentioned(part) & (counted | _LENGTHS))
        for test in (loop.test, *_ways_out(loop))
        for part in _parts(test)
    )


def _parts(test: ast.expr) -> Sequence[ast.expr]:
    return test.values if isinstance(test, ast.BoolOp) else (test,)


def _checks(expression: ast.expr) -> bool:
    return bool({each.removeprefix(".") for each in _mentioned(expression)} & _CHECKS)


def _left(ways: Sequence[ast.If], names: _Names) -> Comparison | None:
    """How the first way out that tells compares what ``names`` hold."""
    return next((found for way in ways if (found := _left_by(way, names)) is not None), None)


def _left_by(way: ast.If, names: _Names, *, is_asked: bool = False) -> Comparison | None:
    """How a way out of a loop compares what ``names`` hold, or what it reads itself (``is_asked``); ``None`` where its
    text does not tell. Of several conditions the first that compares decides."""
    leaves_if = any(_may_leave(each) for each in way.body)
    for test in _parts(way.test):
        is_contrary = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
        compared = test.operand if isinstance(test, ast.UnaryOp) and is_contrary else test
        if not isinstance(compared, ast.Compare) or len(compared.ops) > 1:
            continue
        by, left, right = compared.ops[0], compared.left, compared.comparators[0]
        first, second = (_grows(each, names, is_asked=is_asked) for each in (left, right))
        if not isinstance(by, _ORDERS) or first is None or second is None or bool(first) == bool(second):
            continue
        is_above = isinstance(by, (ast.Gt, ast.GtE)) ^ bool(second) ^ (first + second < 0)
        bound = _number_in(right if first else left) if first + second > 0 else None
        return Comparison(is_above ^ is_contrary ^ (not leaves_if), bound)
    return None


_ORDERS = (ast.Gt, ast.GtE, ast.Lt, ast.LtE)


def _grows(expression: ast.expr, names: _Names, *, is_asked: bool) -> int | None:
    """Whether an expression grows (1) or falls (-1) with what is read, does not hold it (0), or is told of neither
    (``None``), as a difference between two values is."""
    parts: Sequence[ast.expr]
    if isinstance(expression, ast.UnaryOp):
        parts, signs = [expression.operand], [-1 if isinstance(expression.op, ast.USub) else 1]
    elif isinstance(expression, ast.BinOp):
        parts = [expression.left, expression.right]
        signs = [1, -1 if isinstance(expression.op, (ast.Sub, ast.Div)) else 1]
    elif isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "len":
        return 0
    else:
        calls = is_asked and any(isinstance(each, ast.Call) for each in ast.walk(expression))
        return int(calls or bool(names & _mentioned(expression)))
    ways = [_grows(each, names, is_asked=is_asked) for each in parts]
    found = {None if way is None else way * sign for way, sign in zip(ways, signs, strict=True)} - {0}
    return found.pop() if len(found) == 1 else None if found else 0


def _number_in(expression: ast.expr) -> float | None:
    """The number that an expression writes out; ``None`` where it names anything else."""
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError):
        return None
    return float(value) if isinstance(value, (int, float)) else None


def _own_ways_out(loop: ast.stmt) -> list[ast.If]:
    """The conditions under which a loop itself is left, not one inside it; functions that it defines are others."""
    found: list[ast.If] = []

    def look(statement: ast.stmt, *, is_inside: bool) -> None:
        for each in statements_in(statement):
            if isinstance(each, (*FUNCTIONS, ast.ClassDef)):
                continue
            if isinstance(each, ast.If) and any(
                _may_leave(one, is_inside=is_inside) for one in (*each.body, *each.orelse)
            ):
                found.append(each)
            look(each, is_inside=is_inside or isinstance(each, LOOPS))

    look(loop, is_inside=False)
    return found


def _ways_out(loop: ast.stmt) -> list[ast.expr]:
    """The conditions in a loop under which it may be left."""
    return [each.test for each in ast.walk(loop) if isinstance(each, ast.If) and _leaves(each)]


def _leaves(statement: ast.If) -> bool:
    """Whether one of its ways leaves the loop around it."""
    return any(_may_leave(each) for each in (*statement.body, *statement.orelse))


def _may_leave(statement: ast.stmt, *, is_inside: bool = False) -> bool:
    """Whether a statement may leave the loop around it; a break ``is_inside`` another loop leaves that one."""
    if isinstance(statement, ast.Return) or (isinstance(statement, ast.Break) and not is_inside):
        return True
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return False
    is_inside = is_inside or isinstance(statement, LOOPS)
    return any(_may_leave(each, is_inside=is_inside) for each in statements_in(statement))
