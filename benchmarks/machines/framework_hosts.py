"""What the host needs for one block of a public training framework: its own code, with tensors of a few elements.

    python -m benchmarks.machines.framework_hosts nanotron [--frameworks DIR] [--tp 2] [--whole]
    python -m benchmarks.machines.framework_hosts megatron [--frameworks DIR] [--tp 2]

Needs no GPU: layers of huggingface/nanotron (e24d248) with those of Dao-AILab/flash-attention (v2.5.8), or of
microsoft/Megatron-DeepSpeed (7bbd7f0e), are built on a CPU with a process group that sends nothing, and run forward
and backward in one thread. ``DIR`` (or ``TORCHLEDGER_FRAMEWORKS``) holds their checkouts by the names of their
repositories. What is measured is all but the launches: a kernel of a few elements is about nothing, those that exist
for CUDA alone leave what they return empty, and those of Triton go the whole way but for the driver's call. Wants the
torch of these frameworks' time, which brings Triton 2.1: ``pip install torch==2.1.2 'numpy<2' packaging tqdm einops``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed

NEEDS: tuple[str, ...] = ("training frameworks",)
RUNS: tuple[tuple[str, ...], ...] = (("nanotron",), ("megatron",))

BLOCKS, STEPS, WARM = 6, 100, 15
HIDDEN, HEADS, LENGTH = 64, 16, 32


class Anything:
    """A class that is imported and not used."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass


def module(name: str, path: str | None = None, **members: object) -> types.ModuleType:
    """A module that stands in for one that is not here, or for a package of which only some modules are wanted."""
    made = types.ModuleType(name)
    made.__dict__.update(members)
    made.__path__ = [path] if path else []
    sys.modules[name] = made
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, made)
    return made


class Binary:
    """A compiled Triton kernel that is launched and does nothing."""

    num_warps, shared, cu_function = 4, 0, 0

    def c_wrapper(self, *arguments: object) -> None:
        pass


class Compiled(dict[Any, Any]):
    """Every kernel is compiled already."""

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get(key) or self.setdefault(key, Binary())


def launch_triton_nowhere() -> None:
    """Launches of Triton 2.1 go their whole way but for the driver's call."""
    from triton.runtime import autotuner, jit

    jit.get_current_device = lambda: 0
    jit.set_current_device = lambda device: None
    jit.get_cuda_stream = lambda device: 0
    jit.JITFunction._conclude_device_type = lambda self, *given: "cuda"
    autotuner.Autotuner._bench = lambda self, *args, **kwargs: 1.0
    build = jit.JITFunction.__init__

    def built(self: Any, *args: Any, **kwargs: Any) -> None:
        build(self, *args, **kwargs)
        self.cache[0] = Compiled()

    jit.JITFunction.__init__ = built


def flash_kernels() -> types.ModuleType:
    """Flash-attention's two kernels: what they return is there, and empty."""

    def forward(q: Any, k: Any, v: Any, *others: object) -> tuple[Any, ...]:
        out, sums = torch.empty_like(q), torch.empty(q.shape[1], q.shape[0])
        return out, q, k, v, out, sums, None, torch.empty(2, dtype=torch.int64)

    def backward(dout: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dq: Any, dk: Any, dv: Any, *o: object) -> Any:
        given = zip((dq, dk, dv), (q, k, v), strict=True)
        return (*(torch.empty_like(each) if made is None else made for made, each in given), torch.empty_like(sums))

    return module("flash_attn_2_cuda", varlen_fwd=forward, varlen_bwd=backward)


