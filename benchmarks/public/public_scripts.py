"""Public scripts, as they are, on a GPU and planned without it.

    python -m benchmarks.public.public_scripts data PUBLIC  # random data, where they read it
    python -m benchmarks.public.public_scripts measure PUBLIC -o OUT [--minutes 7] [--only NAME ...]  # on the GPU
    python -m benchmarks.public.public_scripts plan PUBLIC -o PLANS [--device H200] [--only NAME ...]  # without one
    python -m benchmarks.public.public_scripts judge OUT --plans PLANS [--device H200]

PUBLIC holds clones of the repositories, each by its own name. Beside their scripts stand those of
``benchmarks/public/library_scripts``, which train with libraries as these say that one does. ``measure`` runs each
script under ``torchledger run --profile``, one on a GPU at a time, and interrupts it behind its seconds, as a user
would; what a script times of its own steps is in its log, and where it stood that did not end. ``judge`` holds plans
against recordings, launch by launch, and steps against what they took.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import signal
import statistics
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.limited import run_limited
from benchmarks.shared.places import child_environment

NEEDS: tuple[str, ...] = ("cuda",)
RUNS: tuple[tuple[str, ...], ...] = ()

_LEAST_S, _GRACE_S, _ABORT_S, _PLAN_S = 20.0, 60.0, 5.0, 300.0
_WORDS, _TOKENS = 9000, 50257


_LIBRARIES = Path(__file__).resolve().parent / "library_scripts"
_SERIES = (
    "run.py --task_name long_term_forecast --is_training 1 --root_path ./dataset/ETT-small/ --data_path ETTh1.csv "
    "--model_id t --data ETTh1 --features M --seq_len 96 --label_len 48 --pred_len 96 --e_layers 2 --d_layers 1 "
    "--factor 3 --enc_in 7 --dec_in 7 --c_out 7 --des Exp --itr 1 --train_epochs 1 --model"
)


_BENCHMARKS = {
    "train": "BERT_pytorch demucs dcgan functorch_dp_cifar10 hf_BigBird hf_Reformer lennard_jones "
    "nvidia_deeprecommender phlippe_densenet phlippe_resnet pytorch_unet soft_actor_critic tts_angular",
    "eval": "pyhpc_equation_of_state pyhpc_turbulent_kinetic_energy llama",
}
"""Of pytorch/benchmark, by what is run: those that want neither the network nor a package of their own."""


@dataclass(frozen=True)
class Script:
    """A script in a folder of PUBLIC, its arguments, and how long it runs at most."""

    folder: str
    command: str
    seconds: float = 60.0


SCRIPTS = {
    "mnist": Script("examples/mnist", "main.py --epochs 1"),
    "mnist_rnn": Script("examples/mnist_rnn", "main.py --epochs 1 --accel"),
    "siamese": Script("examples/siamese_network", "main.py --epochs 1"),
    "vae": Script("examples/vae", "main.py --epochs 1"),
    "dcgan": Script("examples/dcgan", "main.py --dataset fake --accel --niter 1"),
    "imagenet": Script("examples/imagenet", "main.py -a resnet50 --dummy --epochs 1 --batch-size 64"),
    "lstm": Script("examples/word_language_model", "main.py --epochs 1 --accel"),
    "transformer": Script("examples/word_language_model", "main.py --model Transformer --epochs 1 --accel"),
    "nanogpt": Script("nanoGPT", "train.py config/train_gpt2.py --wandb_log=False --gradient_accumulation_steps=4 "
                      "--eval_iters=2 --max_iters=40", 90.0),
    "nanogpt_small": Script("nanoGPT", "train.py config/train_shakespeare_char.py --dataset=openwebtext --eval_iters=2 "
                            "--max_iters=200"),
    "nanogpt_bench": Script("nanoGPT", "bench.py", 90.0),
    "mingpt": Script("minGPT", "projects/adder/adder.py"),
    "llmc": Script("llm.c", "train_gpt2.py --model d12 --compile 1 --dtype bfloat16 --batch_size 8 --sequence_length "
                   "1024 --total_batch_size 16384 --write_tensors 0 --overfit_single_batch 0 --num_iterations 40",
                   180.0),
    "llmc_eager": Script("llm.c", "train_gpt2.py --model d12 --write_tensors 0 --num_iterations 60"),
    "build_nanogpt": Script("build-nanogpt", "train_gpt2.py", 60.0),
    "dlrm": Script("dlrm", "dlrm_s_pytorch.py --use-gpu --arch-sparse-feature-size=64 --arch-mlp-bot=512-256-64 "
                   "--arch-mlp-top=512-256-1 --arch-embedding-size=100000-100000-100000-100000 --mini-batch-size=4096 "
                   "--num-batches=60 --data-generation=random --print-time"),
    "unet": Script("Pytorch-UNet", "train.py --epochs 8 --batch-size 2 --amp"),
    "airbench": Script("cifar10-airbench", "airbench94_muon.py", 90.0),
    "airbench_compiled": Script("cifar10-airbench", "legacy/airbench94_compiled.py", 90.0),
    "gptfast": Script("gpt-fast", "generate.py --checkpoint_path checkpoints/stories110M/model.pth --prompt hello "
                      "--max_new_tokens 100 --num_samples 4"),
    "gptfast_compiled": Script("gpt-fast", "generate.py --compile --checkpoint_path checkpoints/stories110M/model.pth "
                               "--prompt hello --max_new_tokens 100 --num_samples 4", 90.0),
    "x_copy": Script("x-transformers", "train_copy.py", 40.0),
    "x_parity": Script("x-transformers", "train_parity.py", 40.0),
    "timm_train": Script("pytorch-image-models", "benchmark.py --model efficientnet_b0 --bench train --batch-size 64 "
                         "--torchcompile inductor --amp --num-bench-iter 30 --num-warm-iter 5", 100.0),
    "timm_infer": Script("pytorch-image-models", "benchmark.py --model vit_small_patch16_224 --bench infer "
                         "--batch-size 64 --amp --num-bench-iter 30 --num-warm-iter 5"),
    "openclip": Script("open_clip/src", "-m open_clip_train.main --dataset-type synthetic --model ViT-B-32 "
                       "--train-num-samples 4096 --batch-size 64 --precision amp --workers 2 --epochs 1"),
    **{f"series_{model}": Script("Time-Series-Library", f"{_SERIES} {model}", 30.0)
       for model in ("PatchTST", "TimesNet", "Autoformer", "Informer", "iTransformer", "DLinear")},
    **{f"bench_{model}": Script("benchmark", f"run.py {model} -d cuda -t {test}", 30.0)
       for test, models in _BENCHMARKS.items() for model in models.split()},
    **{name: Script(f"TCN/TCN/{folder}", script, 30.0)
       for name, folder, script in (("adding", "adding_problem", "add_test.py"),
                                    ("copying", "copy_memory", "copymem_test.py"),
                                    ("pixels", "mnist_pixel", "pmnist_test.py"))},
    **{f"tutorial_{name}": Script(f"pytorch-tutorial/tutorials/{folder}", "main.py", 25.0)
       for name, folder in (("cnn", "02-intermediate/convolutional_neural_network"),
                            ("rnn", "02-intermediate/bidirectional_recurrent_neural_network"),
                            ("language", "02-intermediate/language_model"),
                            ("gan", "03-advanced/generative_adversarial_network"),
                            ("vae", "03-advanced/variational_autoencoder"))},
    "speed": Script("LLMs-from-scratch/ch05/10_llm-training-speed", "00_orig.py", 35.0),
    "speed_compiled": Script("LLMs-from-scratch/ch05/10_llm-training-speed", "01_opt_single_gpu.py", 70.0),
    "gcn": Script("pygcn/pygcn", "train.py", 25.0),
    "edm": Script("edm", "train.py --outdir=runs --data=pictures --cond=0 --arch=ddpmpp --batch=32 --workers=1", 45.0),
    **{f"cifar_{model}": Script("pytorch-cifar", f"main_{model}.py", 30.0)
       for model in ("ResNet18", "MobileNetV2", "DenseNet121", "DPN92")},
    **{path.stem: Script("library", str(path), 60.0 if "compile" in path.read_text() else 35.0)
       for path in sorted(_LIBRARIES.glob("*.py"))},
}  # fmt: skip


def data(options: argparse.Namespace) -> None:
    """Random numbers in the files and formats that the scripts read, and stand-ins for what they log or encode with."""
    public = options.public
    for make in (_images, _texts, _citations, _tokens, _cifar, _segments, _checkpoint, _series, _pictures, _stand_ins):
        try:
            make(public)
        except (OSError, ImportError) as error:  # of a repository that is not there
            print(f"{make.__name__[1:]}: {error}", flush=True)
        else:
            print(f"{make.__name__[1:]}: made", flush=True)


def _numbers() -> Any:
    import numpy

    return numpy.random.default_rng(0)


def _images(public: Path) -> None:
    """MNIST's files."""
    for folder in ("examples/data", "pytorch-tutorial/tutorials/data", "TCN/TCN/mnist_pixel/data/mnist"):
        draw, raw = _numbers(), public / folder / "MNIST/raw"
        raw.mkdir(parents=True, exist_ok=True)
        for part, count in (("train", 6000), ("t10k", 1000)):
            for kind, array in (
                ("images-idx3", draw.integers(0, 256, (count, 28, 28))),
                ("labels-idx1", draw.integers(0, 10, (count,))),
            ):
                head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
                (raw / f"{part}-{kind}-ubyte").write_bytes(head + array.astype("uint8").tobytes())


