"""One launch, cut out of its graph's generated wrapper so that it can be made again alone.

Enters: a ``Graph`` with its wrapper's text, and its ``Launch`` records. Leaves: a ``CallSite``: the statement that
makes the launch, the kernels it calls and the code that makes its tensors, all as text. Nothing is executed and torch
is not imported; the text is parsed only. The statement is the wrapper's own, with views, ``out=`` and scalars as in the
run, so that fused kernels, templates, foreach kernels and library calls are handled alike.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchledger.nouns import Buffer, Graph, Kernel, Launch
from torchledger.replaying.accumulators import accumulators
from torchledger.replaying.index_bounds import index_bounds
from torchledger.replaying.named_buffers import NamedBuffers
from torchledger.replaying.packed_weights import packed_weights
from torchledger.replaying.positive_inputs import positive_inputs
from torchledger.replaying.sizes import CannotReplay, check_device, check_dtype, check_name, sizes, symbol_value
from torchledger.replaying.wrapper_text import (
    Wrapper,
    asserted_size,
    assignments,
    is_pure,
    last_assignment,
    loaded,
    read_wrapper,
    statements_by_line,
)


@dataclass(frozen=True)
class Allocation:
    """``name = make_tensor(...)``: a tensor to make, sizes as integer expressions; ``high`` bounds an index buffer's
    values, ``is_positive`` those of one that the kernel takes the root of; ``is_zero`` is one that it adds to.

    Raises ``CannotReplay`` where a field is anything else than that.
    """

    name: str
    size: str
    stride: str
    dtype: str
    device: str
    high: int | None = None
    low: int | None = None
    is_positive: bool = False
    is_zero: bool = False

    def __post_init__(self) -> None:
        check_name(self.name)
        check_dtype(self.dtype)
        check_device(self.device)
        for text in (self.size, self.stride):
            sizes(text, {})
        for bound in (self.high, self.low):
            if bound is not None and type(bound) is not int:
                raise CannotReplay(f"the values of {self.name} would be bounded by {bound!r}, which is no integer.")

    @property
    def code(self) -> str:
        """The line that makes it."""
        bound = f", high={self.high}" if self.high is not None else ""
        bound += f", low={self.low}" if self.low is not None else ""
        bound += ", positive=True" if self.is_positive else ""
        bound += ", zero=True" if self.is_zero else ""
        return f"{self.name} = make_tensor({self.size}, {self.stride}, {self.dtype}, {self.device!r}{bound})"


@dataclass(frozen=True)
class CallSite:
    """Everything that making some launches again needs, as text, in order.

    ``preamble`` are the wrapper's imports and names, ``definitions`` the kernels by name. ``setup`` makes tensors,
    views and numbers, ``before`` clears workspaces, ``stream`` asks for the present stream, ``call`` makes the launch,
    ``after`` names the outputs of a call that returns several. ``arguments`` are the names that ``call`` needs;
    ``inputs`` the tensors among them and ``outputs`` the tensors that it writes, each with the FX node whose value it
    holds before and after; ``unnamed`` are made-up inputs whose value no FX node stands for.
    """

    launch_id: str
    device: str
    preamble: tuple[str, ...]
    definitions: tuple[tuple[str, str], ...]
    setup: tuple[Allocation | str, ...]
    before: tuple[str, ...]
    stream: tuple[str, ...]
    call: tuple[str, ...]
    after: tuple[str, ...]
    arguments: tuple[str, ...]
    inputs: tuple[tuple[str, str | None], ...]
    outputs: tuple[tuple[str, str | None], ...]
    unnamed: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """Equal for launches that do the same work: same kernels, same sizes, the names of tensors left out."""
        names: dict[str, str] = {}
        kernels = dict(self.definitions)
        lines = []
        for step in (*self.setup, *self.before, *self.stream, *self.call):
            (statement,) = ast.parse(step.code if isinstance(step, Allocation) else step).body
            if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Name):
                names[ast.unparse(statement.targets[0])] = names.get(statement.value.id, statement.value.id)
                continue  # another name of the same tensor is no work
            for node in ast.walk(statement):
                if isinstance(node, ast.Name) and node.id not in kernels:
                    if isinstance(node.ctx, ast.Store):
                        names.setdefault(node.id, f"n{len(names)}")
                    node.id = names.get(node.id, node.id)
            lines.append(ast.unparse(statement))
        return "\n".join(lines)


def find_call_site(
    graph: Graph,
    launch: Launch,
    others: Sequence[Launch],
    kernels: Sequence[Kernel] = (),
    *,
    with_producers: bool = False,
) -> CallSite:
    """The call site of ``launch``; ``others`` are all launches of its graph, ``kernels`` those of the ledger.

    ``with_producers``: inputs that hold values of the compiler's own (partial sums) are not made up but computed by the
    launches that wrote them, as part of the setup.

    Raises ``CannotReplay`` for a launch that has no line in a Python wrapper, or needs something that only the running
    program had.
    """
    return CallSites(graph, others, kernels).find(launch, with_producers=with_producers)


class CallSites:
    """The call sites of one graph: what is known of its buffers is collected once for all its launches.

    Raises ``CannotReplay`` for a graph without a Python wrapper.
    """

    def __init__(self, graph: Graph, launches: Sequence[Launch], kernels: Sequence[Kernel] = ()) -> None:
        self.graph = graph
        self.launches = tuple(launches)
        self.wrapper = read_wrapper(graph)
        self._buffers = NamedBuffers(graph, self.launches)
        self._limits: dict[str, tuple[dict[str, int], frozenset[str], frozenset[str]]] = {}
        self._kernels: dict[str, list[Kernel]] = {}
        for kernel in kernels:
            self._kernels.setdefault(kernel.key, []).append(kernel)

    def find(self, launch: Launch, *, with_producers: bool = False) -> CallSite:
        """The call site of one launch; as ``find_call_site``."""
        if launch.wrapper_line is None:
            raise CannotReplay(f"{launch.launch_id} has no line in the generated code that calls it.")
        return self.builder(launch).build(launch, with_producers=with_producers)

    def builder(self, *launches: Launch) -> Builder:
        """What collects the lines that these launches need; made-up index buffers stay within what all of them may
        address."""
        bounds: dict[str, int] = {}
        positive: set[str] = set()
        zero: set[str] = set()
        for launch in launches:
            highs, roots, sums = self._limits_of(launch)
            positive |= roots
            zero |= sums
            for name, high in highs.items():
                bounds[name] = min(high, bounds.get(name, high))
        return Builder(self.wrapper, self._buffers, bounds, frozenset(positive), frozenset(zero))

    def _limits_of(self, launch: Launch) -> tuple[dict[str, int], frozenset[str], frozenset[str]]:
        if launch.launch_id not in self._limits:
            sources = [kernel.source for kernel in self._kernels_of(launch) if kernel.source]
            bounds = index_bounds(launch, sources, self.graph.symbols)
            self._limits[launch.launch_id] = bounds, positive_inputs(launch, sources), accumulators(launch, sources)
        return self._limits[launch.launch_id]

    def _kernels_of(self, launch: Launch) -> Iterator[Kernel]:
        for kernel in self._kernels.get(launch.kernel, ()):
            yield kernel
            for key in kernel.sub_kernels:
                yield from self._kernels.get(key, ())


_ALLOCATIONS = ("empty_strided", "rand_strided", "torch.empty_strided")


class Builder:
    """Collects, backwards from a statement, the lines that its names come from."""

    def __init__(
        self,
        wrapper: Wrapper,
        named: NamedBuffers,
        bounds: dict[str, int],
        positive: frozenset[str] = frozenset(),
        zero: frozenset[str] = frozenset(),
    ) -> None:
        self.wrapper = wrapper
        self.named = named
        self.bounds = bounds
        self.positive = positive
        self.zero = zero
        self.setup: list[Allocation | str] = []
        self.before: list[str] = []
        self.stream: list[str] = []
        self.roots: dict[str, set[str]] = {}
        self.known: set[str] = set()
        self.used: dict[str, str] = {}
        self.produced: set[str] = set()

    def build(self, launch: Launch, *, with_producers: bool) -> CallSite:
        assert launch.wrapper_line is not None
        function, statement = self.statement(launch.wrapper_line)
        arguments = list(self.needed(statement))
        for name in arguments:
            self.resolve(name, function, statement.lineno)
        self.setup += packed_weights(statement, frozenset(arguments))
        given: dict[str, str | None] = {}
        if with_producers and launch.category not in ("extern", "inline"):
            self._produce_inputs(launch, given, depth=3)
        device = launch.device or "cpu"
        check_device(device)
        after, made = self._unpacking(function, statement)
        written = self._written(launch, statement, made)
        read = [
            (name, self._value_before(name, launch, function, statement.lineno))
            for name in arguments
            if name in self.roots
        ]
        return CallSite(
            launch_id=launch.launch_id,
            device=device,
            preamble=self.wrapper.preamble,
            definitions=tuple(self.used.items()),
            setup=self.bounded_setup(),
            before=tuple(self.before),
            stream=tuple(dict.fromkeys(self.stream)),
            call=(self.wrapper.text(statement),),
            after=tuple(after),
            arguments=tuple(name for name in arguments if name in self.known),
            inputs=tuple((given | {name: node for name, node in read if name not in given}).items()),
            outputs=tuple(written),
            unnamed=tuple(self._unnamed(launch)),
        )

    def _unnamed(self, launch: Launch) -> Iterator[str]:
        for buffer in launch.buffers:
            is_read = buffer.role == "input" and buffer.name not in self.produced
            if is_read and self.named.fx_node(buffer.name) is None:
                yield buffer.name

    def _produce_inputs(self, launch: Launch, given: dict[str, str | None], depth: int) -> None:
        """Put the calls that write the unnamed inputs of ``launch`` into the setup; ``given`` gets their own inputs."""
        for buffer in launch.buffers:
            if buffer.role != "input" or self.named.fx_node(buffer.name) is not None:
                continue
            producer = self.named.producer(buffer.name, launch.order)
            if producer is None or depth == 0 or producer.wrapper_line is None:
                continue
            function, statement = self.statement(producer.wrapper_line)
            text = self.wrapper.text(statement)
            self.produced.update(other.name for other in producer.buffers if other.role != "input")
            if text in self.setup:
                continue
            arguments = list(self.needed(statement))
            for name in arguments:
                self.resolve(name, function, statement.lineno)
            self._produce_inputs(producer, given, depth - 1)
            written = {other.name for other in producer.buffers if other.role != "input"}
            for name in arguments:
                value = self._value_before(name, producer, function, statement.lineno) if name in self.roots else None
                if value is not None and name in written:
                    # The reference reads what was there before the producer wrote over it.
                    self.setup.append(f"{name}_before = {name}.clone()")
                    given[f"{name}_before"] = value
                elif name in self.roots:
                    given[name] = value
            self.setup += [*dict.fromkeys(self.stream), text, *self._unpacking(function, statement)[0]]

    # --- finding things in the wrapper --------------------------------------------------------------------------

    def statement(self, line: int) -> tuple[ast.FunctionDef, ast.stmt]:
        """The statement that makes a launch, and the function that holds it."""
        for function in self.wrapper.functions:
            found = statements_by_line(function).get(line)
            if found is not None:
                return function, found
        raise CannotReplay(f"line {line} of the generated code of {self.named.graph.name} holds no call.")

    def needed(self, node: ast.AST) -> Iterator[str]:
        """Names that must exist before ``node`` runs, each once; kernels are noted instead."""
        for name in loaded(node):
            if name in self.wrapper.definitions:
                self._use(name)
            elif name not in self.wrapper.preamble_names and not hasattr(builtins, name):
                yield name

    def _use(self, kernel: str) -> None:
        """Note a kernel, and first those that it is made of."""
        if kernel in self.used:
            return
        text, value = self.wrapper.definitions[kernel]
        for part in ast.walk(value):
            if isinstance(part, ast.Name) and part.id in self.wrapper.definitions and part.id != kernel:
                self._use(part.id)
        self.used[kernel] = text

    def bounded_setup(self) -> tuple[Allocation | str, ...]:
        """The lines collected so far, index buffers within their bounds."""
        return tuple(self._bounded(step) for step in self.setup)

    def resolve(self, name: str, function: ast.FunctionDef, line: int) -> None:
        """Put the lines that make ``name`` as it is before ``line`` into the setup."""
        if name in self.known:
            return
        self.known.add(name)
        found = last_assignment(name, function, line)
        if found is None and function not in self.wrapper.input_functions:
            for inputs in self.wrapper.input_functions:
                found = last_assignment(name, inputs, 10**9)
                if found is not None:
                    function = inputs
                    break
        value = found.value if found is not None else None
        callee = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        if found is not None and value is not None and callee.startswith(_ALLOCATIONS):
            self._allocate(name, value, callee, function, found.lineno)  # type: ignore[arg-type]
        elif found is not None and callee.startswith("get_raw_stream"):
            self.stream.append(self.wrapper.text(found))
            self.known.discard(name)
        elif found is not None and value is not None and is_pure(value) and not self._renames_result(found, function):
            for needed in self.needed(value):
                self.resolve(needed, function, found.lineno)
                self.roots.setdefault(name, set()).update(self.roots.get(needed, ()))
            if not self.roots.get(name):
                self.roots.pop(name, None)
            self.setup.append(self.wrapper.text(found))
        elif (size := symbol_value(self.named.graph.symbols, name)) is not None:
            self.setup.append(f"{name} = {size}")
        else:
            self._make_as_recorded(name, function)

    def _renames_result(self, found: ast.Assign, function: ast.FunctionDef) -> bool:
        """True for ``buf6 = buf5`` where a library call made buf5 and only buf6 is known to the ledger."""
        if not isinstance(found.value, ast.Name) or found.value.id in self.named.buffers:
            return False
        made = last_assignment(found.value.id, function, found.lineno)
        if made is None or not isinstance(made.value, ast.Call):
            return False
        return not is_pure(made.value) and not ast.unparse(made.value.func).startswith(_ALLOCATIONS)

    def _allocate(self, name: str, call: ast.Call, callee: str, function: ast.FunctionDef, line: int) -> None:
        named = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
        size, stride = call.args[0], call.args[1]
        for part in (size, stride):
            for needed in self.needed(part):
                self.resolve(needed, function, line)
        dtype = ast.unparse(named["dtype"] if "dtype" in named else call.args[2])
        if "device" in named:
            device = ast.literal_eval(named["device"]) if isinstance(named["device"], ast.Constant) else None
            device = device or self.named.device(name) or "cuda:0"
        else:
            kind = callee.removeprefix("empty_strided").strip("_").partition("_")[0] or "cpu"
            device = next((found for found in self.named.graph.devices if found.startswith(kind)), kind)
        self._add(Allocation(name, ast.unparse(size), ast.unparse(stride), dtype, device))
        if name.startswith("workspace"):
            self.before.append(f"{name}.zero_()")

    def _make_as_recorded(self, name: str, function: ast.FunctionDef) -> None:
        buffers = self.named.buffers.get(name)
        if not buffers:
            raise CannotReplay(
                f"the call needs {name}, of which neither the generated code nor the ledger says what it is."
            )
        asserted = asserted_size(name, self.wrapper.functions)
        if asserted is not None:
            for part in asserted:
                for needed in self.needed(part):
                    self.resolve(needed, function, 10**9)
            size, stride = map(ast.unparse, asserted)
        else:
            length = max(_storage_length(buffer) for buffer in buffers)
            whole = next(
                (buffer for buffer in buffers if _storage_length(buffer) == length and not buffer.offset), None
            )
            size, stride = (str(whole.shape), str(whole.stride)) if whole else (f"({length},)", "(1,)")
        self._add(Allocation(name, size, stride, f"torch.{buffers[0].dtype}", buffers[0].device))

    def _add(self, allocation: Allocation) -> None:
        self.setup.append(allocation)
        self.roots[allocation.name] = {allocation.name}

    def _bounded(self, step: Allocation | str) -> Allocation | str:
        """An index buffer's values must stay within what each reader may address; a variance is positive, a sum begins
        at zero, of whatever dtype."""
        if isinstance(step, str):
            return step
        if any(step.name in self.roots.get(name, {name}) for name in self.zero):
            return replace(step, is_zero=True)
        if step.dtype.startswith(("torch.float", "torch.bfloat")):
            is_positive = any(step.name in self.roots.get(name, {name}) for name in self.positive)
            return replace(step, is_positive=True) if is_positive else step
        bounds = [bound for name, bound in self.bounds.items() if step.name in self.roots.get(name, {name})]
        if not bounds or not step.dtype.startswith(("torch.int", "torch.uint")):
            return step
        high = min(bounds)
        if step.dtype == "torch.int8":
            # Places inside a pooling window: only the middle one lies inside the image for every window.
            return replace(step, low=(high - 1) // 2, high=(high - 1) // 2 + 1)
        return replace(step, high=high)

    # --- what the launch reads and writes -----------------------------------------------------------------------

    def _unpacking(self, function: ast.FunctionDef, statement: ast.stmt) -> tuple[list[str], set[str]]:
        """Lines after the call that only name parts of its result, and all names that then exist."""
        made = {
            part.id for part in ast.walk(statement) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        lines = []
        for node in assignments(function):
            if node.lineno <= statement.lineno or not isinstance(node.targets[0], ast.Name):
                continue
            value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
            if isinstance(value, ast.Name) and value.id in made:
                lines.append(self.wrapper.text(node))
                made.add(node.targets[0].id)
        return lines, made

    def _written(self, launch: Launch, statement: ast.stmt, made: set[str]) -> list[tuple[str, str | None]]:
        exists = made | set(self.roots)
        written: dict[str, str | None] = {}
        for buffer in launch.buffers:
            if buffer.role not in ("output", "inout") or buffer.name not in exists:
                continue
            node = buffer.fx_node
            if launch.category in ("extern", "inline") and buffer.role == "inout" and launch.fx_nodes:
                node = launch.fx_nodes[
                    -1
                ]  # the node is what changed the buffer, whose own name is that of the old value
            written[buffer.name] = node
        return list(written.items())

    def _value_before(self, name: str, launch: Launch, function: ast.FunctionDef, line: int) -> str | None:
        """The FX node whose value an argument holds before the call; ``None`` where it holds none, or is not read."""
        roles = {buffer.role for buffer in launch.buffers if buffer.name == name}
        if "input" in roles or (launch.category in ("extern", "inline") and "inout" in roles):
            return self.named.fx_node(name)
        loaded = {access.buffer for nest in launch.loops for access in nest.accesses if access.kind != "store"}
        written_by_others = {
            buffer.name
            for other in self.named.launches
            if other.order < launch.order
            for buffer in other.buffers
            if buffer.role != "input"
        }
        found = last_assignment(name, function, line)
        while found is not None and isinstance(found.value, (ast.Name, ast.Call)):
            former = found.value if isinstance(found.value, ast.Name) else next(iter(found.value.args), None)
            if not isinstance(former, ast.Name):
                break
            is_input = last_assignment(former.id, function, found.lineno) is None
            if former.id in loaded and (is_input or former.id in written_by_others):
                return self.named.fx_node(former.id)
            found = last_assignment(former.id, function, found.lineno)
        if "inout" in roles and name in loaded and name in written_by_others:
            return self.named.fx_node(name)
        return None


def _storage_length(buffer: Buffer) -> int:
    last = sum((extent - 1) * abs(step) for extent, step in zip(buffer.shape, buffer.stride, strict=False) if extent)
    return buffer.offset + last + 1
