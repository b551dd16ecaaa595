"""A loop body of a fused kernel: what each statement reads and writes, where, and under which conditions."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from torchledger._torch.loops import LoopProgram, Ref, Statement, TensorLayout
from torchledger.capturing.computed_index import ComputedIndices
from torchledger.capturing.index_trees import index_text
from torchledger.capturing.traffic import Bound, IndexedAccess
from torchledger.nouns import Access

_PLUMBING = frozenset(
    {
        *("load", "load_seed", "store", "store_reduction", "constant", "index_expr", "value_expr", "set_indirect"),
        *("masked", "getitem", "check_bounds", "output", "device_assert_async", "reduction"),
    }
)
"""Statements that move values or addresses and compute nothing."""

_FREE = _PLUMBING | frozenset(
    {
        *("to_dtype", "to_dtype_bitcast", "identity", "trunc_to_int", "ceil_to_int", "floor_to_int", "round_to_int"),
        *("where", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit", "bucketize", "sort"),
        *("and_", "or_", "xor", "invert", "logical_and", "logical_or", "logical_not", "logical_xor"),
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"),
        *("lshift", "rshift"),
    }
)
"""Statements that are no FLOP: casts, comparisons, selections, bits; anything else is one (``fma`` two)."""

_STORES = ("store", "store_reduction")
_ROOTS = (*_STORES, "device_assert_async", "partial_accumulate")


def _share_repeats(program: LoopProgram) -> LoopProgram:
    """The program with each value computed once: code generation reuses a statement that says the same again."""
    statements: list[Statement] = []
    places: list[Ref] = []
    known: dict[Any, Ref] = {}
    renamed: dict[str, str] = {}

    def rewrite(argument: Any) -> Any:
        if isinstance(argument, Ref):
            return places[argument.place]
        if isinstance(argument, tuple):
            return tuple(map(rewrite, argument))
        if renamed and isinstance(argument, sympy.Expr) and not renamed.keys().isdisjoint(_names(argument)):
            repeats = [symbol for symbol in argument.free_symbols if symbol.name in renamed]
            firsts = [sympy.Symbol(renamed[symbol.name], **symbol.assumptions0) for symbol in repeats]
            return argument.xreplace(dict(zip(repeats, firsts, strict=True)))
        return argument

    for statement in program.statements:
        rewritten = Statement(statement.name, rewrite(statement.arguments), rewrite(statement.masks))
        if statement.name == "set_indirect":
            source, symbol = rewritten.arguments
            key: Any = ("set_indirect", source, program.indirect.get(symbol), rewritten.masks)
        else:
            key = rewritten
        if statement.name in _ROOTS or key not in known:
            statements.append(rewritten)
            known[key] = Ref(len(statements) - 1)
        elif statement.name == "set_indirect":
            renamed[symbol] = statements[known[key].place].arguments[1]
        places.append(known[key])
    return replace(program, statements=tuple(statements))


class Body:
    """A loop body with what each of its statements is needed for."""

    def __init__(self, program: LoopProgram) -> None:
        program = _share_repeats(program)
        self.program = program
        self.statements = program.statements
        self.sizes = {symbol.name: size for symbol, size in (*program.loops, *program.reduced)}
        self._setters = {
            statement.arguments[1]: place
            for place, statement in enumerate(self.statements)
            if statement.name == "set_indirect"
        }
        self._computed = ComputedIndices(self.statements, self.sizes, program.indirect)
        self.live = self._reached(follow_addresses=True)
        self._computing = self._reached(follow_addresses=False)
        self._reducing = self._after_reductions()
        self._conditions: dict[int, _Condition] = {}
        self._depends: dict[int, frozenset[str]] = {}

    # --- what is needed ---------------------------------------------------------------------------------------------

    def _reached(self, *, follow_addresses: bool) -> set[int]:
        """Statements that something stored depends on; with ``follow_addresses``, through indices and masks too."""
        reached: set[int] = set()
        pending = [place for place, statement in enumerate(self.statements) if statement.name in _ROOTS]
        while pending:
            place = pending.pop()
            if place in reached:
                continue
            reached.add(place)
            statement = self.statements[place]
            arguments: Iterable[Any] = statement.arguments
            if follow_addresses:
                pending.extend(mask.place for mask in statement.masks)
                pending.extend(self._setters[name] for name in self._symbols(statement) if name in self._setters)
            elif statement.name == "masked":
                arguments = statement.arguments[1:]
            elif statement.name == "set_indirect":
                continue
            pending.extend(ref.place for ref in _refs(arguments))
        return reached

    def _after_reductions(self) -> set[int]:
        """Statements that work on the result of a reduction: once per pointwise iteration."""
        after: set[int] = set()
        for place, statement in enumerate(self.statements):
            sources = [ref.place for ref in _refs(statement.arguments)]
            if any(source in after or self.statements[source].name == "reduction" for source in sources):
                after.add(place)
        return after

    def _symbols(self, statement: Statement) -> set[str]:
        return set().union(*(_names(argument) for argument in _flat(statement.arguments)))

    # --- operations -------------------------------------------------------------------------------------------------

    def vector_flops(self) -> int:
        pointwise = math.prod(size for _, size in self.program.loops)
        everything = pointwise * math.prod(size for _, size in self.program.reduced)
        total = 0
        for place in self._computing:
            statement = self.statements[place]
            if statement.name == "reduction":
                total += everything
            elif statement.name == "scan":
                total += everything * len(list(_refs(statement.arguments[1:])))
            elif statement.name not in _FREE:
                iterations = pointwise if place in self._reducing else everything
                total += iterations * (2 if statement.name == "fma" else 1)
        return total

    def operations(self) -> Counter[str]:
        names: Counter[str] = Counter()
        for place in self._computing:
            statement = self.statements[place]
            if statement.name == "reduction":
                names[str(statement.arguments[2])] += 1
            elif statement.name not in _PLUMBING:
                names[statement.name] += 1
        return Counter(dict(sorted(names.items())))

    def reduction_type(self) -> str | None:
        types = [str(statement.arguments[2]) for statement in self.statements if statement.name == "reduction"]
        types += [statement.name for statement in self.statements if statement.name in ("scan", "sort")]
        types += [str(s.arguments[1]) for s in self.statements if s.name == "partial_accumulate"]
        return "+".join(dict.fromkeys(types)) or None

    # --- accesses ---------------------------------------------------------------------------------------------------

    def memory_statements(self) -> list[int]:
        memory = ("load", "load_seed", *_STORES, "bucketize")
        return [place for place, statement in enumerate(self.statements) if statement.name in memory]

    def access(self, place: int, name: str, dtype: str | None) -> Access:
        statement = self.statements[place]
        index = _index_of(statement)
        loops = [symbol for symbol, _ in (*self.program.loops, *self.program.reduced)]
        return Access(
            buffer=name,
            kind=_kind(statement),
            index=index_text(index),
            strides=_strides(index, loops),
            dtype=dtype,
            is_indirect=statement.name == "bucketize" or not _names(index) <= set(self.sizes),
        )

    def indexed_access(self, place: int, layout: TensorLayout | None) -> IndexedAccess:
        """The addresses of one memory statement, for counting."""
        statement = self.statements[place]
        loops = {symbol.name: (symbol, size) for symbol, size in (*self.program.loops, *self.program.reduced)}
        if statement.name == "bucketize":
            # A binary search looks at one value in each halving of the boundaries.
            numel = math.prod(layout.size) if layout is not None else 0
            position, step = sympy.symbols("position step", integer=True, nonnegative=True)
            searches = (*loops.values(), (step, numel.bit_length() + 1))
            return IndexedAccess(position, searches, indirect=((position, numel),))
        index = _index_of(statement)
        condition = _all_of(self._condition(mask.place) for mask in statement.masks)
        direct = _names(index).union(*(_names(bound.expression) for bound in condition.bounds)) & set(loops)
        from_data = [symbol for symbol in index.free_symbols if symbol.name in self._setters]
        depends = {symbol: self._dependencies(self._setters[symbol.name]) for symbol in from_data}
        computed = {
            symbol: values for symbol in from_data if (values := self._computed.values(symbol.name)) is not None
        }
        indirect: list[tuple[sympy.Symbol, int]] = []
        is_masked = not condition.is_complete
        if len(computed) == len(from_data):
            walked = []
            for number, (symbol, values) in enumerate(computed.items()):
                others = direct.union(*(depends[other] for other in computed if other != symbol))
                # Values that move together with another part of the index do not reach all combinations.
                is_masked = is_masked or bool(depends[symbol] & others)
                position = sympy.Symbol(f"position{number}", integer=True, nonnegative=True)
                index = index.xreplace({symbol: values.first + values.step * position})
                walked.append((position, values.count))
            needed = (*(loops[name] for name in loops if name in direct), *walked)
        else:
            direct = direct.union(*depends.values())
            needed = tuple(loops[name] for name in loops if name in direct)
            sizes = self.program.indirect
            indirect = [(symbol, size) for symbol in from_data if (size := sizes.get(symbol.name)) is not None]
        return IndexedAccess(index, needed, _kind(statement), condition.bounds, is_masked, tuple(indirect))

    def _dependencies(self, place: int) -> frozenset[str]:
        """The loops that the value of a statement changes with."""
        if place not in self._depends:
            statement = self.statements[place]
            found: set[str] = set()
            for ref in (*_refs(statement.arguments), *statement.masks):
                found |= self._dependencies(ref.place)
            for name in self._symbols(statement):
                if name in self._setters:
                    found |= self._dependencies(self._setters[name])
            found |= self._symbols(statement) & set(self.sizes)
            if statement.name == "reduction":
                found -= {symbol.name for symbol, _ in self.program.reduced}
            elif statement.name in ("scan", "sort", "rand", "randn", "randint64"):
                found |= set(self.sizes)
            self._depends[place] = frozenset(found)
        return self._depends[place]

    # --- masks ------------------------------------------------------------------------------------------------------

    def _condition(self, place: int) -> _Condition:
        """What is known of a boolean value as bounds on index expressions."""
        if place not in self._conditions:
            self._conditions[place] = self._read_condition(self.statements[place])
        return self._conditions[place]

    def _read_condition(self, statement: Statement) -> _Condition:
        name, arguments = statement.name, statement.arguments
        if name in ("and_", "logical_and", "bitwise_and"):
            return _all_of(self._condition(part.place) if isinstance(part, Ref) else _OPAQUE for part in arguments[:2])
        if name == "constant":
            return _Condition((), True) if arguments[0] is True else _OPAQUE
        if name in ("to_dtype", "identity") and isinstance(arguments[0], Ref):
            return self._condition(arguments[0].place)
        if name in ("logical_not", "bitwise_not", "invert") and isinstance(arguments[0], Ref):
            return _negated(self._condition(arguments[0].place))
        if name in ("lt", "le", "gt", "ge", "eq"):
            left, right = (self._index_value(part) for part in arguments[:2])
            if left is None or right is None:
                return _OPAQUE
            difference = left - right
            low, high = {"lt": (None, -1), "le": (None, 0), "gt": (1, None), "ge": (0, None), "eq": (0, 0)}[name]
            return _Condition((Bound(difference, low, high),), True)
        return _OPAQUE

    def _index_value(self, value: Any) -> sympy.Expr | None:
        """A value that is an integer expression of the loops."""
        if isinstance(value, bool):
            return None
        if isinstance(value, int):
            return sympy.Integer(value)
        if isinstance(value, float):
            return sympy.Integer(int(value)) if value.is_integer() else None
        if isinstance(value, sympy.Expr):
            return value
        if not isinstance(value, Ref):
            return None
        name, arguments = self.statements[value.place].name, self.statements[value.place].arguments
        if name in ("index_expr", "value_expr", "constant"):
            return self._index_value(arguments[0])
        if name == "to_dtype" and str(arguments[1]).startswith(("int", "uint")):
            return self._index_value(arguments[0])
        if name in ("add", "sub", "mul"):
            left, right = (self._index_value(part) for part in arguments[:2])
            if left is None or right is None:
                return None
            return {"add": left + right, "sub": left - right, "mul": left * right}[name]
        return None


@dataclass(frozen=True)
class _Condition:
    """A conjunction of bounds; ``is_complete`` says that it holds exactly where the bounds do."""

    bounds: tuple[Bound, ...]
    is_complete: bool


_OPAQUE = _Condition((), False)


def _all_of(conditions: Iterable[_Condition]) -> _Condition:
    bounds: dict[Bound, None] = {}
    is_complete = True
    for condition in conditions:
        bounds.update(dict.fromkeys(condition.bounds))
        is_complete = is_complete and condition.is_complete
    return _Condition(tuple(bounds), is_complete)


def _negated(condition: _Condition) -> _Condition:
    if condition.is_complete and len(condition.bounds) == 1:
        bound = condition.bounds[0]
        if bound.low is None and bound.high is not None:
            return _Condition((Bound(bound.expression, bound.high + 1, None),), True)
        if bound.high is None and bound.low is not None:
            return _Condition((Bound(bound.expression, None, bound.low - 1),), True)
    return _OPAQUE


def _kind(statement: Statement) -> Any:
    if statement.name in _STORES:
        mode = statement.arguments[3] if len(statement.arguments) > 3 else None
        return "atomic" if mode and str(mode).startswith("atomic") else "store"
    return "load"


def _index_of(statement: Statement) -> sympy.Expr:
    if statement.name == "bucketize":
        return sympy.Symbol("position", integer=True)
    index = statement.arguments[1]
    return index if isinstance(index, sympy.Expr) else sympy.Integer(index)


def _strides(index: sympy.Expr, loops: Sequence[sympy.Symbol]) -> tuple[int | None, ...]:
    """The step of an index per loop; ``None`` where the loop is inside a division, a remainder or a product."""
    steps: dict[Any, int | None] = dict.fromkeys(loops, 0)
    for term in index.args if index.is_Add else (index,):
        factor, rest = term.as_coeff_Mul()
        if rest.is_Symbol and factor.is_Integer:
            if rest in steps and steps[rest] is not None:
                steps[rest] = (steps[rest] or 0) + int(factor)
        else:
            for symbol in term.free_symbols:
                if symbol in steps:
                    steps[symbol] = None
    return tuple(steps[loop] for loop in loops)


def _names(expression: Any) -> frozenset[str]:
    return _symbol_names(expression) if isinstance(expression, sympy.Expr) else frozenset()


@functools.lru_cache(maxsize=16384)
def _symbol_names(expression: sympy.Expr) -> frozenset[str]:
    return frozenset(symbol.name for symbol in expression.free_symbols)


def _flat(arguments: Iterable[Any]) -> Iterable[Any]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _flat(argument)
        else:
            yield argument


def _refs(arguments: Iterable[Any]) -> Iterable[Ref]:
    return (argument for argument in _flat(arguments) if isinstance(argument, Ref))