def _texts(public: Path) -> None:
    """WikiText's files, of made-up words."""
    draw = _numbers()
    words = ["".join(draw.choice(list("abcdefghijklmnopqrstuvwxyz"), 5)) for _ in range(_WORDS)]
    folder = public / "examples/word_language_model/data/wikitext-2"
    folder.mkdir(parents=True, exist_ok=True)
    for part, lines in (("train", 8000), ("valid", 100), ("test", 100)):
        drawn = draw.zipf(1.2, (lines, 25)) % _WORDS
        (folder / f"{part}.txt").write_text("\n".join(" ".join(words[i] for i in line) for line in drawn))
    text = "\n".join(" ".join(words[i] for i in line) for line in draw.zipf(1.2, (8000, 25)) % _WORDS)
    for path in ("pytorch-tutorial/tutorials/02-intermediate/language_model/data/train.txt",
                 "LLMs-from-scratch/ch05/10_llm-training-speed/middlemarch.txt"):  # fmt: skip
        (public / path).parent.mkdir(parents=True, exist_ok=True)
        (public / path).write_text(text)


def _citations(public: Path) -> None:
    """A graph of Cora's size."""
    draw, count = _numbers(), 2708
    folder = public / "pygcn/data/cora"
    folder.mkdir(parents=True, exist_ok=True)
    words = (draw.random((count, 1433)) < 0.012).astype(int)
    papers = ("\t".join([str(k), *map(str, row), f"class {k % 7}".replace(" ", "_")]) for k, row in enumerate(words))
    (folder / "cora.content").write_text("\n".join(papers) + "\n")
    links = draw.integers(0, count, (5429, 2))
    (folder / "cora.cites").write_text("\n".join(f"{first}\t{second}" for first, second in links) + "\n")


