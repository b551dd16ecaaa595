"""Record small traces on a CUDA device, and check FLOPs found in them against torch's own counter.

python -m benchmarks.capture.h200_traces -o OUT  # on the device; writes OUT/<case>.json.gz and OUT/traces_summary.json
python -m benchmarks.capture.h200_traces --check OUT  # anywhere; reads them with `torchledger import` and compares

Cases: an eager and a compiled transformer training step (bf16 autocast, AdamW), the same under CUDA graphs after an
eager step in the trace, a convolutional training step in channels-last, and inference in float16; two steps each.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = (("-o", "{out}"), ("--check", "{out}"))

CASES = ("eager_transformer", "compiled_transformer", "cudagraph_transformer", "eager_convolutions", "eager_inference")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--device", default="cuda", help="cpu tries the script without recording any kernel")
    options = parser.parse_args()
    if options.check:
        check(options.check)
    elif options.output:
        record_all(options.output, options.device)
    else:
        parser.error("name a folder with -o to record into, or with --check to read from")


def record_all(folder: Path, device: str) -> None:
    """Record each case; one that fails is reported and the others go on."""
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }
    for case in CASES:
        start = time.monotonic()
        try:
            summary[case] = record(case, folder / f"{case}.json.gz", device)
        except RuntimeError as error:
            summary[case] = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(f"{case}: {time.monotonic() - start:.1f} s {summary[case]}", flush=True)
        torch.compiler.reset()
    (folder / "traces_summary.json").write_text(json.dumps(summary, indent=2))


def record(case: str, path: Path, device: str) -> dict[str, Any]:
    """Profile two steps of a case after its warm-up; returns FLOPs of an eager step by torch's counter."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function
    from torch.utils.flop_counter import FlopCounterMode

    synchronize = torch.cuda.synchronize if device == "cuda" else lambda: None
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    eager, step = make_step(case, device)
    for _ in range(3):
        eager()
    with FlopCounterMode(display=False) as counter:
        eager()
    for _ in range(5):
        step()
    synchronize()
    with profile(activities=activities, record_shapes=True) as recorded:
        if case.startswith("cudagraph"):
            eager()
        for _ in range(2):
            with record_function("step"):
                step()
        synchronize()
    plain = path.with_suffix("")
    recorded.export_chrome_trace(str(plain))
    path.write_bytes(gzip.compress(plain.read_bytes(), 6))
    plain.unlink()
    return {"flops_of_a_step": counter.get_total_flops(), "bytes": path.stat().st_size}


def make_step(case: str, device: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """An eager step, and the step that is recorded."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if case == "eager_convolutions":
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, stride=2, padding=3),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        for width in (64, 128):
            layers += [nn.Conv2d(width, 128, 3, padding=1), nn.BatchNorm2d(128), nn.SiLU()]
            layers += [nn.Conv2d(128, 128, 3, padding=1, groups=128), nn.GroupNorm(8, 128), nn.GELU()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100)]
        network = nn.Sequential(*layers).to(device, memory_format=torch.channels_last)
        images = torch.randn(32, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
        labels = torch.randint(0, 100, (32,), device=device)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)

        def train() -> None:
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()

        return train, train
    if case == "eager_inference":
        model = make_transformer(width=1024, layers=4, heads=16).to(device).half().eval()
        tokens = torch.randint(0, 8192, (8, 512), device=device)

        def infer() -> None:
            with torch.inference_mode():
                model(tokens)

        return infer, infer
    model = make_transformer(width=768, layers=4, heads=12).to(device)
    tokens = torch.randint(0, 8192, (8, 513), device=device)
    is_fused = case == "compiled_transformer"
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_fused or None)

    def step_of(network: Any) -> Callable[[], None]:
        def train() -> None:
            adam.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                scores = network(tokens[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1).float(), tokens[:, 1:].flatten())
            loss.backward()
            adam.step()

        return train

    if case == "eager_transformer":
        return step_of(model), step_of(model)
    mode = "reduce-overhead" if case.startswith("cudagraph") else None
    return step_of(model), step_of(torch.compile(model, mode=mode))


def make_transformer(*, width: int, layers: int, heads: int) -> Any:
    """A decoder with embeddings, causal attention, a gated feed-forward part and RMS norm."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.RMSNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)
            self.gate, self.up, self.down = (
                nn.Linear(width, 2 * width),
                nn.Linear(width, 2 * width),
                nn.Linear(2 * width, width),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, length, _ = x.shape
            parts = self.qkv(self.before(x)).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
            y = self.after(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(8192, width), nn.Embedding(512, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, 8192, bias=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    return Decoder()


def check(folder: Path) -> None:
    """Read the recorded traces: coverage, sums, and FLOPs per step beside the counter's."""
    from torchledger.traces.breakdown import import_trace

    summary = json.loads((folder / "traces_summary.json").read_text())
    is_good = True
    for case in CASES:
        path = folder / f"{case}.json.gz"
        if not path.exists():
            print(f"{case}: not recorded: {summary.get(case)}")
            continue
        breakdown, events = import_trace(path)
        eager_steps = 1 if case.startswith("cudagraph") else 0
        flops = sum(event.cost.flops or 0 for event in events)
        expected = summary[case]["flops_of_a_step"] * (2 + eager_steps)
        known = breakdown.known_kernel_us / breakdown.kernel_us
        is_good &= known >= 0.95 or case.startswith("cudagraph")
        print(
            f"{case}: kernels {breakdown.kernel_us / 1e3:.2f} ms, busy {breakdown.busy_share or 0:.1%}, "
            f"known {known:.2%}, FLOPs {flops / expected:.4f} of torch's counter"
        )
        for reason, time_us in list(breakdown.unknown_us.items())[:8]:
            print(f"    {time_us:9.1f} us without FLOPs or bytes: {reason}")
    if not is_good:
        sys.exit("a trace has more than 5 % of kernel time without FLOPs or bytes")


if __name__ == "__main__":
    main()
