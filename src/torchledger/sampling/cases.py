"""An operator at a shape made ready to run: inputs from one pool of random numbers, forward and backward as calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchledger.operators import Input, Operator, Parameters
from torchledger.work.tensor_layouts import is_dense

_ALIGNMENT = 128
"""Elements between the starts of two inputs are a multiple of this, as an allocator's blocks are aligned."""

DEFAULT_POOL_BYTES = {"cuda": 512 * 1024 * 1024, "cpu": 32 * 1024 * 1024}


class InputPool:
    """Makes inputs without filling each anew: views into one block of normally distributed numbers per dtype.

    What does not fit into the block, is written to, or must hold certain values gets its own memory.
    """

    def __init__(self, device: str, *, pool_bytes: int | None = None, seed: int = 0) -> None:
        import torch

        self.device = torch.device(device)
        self._pool_bytes = pool_bytes or DEFAULT_POOL_BYTES[self.device.type]
        self._generator = torch.Generator(device=self.device).manual_seed(seed)
        self._blocks: dict[str, Any] = {}
        self._next = 0

    def start_point(self) -> None:
        """Forget which parts of the block are taken."""
        self._next = 0

    def tensors(self, inputs: Mapping[str, Input], dtype: str) -> dict[str, Any]:
        """The inputs by name, those that ask for gradients as leaves."""
        made = {}
        for name, spec in inputs.items():
            tensor = self.tensor(spec, spec.dtype or dtype)
            made[name] = tensor.requires_grad_() if spec.gradient else tensor
        return made

    def tensor(self, spec: Input, dtype: str) -> Any:
        """One input."""
        import torch

        from torchledger._torch.tensors import dtype_named

        torch_dtype = dtype_named(dtype)
        if spec.values == "normal":
            view = self.view(spec.shape, dtype, stride=spec.stride)
            return view.clone() if spec.own else view
        if spec.values == "indices":
            return torch.randint(
                0, spec.high or 1, spec.shape, dtype=torch_dtype, device=self.device, generator=self._generator
            )
        if spec.values == "mask":
            return torch.rand(spec.shape, device=self.device, generator=self._generator) < 0.5
        if spec.values == "causal_mask":
            hidden = torch.ones(spec.shape[-2:], dtype=torch.bool, device=self.device).triu(1)
            if torch_dtype is not torch.bool:
                hidden = hidden.to(torch_dtype) * -10000.0
            return hidden.expand(spec.shape).contiguous()
        if spec.values in ("ends", "starts"):
            first = 1 if spec.values == "ends" else 0
            shares = spec.shape[0] - 1 + first
            counts = torch.arange(first, first + spec.shape[0], device=self.device)
            return (counts * (spec.high or 0) // shares).to(torch_dtype)
        return torch.full(spec.shape, 1.0 if spec.values == "ones" else 0.0, dtype=torch_dtype, device=self.device)

    def view(self, shape: tuple[int, ...], dtype: str, *, stride: tuple[int, ...] | None = None) -> Any:
        """Random numbers of that shape; ``stride`` may permute the dimensions but must be dense."""
        import torch

        numel = math.prod(shape)
        block = self._block(dtype)
        if self._next + numel > block.numel():
            # Two inputs over the same bytes would be read as one.
            block, start = self._fill(numel, dtype), 0
        else:
            start = self._next
            self._next += -(-numel // _ALIGNMENT) * _ALIGNMENT
        if stride is None:
            return block.narrow(0, start, numel).view(shape).detach()
        return torch.as_strided(block, shape, stride, start).detach()

    def _block(self, dtype: str) -> Any:
        if dtype not in self._blocks:
            from torchledger._torch.tensors import dtype_named

            self._blocks[dtype] = self._fill(self._pool_bytes // dtype_named(dtype).itemsize, dtype)
        return self._blocks[dtype]

    def _fill(self, numel: int, dtype: str) -> Any:
        import torch

        from torchledger._torch.tensors import dtype_named

        if dtype.startswith("float8"):
            return torch.randn(numel, device=self.device, generator=self._generator).to(dtype_named(dtype))
        return torch.randn(numel, dtype=dtype_named(dtype), device=self.device, generator=self._generator)


@dataclass
class Case:
    """What to run for each direction, in order; ``prepare`` is called once before a direction's first run."""

    runs: dict[str, Callable[[], Any]]
    prepare: dict[str, Callable[[], None]]


def make_case(operator: Operator, parameters: Mapping[str, Any], dtype: str, pool: InputPool) -> Case:
    """The operator at a shape, ready to run.

    Forward runs with autograd recording, as in training; backward differentiates one kept graph again and again.
    """
    import torch

    p = Parameters(parameters)
    pool.start_point()
    tensors = pool.tensors(operator.tensors(p), dtype)
    leaves = [tensor for tensor in tensors.values() if tensor.requires_grad]
    runs: dict[str, Callable[[], Any]] = {}
    prepare: dict[str, Callable[[], None]] = {}
    backward_of: dict[str, Any] = {}

    def forward() -> Any:
        return operator.forward(p, **tensors)

    def forward_in_place() -> Any:
        with torch.no_grad():
            return operator.run_in_place(p, **tensors)

    def keep_graph() -> None:
        outputs = forward()
        backward_of["outputs"] = outputs if isinstance(outputs, tuple) else (outputs,)
        backward_of["gradients"] = tuple(_gradient_like(output, pool) for output in backward_of["outputs"])

    def backward() -> Any:
        return torch.autograd.grad(
            backward_of["outputs"], leaves, backward_of["gradients"], retain_graph=True, allow_unused=True
        )

    for direction in operator.directions:
        if direction == "backward":
            runs[direction], prepare[direction] = backward, keep_graph
        elif direction == "step" or not leaves:
            runs[direction] = _without_autograd(forward)
        else:
            runs[direction] = forward_in_place if operator.in_place else forward
    return Case(runs, prepare)


def _without_autograd(run: Callable[[], Any]) -> Callable[[], Any]:
    import torch

    def run_plain() -> Any:
        with torch.no_grad():
            return run()

    return run_plain


def _gradient_like(output: Any, pool: InputPool) -> Any:
    dtype = str(output.dtype).removeprefix("torch.")
    stride = tuple(output.stride())
    if output.is_contiguous() or not is_dense(stride, tuple(output.shape)):
        stride = None  # type: ignore[assignment]
    return pool.view(tuple(output.shape), dtype, stride=stride)