def _tokens(public: Path) -> None:
    """Token files of nanoGPT, llm.c and build-nanogpt."""
    import numpy

    tokens = _numbers().integers(0, _TOKENS, 1_200_000).astype(numpy.uint16)
    web = public / "nanoGPT/data/openwebtext"
    web.mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        tokens.tofile(web / f"{name}.bin")
    head = numpy.zeros(256, dtype=numpy.int32)
    head[:3] = 20240520, 1, len(tokens)
    shakespeare = public / "llm.c/dev/data/tinyshakespeare"
    shakespeare.mkdir(parents=True, exist_ok=True)
    (shakespeare / "tiny_shakespeare_val.bin").write_bytes(head.tobytes() + tokens.tobytes())
    shards = public / "build-nanogpt/edu_fineweb10B"
    shards.mkdir(exist_ok=True)
    for name in ("val_000000", "train_000001"):
        numpy.save(shards / f"edufineweb_{name}.npy", tokens)
    examples = public / "build-nanogpt/hellaswag"
    examples.mkdir(exist_ok=True)
    ends = ", ".join(f'"he walks away{" now" * k}"' for k in range(4))
    lines = (f'{{"ctx": "A man is sitting on a bench.", "label": {k % 4}, "endings": [{ends}]}}' for k in range(40))
    (examples / "hellaswag_val.jsonl").write_text("\n".join(lines))