def nanotron(source: Path, flash: Path, tp: int, is_whole: bool) -> Callable[[], tuple[float, float, float]]:
    """Steps of blocks of nanotron's Llama: seconds of the forward, the backward, and of adding up gradients."""
    launch_triton_nowhere()
    flash_kernels()
    module("flash_attn", str(flash / "flash_attn"), bert_padding=None)
    module("dacite", from_dict=None, Config=Anything)
    module("datasets")
    module("datasets.download")
    module("datasets.download.streaming_download_manager", xPath=str)
    torch.cuda.device = lambda index: contextlib.nullcontext()
    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=2)
    sys.path.insert(0, str(on_cpu(source / "src/nanotron")))
    from nanotron.models import llama
    from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode

    mode = TensorParallelLinearMode.ALL_REDUCE if is_whole else TensorParallelLinearMode.REDUCE_SCATTER
    parallel = SimpleNamespace(
        tp_mode=mode, tp_linear_async_communication=not is_whole, tp_recompute_allgather=True, recompute_layer=False
    )
    config = SimpleNamespace(
        hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=HEADS, intermediate_size=2 * HIDDEN,
        hidden_act="silu", rms_norm_eps=1e-5, is_using_mup=False, rope_interleaved=False, rope_theta=1e4,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    group = torch.distributed.group.WORLD
    layers = [llama.LlamaDecoderLayer(config, parallel, group, index) for index in range(BLOCKS)]
    mask = torch.ones(1, LENGTH, dtype=torch.bool)
    sums = [(weight, torch.zeros(weight.shape)) for layer in layers for weight in layer.parameters()]

    def step() -> tuple[float, float, float]:
        states = torch.randn(LENGTH if is_whole else LENGTH // tp, 1, HIDDEN, requires_grad=True)
        begun = time.process_time()
        out = states
        for layer in layers:
            out = layer(hidden_states=out, sequence_mask=mask)["hidden_states"]
        half = time.process_time()
        out.sum().backward()
        done = time.process_time()
        for weight, total in sums:
            total.add_(weight.grad)
            weight.grad = None
        return half - begun, done - half, time.process_time() - done

    return step


def on_cpu(package: Path) -> Path:
    """A copy of a package whose buffers lie on the CPU; the folder that holds it."""
    folder = Path(tempfile.mkdtemp())
    for file in package.rglob("*.py"):
        target = folder / package.name / file.relative_to(package)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text().replace('device="cuda"', 'device="cpu"'))
    return folder


class Accelerator:
    """DeepSpeed's accelerator, which is a CPU here."""

    def device_name(self) -> str:
        return "cpu"

    current_device_name = current_device = device_name

    def get_rng_state(self) -> Any:
        return torch.get_rng_state()

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kwargs: None


class NormKernel(torch.autograd.Function):
    """Apex's layer norm, without its kernel."""

    @staticmethod
    def forward(ctx: Any, states: Any, weight: Any, bias: Any) -> Any:
        rows = states.numel() // states.shape[-1]
        ctx.save_for_backward(states, weight, bias, torch.empty(rows), torch.empty(rows))
        return torch.empty_like(states)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        states, weight, bias, _, _ = ctx.saved_tensors
        return torch.empty_like(states), torch.empty_like(weight), torch.empty_like(bias)


class Norm(torch.nn.LayerNorm):
    """Megatron's fused layer norm, without its kernel."""

    def forward(self, states: Any) -> Any:
        return NormKernel.apply(states, self.weight, self.bias)


def softmax_kernels() -> None:
    """Megatron's softmax, whose kernel leaves what it returns empty; half precision is a copy, as a cast is one."""
    module(
        "scaled_upper_triang_masked_softmax_cuda",
        forward=lambda scores, scale: torch.empty_like(scores),
        backward=lambda gradient, found, scale: torch.empty_like(gradient),
    )
    torch.Tensor.half = torch.Tensor.float = lambda tensor: tensor.to(tensor.dtype, copy=True)


def megatron(source: Path, tp: int) -> Callable[[], tuple[float, float, float]]:
    """Steps of checkpointed blocks of Megatron-DeepSpeed: seconds of the forward, and of doing it again and back."""
    accelerator = Accelerator()
    deepspeed = module("deepspeed")
    deepspeed.checkpointing = SimpleNamespace(is_configured=lambda: False)
    for name in ("accelerator", "accelerator.real_accelerator"):
        module(f"deepspeed.{name}", get_accelerator=lambda: accelerator)
    for name in ("moe", "runtime", "runtime.activation_checkpointing"):
        module(f"deepspeed.{name}")
    module("deepspeed.moe.layer", MoE=Anything)
    module("deepspeed.runtime.activation_checkpointing.checkpointing", is_configured=lambda: False)
    arguments = SimpleNamespace(
        hidden_size=HIDDEN, ffn_hidden_size=4 * HIDDEN, kv_channels=HIDDEN // HEADS, num_attention_heads=HEADS,
        layernorm_epsilon=1e-5, apply_residual_connection_post_layernorm=False, fp16=True, bf16=False,
        fp32_residual_connection=False, hidden_dropout=0.1, attention_dropout=0.1, bias_dropout_fusion=True,
        bias_gelu_fusion=True, openai_gelu=False, onnx_safe=None, apply_query_key_layer_scaling=True,
        attention_softmax_in_fp32=True, masked_softmax_fusion=True, use_cpu_initialization=True,
        params_dtype=torch.float32, distribute_checkpointed_activations=False, curriculum_learning_legacy=False,
        data_efficiency_curriculum_learning=False,
    )  # fmt: skip
    module("megatron", str(source / "megatron"), get_args=lambda: arguments)
    module("megatron.memory", allocate_mem_buff=None)
    module("megatron.global_vars", get_args=lambda: arguments)
    module("megatron.model", str(source / "megatron/model"), LayerNorm=Norm)
    softmax_kernels()
    from megatron import mpu
    from megatron.model import transformer
    from megatron.model.enums import AttnMaskType

    mpu.initialize.set_tensor_model_parallel_world_size(tp)
    mpu.initialize.set_tensor_model_parallel_rank(0)
    mpu.initialize._TENSOR_MODEL_PARALLEL_GROUP = torch.distributed.group.WORLD
    mpu.random._set_cuda_rng_state = lambda state, device=-1: torch.set_rng_state(state)
    mpu.random.get_cuda_rng_tracker().states_["model-parallel-rng"] = torch.get_rng_state()
    layers = [
        transformer.ParallelTransformerLayer(
            torch.nn.init.normal_, torch.nn.init.normal_, index + 1, self_attn_mask_type=AttnMaskType.causal
        )
        for index in range(BLOCKS)
    ]

    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool)

    def step() -> tuple[float, float, float]:
        states = torch.randn(LENGTH, 1, HIDDEN, requires_grad=True)
        begun = time.process_time()
        out = states
        for layer in layers:
            out, _ = mpu.checkpoint(lambda given, mask, layer=layer: layer(given, attention_mask=mask), out, mask)
        half = time.process_time()
        out.sum().backward()
        return half - begun, time.process_time() - half, 0.0

    return step


