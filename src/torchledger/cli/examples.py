"""Two examples of each command, with which its ``--help`` ends."""

from __future__ import annotations

from collections.abc import Mapping

import click

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "run": ("-o gpt.ledger train.py --steps 3", "--profile -o gpt.ledger train.py"),
    "show": ("gpt.ledger", "gpt.ledger forward_0#12"),
    "report": ("gpt.ledger -o gpt.html", "old.ledger new.ledger"),
    "import": ("trace.json.gz", "report.sqlite --ledger gpt.ledger"),
    "bench": ("gpt.ledger", "gpt.ledger forward_0#12 --json"),
    "extract": ("gpt.ledger forward_0#12 -o kernel.py", "gpt.ledger --graph forward_0 -o graph.py"),
    "doctor": ("", "--json"),
    "values": ("--find nan -o run.ledger train.py", "--against eager -o run.ledger train.py"),
    "diff": ("old.job new.job", "main.ledger branch.ledger --fail-if 'launches > +0' --markdown"),
    "export": ("gpt.ledger --format parquet -o gpt", "j.job -o job.trace.json"),
    "devices": ("", "--json"),
    "calibrate": ("", "--budget 3m -o quick.tlmodel"),
    "fit": ("sweep.samples -o my.tlmodel", "sampling_data/ fused.launches -o my.tlmodel"),
    "fit-constants": ("sweep.samples -o my.json", "sweep.samples fused.launches -o my.json"),
    "predict": (
        "linear m=4096 k=4096 n=11008 --dtype fp16",
        "encoder layers=32 hidden=4096 heads=32 length=2048 batch=4",
    ),
    "plan": ("--device H200 train.py --steps 100", "--layouts llama-8b.yml --world 64 --fabric h200+3200gb"),
    "predict-step": ("gpt.ledger", "gpt.ledger --device my.tlmodel --graphs"),
    "evaluate": ("sweep.samples", "csv/ --json"),
    "sample": ("sweep.yml --budget 10min", "flash_atten.yml --precision fp16 --operators my_ops.py"),
    "samples merge": ("a.samples b.samples -o all.parquet", "a.samples b.samples -o all.parquet --allow-mixed"),
    "samples show": ("sweep.samples", "sweep.samples --json"),
    "samples check": ("sweep.samples", "all.parquet --json"),
    "samples export": ("sweep.samples -o csv", "all.parquet -o csv --force"),
    "samples compact": ("sweep.samples", "sweep.samples --json"),
}
"""By the command's words, what follows them."""


def add_examples(name: str, command: click.Command) -> None:
    """End the help of a command, and of those below it, with its examples."""
    if name in EXAMPLES:
        lines = [f"  $ torchledger {name} {words}".rstrip() for words in EXAMPLES[name]]
        command.epilog = "\b\n" + "\n".join(["Examples:", *lines])
    if isinstance(command, click.Group):
        for part, below in command.commands.items():
            add_examples(f"{name} {part}", below)