def _cifar(public: Path) -> None:
    """CIFAR-10's pictures as airbench keeps them."""
    import torch

    folder = public / "cifar10-airbench/cifar10"
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 50000), ("test", 10000)):
        images = torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8)
        labels = torch.randint(0, 10, (count,))
        torch.save({"images": images, "labels": labels, "classes": [str(i) for i in range(10)]}, folder / f"{name}.pt")


def _segments(public: Path) -> None:
    """Pictures and their masks, of Carvana's size."""
    from PIL import Image

    draw = _numbers()
    images, masks = public / "Pytorch-UNet/data/imgs", public / "Pytorch-UNet/data/masks"
    for folder in (images, masks):
        folder.mkdir(parents=True, exist_ok=True)
    for place in range(12):
        Image.fromarray(draw.integers(0, 256, (640, 959, 3)).astype("uint8")).save(images / f"{place}.jpg")
        Image.fromarray((draw.integers(0, 2, (640, 959)) * 255).astype("uint8")).save(masks / f"{place}_mask.gif")


def _checkpoint(public: Path) -> None:
    """Weights of a small Llama as gpt-fast reads them, beside a tokenizer's file that the stand-in does not read."""
    import torch

    sys.path.insert(0, str(public / "gpt-fast"))
    from model import ModelArgs, Transformer  # type: ignore[import-not-found]

    folder = public / "gpt-fast/checkpoints/stories110M"
    folder.mkdir(parents=True, exist_ok=True)
    weights = Transformer(ModelArgs.from_name("stories110M")).to(torch.bfloat16).state_dict()
    torch.save(weights, folder / "model.pth")
    (folder / "tokenizer.model").touch()


def _series(public: Path) -> None:
    """A table of hourly numbers, as ETTh1 is one."""
    import datetime

    draw = _numbers()
    folder = public / "Time-Series-Library/dataset/ETT-small"
    folder.mkdir(parents=True, exist_ok=True)
    begin = datetime.datetime(2016, 7, 1)
    rows = draw.standard_normal((17420, 7)).cumsum(0)
    lines = ["date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT"]
    for hour, row in enumerate(rows):
        values = ",".join(f"{each:.4f}" for each in row)
        lines.append(f"{begin + datetime.timedelta(hours=hour)},{values}")
    (folder / "ETTh1.csv").write_text("\n".join(lines) + "\n")


def _pictures(public: Path) -> None:
    """Pictures in a folder; those of pytorch-cifar are made up by torchvision, and each of its models has a script."""
    from PIL import Image

    draw = _numbers()
    (public / "library/images").mkdir(parents=True, exist_ok=True)
    for place in range(200):
        array = draw.integers(0, 256, (140, 150, 3)).astype("uint8")
        Image.fromarray(array).save(public / f"library/images/{place}.jpg")
    (public / "edm/pictures").mkdir(parents=True, exist_ok=True)
    for place in range(256):
        array = draw.integers(0, 256, (32, 32, 3)).astype("uint8")
        Image.fromarray(array).save(public / f"edm/pictures/{place:05d}.png")
    text = (public / "pytorch-cifar/main.py").read_text()
    made = re.sub(
        r"CIFAR10\(\s*root='./data', train=(True|False), download=True, transform=(\w+)\)",
        r"FakeData(50000, (3, 32, 32), 10, transform=\2)",
        text,
    )
    for model in ("ResNet18", "MobileNetV2", "DenseNet121", "DPN92"):
        changed = made.replace("\nnet = SimpleDLA()", f"\nnet = {model}()")
        (public / f"pytorch-cifar/main_{model}.py").write_text(changed)


_TIKTOKEN = """\
class Encoding:
    n_vocab, max_token_value, eot_token = 50257, 50256, 50256
    def __init__(self, *args, **kwargs): pass
    def encode(self, text, **kwargs): return list(text.encode())
    encode_ordinary = encode
    def decode(self, tokens): return "".join(chr(token % 128) for token in tokens)
    def decode_bytes(self, tokens): return b"x" * len(tokens)
def get_encoding(name): return Encoding()
"""
_SENTENCEPIECE = """\
class SentencePieceProcessor:
    def __init__(self, *args, **kwargs): pass
    def EncodeAsIds(self, text): return list(text.encode())
    def DecodeIds(self, tokens): return "".join(chr(token % 128) for token in tokens)
    def bos_id(self): return 1
    def eos_id(self): return 2
"""


