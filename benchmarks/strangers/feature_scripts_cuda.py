"""Scripts that use what the plain training loop does not, on a GPU and predicted:
``benchmarks/strangers/feature_scripts``.

    python -m benchmarks.strangers.feature_scripts_cuda measure -o OUT [--minutes 5] [--workers 8]
        [NAMES ...]  # on the GPU
    python -m benchmarks.strangers.feature_scripts_cuda judge OUT [--model H100]

Ensembles by ``vmap``, meta-learning, second derivatives, per-sample gradients, operators and kernels of the program's
own, eight-bit products, jagged tensors, graphs that the program captures, activations on the host, decoding and
training in one loop, solvers, three dimensions. ``measure`` runs each under ``torchledger run --profile``, with sizes
for a GPU; with several workers their kernels take turns, and those of more than two milliseconds are recorded longer
than they are. ``judge`` prints the device time of a step, recorded and predicted.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.strangers.stranger_scripts_cuda import print_steps

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = ()

SCRIPTS = Path(__file__).resolve().parent / "feature_scripts"
SIZES = {
    "aot_export": "--d 1024 --batch 512",
    "beam": "--h 1024 --beams 16",
    "compiled_autograd": "--batch 1024 --dim 1024",
    "cudagraph": "--batch 1024 --dim 2048",
    "custom_ops": "--batch 32 --length 1024 --dim 1024",
    "diffusion": "--batch 64 --ch 128 --size 64",
    "dp_sgd": "--batch 512",
    "ensemble_vmap": "--models 16 --batch 2048 --width 1024",
    "fno_loader": "--batch 32 --ch 64 --n 128 --modes 24 --samples 600",
    "gan_norms": "--batch 128 --w 64",
    "gp": "--n 4000",
    "grpo": "--prompts 8 --group 8 --prompt-len 128 --new 32 --dim 1024 --layers 8 --vocab 32000",
    "gru_packed": "--batch 64 --hid 512 --src 64 --tgt 16",
    "int8_fp8": "--tokens 4096 --dim 2048 --layers 8",
    "knn_kmeans": "--n 200000 --d 128 --k 1024 --q 1024",
    "lbm": "--nx 2048 --ny 1024",
    "lora_offload": "--batch 8 --len 512 --d 1024 --layers 8",
    "maml": "--tasks 8 --shots 512 --width 512",
    "moco": "--batch 128 --width 64 --size 128 --queue 16384",
    "nested_jagged": "--batch 64 --dim 512 --max-len 512",
    "neural_ode": "--batch 8192 --width 512 --steps 40",
    "pinn_lbfgs": "--points 20000 --width 128 --adam 10",
    "regional_sac": "--batch 16 --length 1024 --dim 1024 --layers 12 --vocab 32000",
    "sam_dpsgd": "--batch 128 --channels 128 --size 64",
    "sparse_emb": "--batch 8192 --rows 1000000 --dim 128",
    "specdec": "--dim 1024",
    "stn_deform": "--batch 128 --c 64 --s 64",
    "triton_user": "--n 16384 --d 4096",
    "unet3d": "--batch 2 --ch 32 --size 96",
}
_LONGEST_S, _LEAST_S = 150.0, 20.0


def measure(options: argparse.Namespace) -> None:
    """Record each script; what it prints lies beside its ledger."""
    out, end = options.output.resolve(), time.monotonic() + 60 * options.minutes
    out.mkdir(parents=True, exist_ok=True)

    def record(name: str) -> str:
        left_s = end - time.monotonic()
        if left_s < _LEAST_S:
            return f"{name}: no time left"
        script = (str(SCRIPTS / f"{name}.py"), *SIZES[name].split())
        own = (sys.executable, "-m", "torchledger", "run", "--profile", "-f", "-o", str(out / f"{name}.ledger"))
        with (out / f"{name}.log").open("w") as log:
            try:
                done = subprocess.run(
                    (*own, *script), stdout=log, stderr=subprocess.STDOUT, timeout=min(_LONGEST_S, left_s), check=False
                )
            except subprocess.TimeoutExpired:
                return f"{name}: not done in time"
        return f"{name}: ended with {done.returncode}"

    with ThreadPoolExecutor(options.workers) as pool:
        for said in pool.map(record, options.names or sorted(SIZES)):
            print(said, flush=True)


def judge(options: argparse.Namespace) -> None:
    """Print what each step takes and is said to take."""
    print_steps(options.model, ((path.stem, path) for path in sorted(options.out.glob("*.ledger"))), {})


def main() -> None:
    """Measure or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("-o", "--output", type=Path, required=True)
    measuring.add_argument("--minutes", type=float, default=5.0)
    measuring.add_argument("--workers", type=int, default=8)
    measuring.add_argument("names", nargs="*")
    measuring.set_defaults(run=measure)
    judging = commands.add_parser("judge")
    judging.add_argument("out", type=Path)
    judging.add_argument("--model", default="H100")
    judging.set_defaults(run=judge)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
