"""Each launch's outputs against the ops that it was made from, run eagerly and in float64 on the same inputs.

A launch is judged on its own: where the compiled program has already computed a value that an op needs, that value is
taken, so that errors of earlier launches are not charged to this one. Nothing but the FX graph that was lowered and the
names of the buffers is needed; eager and compiled runs may be structured as they like.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torchledger.claims import claim
from torchledger.nouns import Launch, ValueComparison
from torchledger.signals import let_through
from torchledger.watching.call_records import Event

log = logging.getLogger(__name__)

_TOLERANCE = {
    torch.float64: 1e-11,
    torch.float32: 1e-4,
    torch.bfloat16: 5e-2,
    torch.float16: 5e-3,
}
"""Largest error relative to the largest magnitude, where the user names none. A launch must also be further from
float64 than eager is, by ``_FACTOR``: what a dtype cannot do better is no fault of a kernel."""

_FACTOR = 4.0

_RANDOM = ("inductor_random", "inductor_randint", "inductor_seed", "rand", "bernoulli", "native_dropout", "multinomial")


class NotReplayable(Exception):
    """An op that cannot be run again; the message says which and why."""


class Replay:
    """The FX graph of one call of one compiled graph, with the values that the compiled code has computed so far."""

    def __init__(
        self,
        module: Any,
        inputs: Sequence[tuple[str, torch.Tensor]],
        launches: Iterable[Launch] = (),
        call_index: int = 0,
    ) -> None:
        self._module = module
        self._call_index = call_index
        self._before: dict[str, torch.Tensor] = {}
        # A buffer that is filled by several launches (zeros, then atomic adds) holds its value after the last.
        self._last_writer: dict[str, int] = {}
        for launch in launches:
            for buffer in launch.buffers:
                if buffer.role in ("output", "inout"):
                    self._last_writer[buffer.name] = max(launch.order, self._last_writer.get(buffer.name, 0))
        self._nodes = {node.name: node for node in module.graph.nodes}
        self._known: dict[str, Any] = {name: tensor.detach().clone() for name, tensor in inputs}

    def keep(self, operands: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Remember what a launch is about to write over."""
        self._before = {name: tensor.detach().clone() for name, tensor in operands}

    def compare(
        self, event: Event, written: Sequence[tuple[str, torch.Tensor]], tolerance: float | None
    ) -> list[ValueComparison]:
        """One comparison per output whose FX node is known; afterwards the outputs are known to later launches."""
        assert event.launch is not None
        nodes = {buffer.name: buffer.fx_node for buffer in event.launch.buffers if buffer.role != "input"}
        outputs: dict[str, tuple[str, torch.Tensor]] = {}
        for name, tensor in written:
            node = nodes.get(name)
            if node is None or node not in self._nodes or self._nodes[node].op != "call_function":
                continue  # a graph input that is written over has no node of its own for the new value
            is_last = self._last_writer.get(name, event.launch.order) == event.launch.order
            # Inductor passes in-place buffers whose store it has dropped; their memory keeps what it held.
            if is_last and not _is_same(tensor, self._before.get(name)) and _may_be(self._nodes[node], tensor):
                outputs[node] = (name, _as_node(self._nodes[node], tensor))
        found = [self._judge(event, name, node, value, outputs, tolerance) for node, (name, value) in outputs.items()]
        self._known.update({node: value for node, (_, value) in outputs.items()})
        return found

    def _judge(
        self,
        event: Event,
        name: str,
        node: str,
        value: torch.Tensor,
        outputs: Mapping[str, tuple[str, torch.Tensor]],
        tolerance: float | None,
    ) -> ValueComparison:
        assert event.launch is not None
        facts: dict[str, Any] = {
            "subject": event.launch.launch_id,
            "call_index": self._call_index,
            "sequence": event.sequence,
            "buffer": name,
            "fx_node": node,
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": tuple(value.shape),
        }
        try:
            eager = self._evaluate(node, outputs, wide=False)
        except Exception as error:  # any op may refuse; the comparison then says so
            let_through(error)
            return ValueComparison(**facts, note=_reason(error))
        if not value.is_floating_point() or value.element_size() == 1:
            different = int((eager.to(value.dtype) != value).sum())
            return ValueComparison(**facts, n_different=different, is_within=different == 0)
        allowed = tolerance if tolerance is not None else _TOLERANCE.get(value.dtype, 1e-4)
        note = None
        try:
            truth = self._evaluate(node, outputs, wide=True).to(torch.float64)
        except Exception as error:  # some library calls know no float64: eager is then the referee
            let_through(error)
            truth, note = eager.to(torch.float64), f"eager is the referee: {_reason(error)}"
        compiled_error, compiled_ulps = distance(value, truth, value.dtype)
        eager_error, eager_ulps = distance(eager, truth, value.dtype) if note is None else (None, None)
        is_within = compiled_error <= max(allowed, _FACTOR * (eager_error or 0.0))
        return ValueComparison(
            **facts,
            compiled_error=compiled_error,
            eager_error=eager_error,
            compiled_ulps=compiled_ulps,
            eager_ulps=eager_ulps,
            tolerance=allowed,
            is_within=is_within,
            note=note,
        )

    def _evaluate(self, node: str, outputs: Mapping[str, tuple[str, torch.Tensor]], *, wide: bool) -> torch.Tensor:
        """The value of a node from what was known before the launch.

        Where that needs random numbers, which cannot be drawn again, what the launch itself stored of them is taken.
        """
        try:
            value = _Evaluation(self._module, self._nodes, self._known, wide).value(node)
        except NotReplayable:
            others = {other: value for other, (_, value) in outputs.items() if other != node}
            if not others:
                raise
            value = _Evaluation(self._module, self._nodes, self._known | others, wide).value(node)
        if not isinstance(value, torch.Tensor):
            raise NotReplayable(f"{node} is a {type(value).__name__}")
        return value