def _stand_ins(public: Path) -> None:
    """Packages that fetch their vocabulary, or send what they log, over the network."""
    for name, files in {
        "tiktoken": {"__init__": _TIKTOKEN, "load": "def load_tiktoken_bpe(path): return {}\n"},
        "sentencepiece": {"__init__": _SENTENCEPIECE},
        "wandb": {"__init__": "from unittest.mock import MagicMock\n__getattr__ = lambda name: MagicMock()\n"},
        "patoolib": {"__init__": ""},
        "sktime": {"__init__": "", "datasets": "load_from_tsfile_to_dataframe = None\n"},
    }.items():
        folder = public / "stand_ins" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / f"{file}.py").write_text(text)


_TOLD = {"PYTHONFAULTHANDLER": "1"}
"""An aborted process says where it stood."""


def measure(options: argparse.Namespace) -> None:
    """Record each script; what it prints lies beside its ledger."""
    import torch

    out, end = options.output.resolve(), time.monotonic() + 60 * options.minutes
    out.mkdir(parents=True, exist_ok=True)
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    gpus = gpus if gpus[0] else [str(each) for each in range(torch.cuda.device_count())]
    free: queue.Queue[str] = queue.Queue()
    for gpu in gpus:
        free.put(gpu)

    def record(name: str) -> str:
        gpu = free.get()
        try:
            left_s = end - time.monotonic()
            if left_s < _LEAST_S:
                return f"{name}: no time left"
            begin = time.monotonic()
            code = _record(options.public.resolve(), name, out, min(SCRIPTS[name].seconds, left_s), gpu)
            return f"{name}: ended with {code} after {time.monotonic() - begin:.0f} s"
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(len(gpus)) as pool:
        for said in pool.map(record, options.only or SCRIPTS):
            print(said, flush=True)
    with tarfile.open(out / "logs.tar.gz", "w:gz") as archive:
        for path in sorted(out.glob("*.log")):
            archive.add(path, path.name)
    with tarfile.open(out / "ledgers.tar.gz", "w:gz") as archive:
        for path in sorted(out.glob("*.ledger")):
            archive.add(path, path.name)


_OWN_PACKAGES = ("stand_ins", "minGPT", "pygcn")
"""Folders of PUBLIC whose packages scripts import."""


