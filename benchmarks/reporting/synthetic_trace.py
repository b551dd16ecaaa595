"""A made-up Kineto trace of any size, with the fields, the layout and the mix of events of a real eager training step.

python -m benchmarks.reporting.synthetic_trace PATH MEGABYTES
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "Synthetic GPU", "totalGlobalMem": 85018279936,
      "computeMajor": 9, "computeMinor": 0, "maxThreadsPerBlock": 1024, "warpSize": 32, "numSms": 132
    }
  ],
  "record_shapes": 1,
  "with_stack": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1790857026000000000,
  "traceEvents": [
"""

KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel_cublas",
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, "
    "c10::BFloat16 const*, c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
)
OPERATORS = (("aten::add", KERNELS[0]), ("aten::mm", KERNELS[1]), ("aten::mul", KERNELS[0]), ("aten::mm", KERNELS[1]))


def write_trace(path: Path, megabytes: float, *, seed: int = 0) -> int:
    """Write a trace of about ``megabytes`` (1e6 bytes each); returns the number of its events."""
    generator = random.Random(seed)
    layers = [
        (*generator.choice(OPERATORS), 8 * generator.choice((128, 512)), generator.choice((512, 1024, 4096)))
        for _ in range(200)
    ]
    written, events, clock, identity = 0, 0, 4398610884000.0, 0
    with path.open("w") as file:
        file.write(HEADER)
        while written < megabytes * 1e6:
            parts: list[str] = []
            for _ in range(500):
                operator, kernel, rows, width = generator.choice(layers)
                clock += generator.random() * 20 + 12
                identity += 2
                _write_launch(parts.append, operator, kernel, rows, width, clock, identity, generator.random() * 10 + 1)
                events += 10
            text = "".join(parts)
            written += len(text)
            file.write(text)
        file.write(f'  {{\n    "ph": "i", "s": "g", "name": "Record Window End", "pid": "", "ts": {clock:.3f}\n  }}\n')
        file.write('  ],\n  "traceName": "synthetic.json"\n}\n')
    return events + 1


def _write_launch(
    add: Callable[[str], None],
    operator: str,
    kernel: str,
    rows: int,
    width: int,
    clock: float,
    identity: int,
    duration: float,
) -> None:
    """Three Python frames, two operators, an allocation, a launch, its kernel and the arrow between them."""
    host = '"pid": 19392, "tid": 19392'
    for depth in range(3):
        add(f"""  {{
    "ph": "X", "cat": "python_function", "name": "torch/nn/module.py({1700 + depth}): call_{identity % 37}", {host},
    "ts": {clock + depth / 10:.3f}, "dur": {12 - depth * 0.3:.3f},
    "args": {{
      "Python parent id": {identity + depth}, "Python id": {identity + depth + 1}, "Ev Idx": {identity + depth}
    }}
  }},
""")
    shapes = f"[[{rows}, {width}], [{width}, {width}], []]"
    strides = f"[[{width}, 1], [{width}, 1], []]"
    for depth, name in enumerate(("aten::linear", operator)):
        add(f"""  {{
    "ph": "X", "cat": "cpu_op", "name": "{name}", {host},
    "ts": {clock + 1 + depth:.3f}, "dur": {9 - 2 * depth:.3f},
    "args": {{
      "External id": {identity + depth},"Record function id": 0, "Sequence number": {identity}, "Fwd thread id": 0, \
"Concrete Inputs": ["", "", "1"], "Input type": ["c10::BFloat16", "c10::BFloat16", "Scalar"], \
"Input Strides": {strides}, "Input Dims": {shapes}, "Ev Idx": {identity + depth}
    }}
  }},
""")
    add(f"""  {{
    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", {host},
    "ts": {clock + 2.5:.3f},
    "args": {{
      "Total Reserved": 121634816, "Total Allocated": {91505152 + identity}, "Bytes": 144384, "Addr": 128184607182336, \
"Device Id": 0, "Device Type": 1, "Ev Idx": {identity}
    }}
  }},
  {{
    "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", {host},
    "ts": {clock + 3:.3f}, "dur": 4.512,
    "args": {{
      "External id": {identity + 1}, "cbid": 211, "correlation": {identity}
    }}
  }},
  {{
    "ph": "s", "id": {identity}, {host}, "ts": {clock + 3:.3f},
    "cat": "ac2g", "name": "ac2g"
  }},
  {{
    "ph": "X", "cat": "kernel", "name": "{kernel}", "pid": 0, "tid": 7,
    "ts": {clock + 9:.3f}, "dur": {duration:.3f},
    "args": {{
      "External id": {identity + 1},
      "queued": 0, "device": 0, "context": 1,
      "stream": 7, "correlation": {identity},
      "registers per thread": 32,
      "shared memory": 0,
      "blocks per SM": 4.272727,
      "warps per SM": 17.09091,
      "grid": [{rows // 4}, 1, 1],
      "block": [128, 1, 1],
      "est. achieved occupancy %": 27
    }}
  }},
  {{
    "ph": "f", "id": {identity}, "pid": 0, "tid": 7, "ts": {clock + 9:.3f},
    "cat": "ac2g", "name": "ac2g", "bp": "e"
  }},
""")


if __name__ == "__main__":
    print(write_trace(Path(sys.argv[1]), float(sys.argv[2])), "events")