def main() -> None:
    """Measure and print: the median of the steps, microseconds a block of one thread's time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=("nanotron", "megatron"))
    parser.add_argument("--frameworks", type=Path, default=os.environ.get("TORCHLEDGER_FRAMEWORKS"))
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--whole", action="store_true", help="activations whole on every rank, gradients all-reduced")
    options = parser.parse_args()
    if options.frameworks is None:
        parser.error("needs --frameworks, or TORCHLEDGER_FRAMEWORKS")
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    torch.set_num_threads(1)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=options.tp // 2, world_size=options.tp)
    folder = options.frameworks
    if options.framework == "nanotron":
        step = nanotron(folder / "nanotron", folder / "flash-attention", options.tp, options.whole or options.tp == 1)
    else:
        step = megatron(folder / "Megatron-DeepSpeed", options.tp)
    times = [step() for _ in range(STEPS)][WARM:]
    # What else runs on a machine only adds: the least step is the nearest.
    forward, backward, sums = (1e6 * part / BLOCKS for part in min(times, key=sum))
    usual = 1e6 * statistics.median(map(sum, times)) / BLOCKS
    print(
        f"{options.framework}, tp={options.tp}{' whole' if options.whole else ''}, torch {torch.__version__}: "
        f"us a block: forward {forward:.0f}, backward {backward:.0f}, sums {sums:.0f}; "
        f"in all {forward + backward + sums:.0f}, the median of steps {usual:.0f}"
    )


if __name__ == "__main__":
    main()