class _Evaluation:
    """Runs the ops behind one node, as far back as values are known."""

    def __init__(self, module: Any, nodes: Mapping[str, Any], known: Mapping[str, Any], wide: bool) -> None:
        self._module = module
        self._nodes = nodes
        self._known = known
        self._wide = wide
        self._done: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        pending = [name]
        while pending:
            node = self._nodes[pending[-1]]
            if node.name in self._done:
                pending.pop()
                continue
            if node.name != name and node.name in self._known:
                self._done[node.name] = self._widen(self._known[node.name])
                continue
            missing = [argument.name for argument in node.all_input_nodes if argument.name not in self._done]
            if missing:
                pending += missing
            else:
                self._done[node.name] = self._run(node)
        return self._done[name]

    def _run(self, node: Any) -> Any:
        if node.op == "placeholder":
            if node.name in self._known:
                return self._widen(self._known[node.name])
            raise NotReplayable(f"the value of input {node.name} is not known")
        if node.op == "get_attr":
            target = self._module
            for part in str(node.target).split("."):
                target = getattr(target, part)
            return self._widen(target) if isinstance(target, torch.Tensor) else target
        if node.op != "call_function":
            raise NotReplayable(f"{node.name} is a {node.op}")
        target_name = str(getattr(node.target, "__name__", node.target))
        if target_name.split(".")[0].startswith(_RANDOM):
            raise NotReplayable(f"{target_name} draws random numbers")
        arguments = torch.fx.node.map_arg(node.args, lambda argument: self._done[argument.name])
        keywords = torch.fx.node.map_arg(node.kwargs, lambda argument: self._done[argument.name])
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            arguments, keywords = _copied(arguments), _copied(keywords)
        if self._wide:
            arguments, keywords = _wide_types(arguments), _wide_types(keywords)
        return node.target(*arguments, **keywords)

    def _widen(self, value: Any) -> Any:
        if self._wide and isinstance(value, torch.Tensor):
            if value.is_floating_point():
                return value.to(torch.float64)
            if value.is_complex():
                return value.to(torch.complex128)
        return value


def distance(value: torch.Tensor, truth: torch.Tensor, dtype: torch.dtype) -> tuple[float, float]:
    """How far a tensor is from the truth (float64): the largest error over the largest magnitude, and in units in the
    last place of ``dtype``. NaN or Inf on one side only is an infinite error.

    Elements below the root mean square of the tensor are counted in units of that magnitude: what cancelled to almost
    nothing is as exact as its terms were, not as its own size would allow.

    >>> distance(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5], dtype=torch.float64), torch.float32)[0]
    0.2
    """
    if not value.numel():
        return 0.0, 0.0
    value, truth = value.to(torch.float64).reshape(-1), truth.reshape(-1)
    same = (value == truth) | (value.isnan() & truth.isnan())
    # What overflows in the narrow type is infinite there by right.
    same |= value.isinf() & (truth.abs() > torch.finfo(dtype).max) & (value.sign() == truth.sign())
    error = torch.where(same, 0.0, (value - truth).abs())
    error = torch.where(error.isnan(), math.inf, error)
    finite = truth[truth.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    largest = float(error.max())
    relative = largest / scale if scale else (0.0 if largest == 0 else math.inf if largest == math.inf else largest)
    facts = torch.finfo(dtype)
    typical = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    magnitude = torch.where(truth.isfinite(), truth.abs(), 1.0).clamp(min=max(typical, facts.tiny))
    spacing = torch.exp2(torch.floor(torch.log2(magnitude))) * facts.eps
    return relative, float((error / spacing).max())


def _is_same(tensor: torch.Tensor, before: torch.Tensor | None) -> bool:
    if before is None or before.shape != tensor.shape or before.dtype != tensor.dtype:
        return False
    return bool(((before == tensor) | ((before != before) & (tensor != tensor))).all())


@claim
def _may_be(node: Any, tensor: torch.Tensor) -> bool:
    """False if what a launch wrote cannot be its FX node's value: of another dtype, or of other sizes."""
    expected = node.meta.get("val")
    if not isinstance(expected, torch.Tensor) or expected.dtype != tensor.dtype:
        return False
    shape = _known_shape(expected)
    return expected.dim() == tensor.dim() if None in shape else math.prod(shape) == tensor.numel()


def _as_node(node: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A copy of what a launch wrote, in the shape of its FX node.

    Inductor drops and adds dims of size 1, or writes what a later view reshapes: the order of elements is the same.
    """
    shape = _known_shape(node.meta["val"])
    return tensor.detach().clone() if None in shape else tensor.detach().reshape(shape).clone()


def _known_shape(expected: torch.Tensor) -> tuple[Any, ...]:
    """The sizes of a traced tensor, ``None`` where they are symbols."""
    return tuple(extent if isinstance(extent, int) else None for extent in expected.shape)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (tuple, list)):
        return type(value)(_copied(item) for item in value)
    return {name: _copied(item) for name, item in value.items()} if isinstance(value, dict) else value


def _wide_types(value: Any) -> Any:
    """Float types as arguments become float64: the referee does not round in between."""
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(_wide_types(item) for item in value)
    return {name: _wide_types(item) for name, item in value.items()} if isinstance(value, dict) else value


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return text if isinstance(error, NotReplayable) else f"{type(error).__name__}: {text}"