def _record(public: Path, name: str, out: Path, limit_s: float, gpu: str) -> int:
    """The exit code of a script under ``run --profile``, which is interrupted when its time is up."""
    script = SCRIPTS[name]
    own = (public / folder for folder in _OWN_PACKAGES)
    command = (sys.executable, "-m", "torchledger", "run", "--profile", "-f", "-o", str(out / f"{name}.ledger"))
    with (out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            (*command, *script.command.split()),
            cwd=public / script.folder,
            env=child_environment(*own, CUDA_VISIBLE_DEVICES=gpu, WANDB_MODE="disabled") | _TOLD,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        for wait_s, sent in ((limit_s, signal.SIGINT), (_GRACE_S, signal.SIGABRT), (_ABORT_S, signal.SIGKILL)):
            try:
                return process.wait(wait_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, sent)
        return process.wait()


def plan(options: argparse.Namespace) -> None:
    """Plan each script that is not planned yet."""
    public = options.public.resolve()
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.only or SCRIPTS:
        path = options.output.resolve() / f"{name}.ledger"
        if path.exists():
            continue
        script, begin = SCRIPTS[name], time.monotonic()
        own = (sys.executable, "-m", "torchledger", "plan", "-f", "-o", str(path), "--device", options.device)
        code, said = run_limited(
            (*own, *script.command.split()),
            _PLAN_S,
            folder=public / script.folder,
            paths=[public / folder for folder in _OWN_PACKAGES],
        )
        path.with_suffix(".log").write_text(said)
        print(f"{name}: ended with {code} after {time.monotonic() - begin:.0f} s", flush=True)


def judge(options: argparse.Namespace) -> None:
    """Print what each plan says beside its recording."""
    from benchmarks.plans.plan_compare import compare, flops, read
    from benchmarks.strangers.strangers_errors import work_us_of
    from torchledger.nouns import Step
    from torchledger.predicting.devices import find_model
    from torchledger.store import open_ledger

    model = find_model(options.device)
    print("| script | launches | the same | FLOPs equal | device ms: of plan, of recording, measured | errors "
          "| step ms: planned, by the recording's host, measured | error | decided by |\n"
          "|---|---|---|---|---|---|---|---|---|")  # fmt: skip
    notes: list[str] = []
    errors: dict[str, list[float]] = {}
    for name in SCRIPTS:
        ours, theirs = options.plans / f"{name}.ledger", options.out / f"{name}.ledger"
        if not ours.exists() or not theirs.exists():
            print(f"| {name} | {'not recorded' if ours.exists() else 'not planned'} |")
            continue
        with open_ledger(theirs) as reader:
            step = next(iter(reader.read(Step)[-1:]), None)
        if step is None or not step.device_us or not step.duration_us:
            print(f"| {name} | no step was recorded |")
            continue
        planned, recorded = read(ours, model), read(theirs, model)
        told = compare(planned, recorded)
        equal = flops(planned) / flops(recorded) if flops(recorded) else float("nan")
        own = _by_its_host(model, theirs)
        work, work_recorded = work_us_of(planned.prediction), work_us_of(recorded.prediction)
        figures = {
            "device, of plan": work / step.device_us - 1,
            "device, of recording": work_recorded / step.device_us - 1,
            "apart": work / work_recorded - 1,
            "step": planned.prediction.duration_us / step.duration_us - 1,
            "step of recording": own / step.duration_us - 1,
        }
        for key, value in figures.items():
            errors.setdefault(key, []).append(abs(value))
        decides = max(planned.prediction.decided_by.items(), key=lambda each: each[1])[0]
        times = (work, work_recorded, step.device_us)
        steps = (planned.prediction.duration_us, own, step.duration_us)
        print(
            f"| {name} | {told['launches']} | {told['same'] / max(told['launches'], 1):.1%} | {equal:.4f} "
            f"| {', '.join(f'{each / 1e3:.2f}' for each in times)} "
            f"| {figures['device, of plan']:+.1%}, {figures['device, of recording']:+.1%} "
            f"| {', '.join(f'{each / 1e3:.2f}' for each in steps)} "
            f"| {figures['step']:+.1%}, {figures['step of recording']:+.1%} | {decides} |",
            flush=True,
        )
        notes += [f"- {name}: {each}" for each in told["differences"][:8]]
    for key, values in errors.items():
        if values:
            print(f"\n{key}: {len(values)} scripts, mean error {statistics.mean(values):.1%}, ", end="")
            print(f"median {statistics.median(values):.1%}, worst {max(values):.1%}")
    print("", *notes, sep="\n")


def _by_its_host(model: Any, path: Path) -> float:
    """What a recording is predicted to take by what it saw of its own host."""
    from torchledger.predicting.step import predict_ledger

    step, *_ = predict_ledger(model, path)
    return float(step.duration_us)


def main() -> None:
    """Make data, measure, plan or judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for run, needs_names in ((data, False), (measure, True), (plan, True)):
        own = _command(commands, run)
        own.add_argument("public", type=Path)
        if needs_names:
            own.add_argument("-o", "--output", type=Path, required=True)
            own.add_argument("--only", nargs="+")
        if run is measure:
            own.add_argument("--minutes", type=float, default=7.0)
        if run is plan:
            own.add_argument("--device", default="H200")
    own = _command(commands, judge)
    own.add_argument("out", type=Path)
    own.add_argument("--plans", type=Path, required=True)
    own.add_argument("--device", default="H200")
    options = parser.parse_args()
    options.run(options)


def _command(commands: Any, run: Callable[[argparse.Namespace], None]) -> argparse.ArgumentParser:
    own: argparse.ArgumentParser = commands.add_parser(run.__name__, help=run.__doc__)
    own.set_defaults(run=run)
    return own


if __name__ == "__main__":
    main()
