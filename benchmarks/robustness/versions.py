"""Which versions of torch and Python a wheel of torchledger works with: `make versions`.

python -m benchmarks.robustness.versions [--torch 2.9 ...] [--python 3.12=/path/to/python ...] [-o PAGE] [--readme]

Builds a wheel of the committed state. For each torch and each Python that this machine has, one after the other: a new
environment, the wheel and that torch from the package index, then a small training script in an empty folder: recorded
(`run`), recorded with a step (`run --profile`), shown, and its books read. `uv` is used where it is at hand (it keeps
what combinations share), else pip. Each environment takes 5 to 8 GB while it is tried, for the index's wheels for Linux
carry CUDA, and is removed. The page is written after each combination, beside what earlier runs found; with --readme
the README's table too.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.shared.marked import write_between_marks
from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ("network",)
RUNS: tuple[tuple[str, ...], ...] = (("--torch", "2.13", "-o", "{out}/versions.md"),)

TORCHES = ("2.9", "2.10", "2.11", "2.12", "2.13", "2.14")
PYTHONS = ("3.11", "3.12", "3.13", "3.14")

INSTALL_LIMIT_S = 1200
COMMAND_LIMIT_S = 600

SCRIPT = """\
import torch


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.norm = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32), torch.nn.LayerNorm(32)

    def forward(self, x):
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


torch.manual_seed(0)
model = Block()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
compiled = torch.compile(model)
for _ in range(12):
    optimizer.zero_grad()
    compiled(torch.randn(16, 32)).square().mean().backward()
    optimizer.step()
"""
"""What is recorded: a model, its loss and its optimizer, small enough that compiling it is all that takes time."""


@dataclass(frozen=True)
class Outcome:
    """How one combination did: ``state`` is "passes", "differs" (it ran, ``reason`` says what is not as it should be),
    "fails", or "cannot be had" (no interpreter, no wheel)."""

    torch: str
    python: str
    state: str
    reason: str = ""
    torch_version: str | None = None
    launches: int | None = None
    seconds: float | None = None


def find_pythons(named: Sequence[str]) -> dict[str, Path | None]:
    """Interpreters by version, of those named (``3.12``, or ``3.12=PATH``) or of all: ``python3.12`` if it starts."""
    found: dict[str, Path | None] = {}
    given = {version: path for version, _, path in (text.partition("=") for text in named)}
    for version in given or PYTHONS:
        path = given.get(version) or shutil.which(f"python{version}")
        starts = path is not None and _run([path, "-c", "import venv"], 60).returncode == 0
        found[version] = Path(path) if path is not None and starts else None
    return found


def build_wheel(folder: Path) -> Path:
    """A wheel of the committed state, built outside of the checkout."""
    source = folder / "source"
    source.mkdir()
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=packed, check=True)
    built = _run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(source)], 600)
    (wheel,) = folder.glob("*.whl") if built.returncode == 0 else (None,)
    if wheel is None:
        raise SystemExit(f"no wheel was built: {_last_line(built.stderr)}")
    return wheel


def try_combination(torch: str, python: str, interpreter: Path, wheel: Path, folder: Path) -> Outcome:
    """Install and run one combination in ``folder``, which is removed afterwards."""
    started = time.monotonic()
    try:
        folder.mkdir(parents=True)
        # torch imports setuptools while compiling and asks for it from Python 3.12 on only: what `python -m venv` makes
        # for an earlier one holds it.
        installed = _install(folder / "env", interpreter, [str(wheel), f"torch=={torch}.*", "setuptools"])
        if installed.returncode:
            absent = re.search(r"no (matching|wheels)|No matching distribution|unsatisfiable", installed.stderr)
            reason = _last_line(installed.stderr)
            return Outcome(torch, python, "cannot be had" if absent else "fails", reason)
        return _use(torch, python, folder, started)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _use(torch: str, python: str, folder: Path, started: float) -> Outcome:
    bin_folder, work = folder / "env" / "bin", folder / "work"
    work.mkdir()
    (work / "train.py").write_text(SCRIPT)
    # Nothing of the checkout, and caches of its own: another torch's kernels must not answer for this one.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TORCHINDUCTOR", "TORCHLEDGER"))}
    environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return _run([str(bin_folder / arguments[0]), *arguments[1:]], COMMAND_LIMIT_S, cwd=work, env=environment)

    version = ask("python", "-c", "import torch; print(torch.__version__)")
    found = version.stdout.strip() or None

    def outcome(state: str, reason: str = "", launches: int | None = None) -> Outcome:
        return Outcome(torch, python, state, reason, found, launches, round(time.monotonic() - started, 1))

    if version.returncode:
        return outcome("fails", f"import torch: {_last_line(version.stderr)}")
    for command in (
        ("torchledger", "run", "-o", "plain.ledger", "train.py"),
        ("torchledger", "run", "--profile", "-o", "step.ledger", "train.py"),
        ("torchledger", "show", "step.ledger"),
        ("torchledger", "report", "step.ledger", "-o", "page.html"),
    ):
        answer = ask(*command)
        if answer.returncode:
            return outcome("fails", f"{' '.join(command[:3])}: {_last_line(answer.stderr)}")
    plain, step = (_shown(ask, name) for name in ("plain.ledger", "step.ledger"))
    faults = [*_faults(plain, "run"), *_faults(step, "run --profile")]
    return outcome("differs" if faults else "passes", "; ".join(faults), _launches(step))


def _shown(ask: Callable[..., subprocess.CompletedProcess[str]], name: str) -> dict[str, object]:
    shown: dict[str, object] = json.loads(ask("torchledger", "show", name, "--json").stdout)
    return shown


def _launches(shown: dict[str, object]) -> int | None:
    balance = shown["balance"]
    assert isinstance(balance, dict)
    count = balance["launches"]["ledger"]
    return int(count) if count is not None else None


def _faults(shown: dict[str, object], command: str) -> list[str]:
    """What a recording of ``SCRIPT`` should not say: no launches, books that do not balance, no step."""
    balance = shown["balance"]
    assert isinstance(balance, dict)
    faults = [] if _launches(shown) else [f"{command}: no launches"]
    faults += [f"{command}: {name} does not balance" for name, each in balance.items() if each["is_balanced"] is False]
    if "--profile" in command and "step_launches" not in balance:
        faults.append(f"{command}: no step")
    elif "--profile" in command and balance["step_operators"]["reference"] is None:
        faults.append(f"{command}: eager operators of the step were not heard: their lines and its memory are unknown")
    return faults


def _install(env: Path, interpreter: Path, what: Sequence[str]) -> subprocess.CompletedProcess[str]:
    if uv := shutil.which("uv"):
        made = _run([uv, "venv", "-q", "--no-python-downloads", "-p", str(interpreter), str(env)], 120)
        install = [uv, "pip", "install", "-q", "-p", str(env / "bin" / "python")]
    else:
        made = _run([str(interpreter), "-m", "venv", str(env)], 120)
        install = [str(env / "bin" / "python"), "-m", "pip", "install", "-q"]
    return made if made.returncode else _run([*install, *what], INSTALL_LIMIT_S)


def _run(
    command: Sequence[str], limit_s: float, *, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, cwd=cwd, env=env, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"took longer than {limit_s:.0f} s")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no message"


MARKS = {"passes": "yes", "differs": "in part", "fails": "no", "cannot be had": "not tried"}


def table(outcomes: Sequence[Outcome]) -> str:
    """Torch by Python, in Markdown: yes, in part, no, or not tried.

    >>> print(table([Outcome("2.13", "3.11", "passes", "", "2.13.0+cpu", 8, 60.0)]))
    | torch | Python 3.11 |
    |---|---|
    | 2.13 | yes |
    """
    by_key = {(each.torch, each.python): MARKS[each.state] for each in outcomes}
    pythons = [version for version in PYTHONS if any(python == version for _, python in by_key)]
    torches = [version for version in TORCHES if any(torch == version for torch, _ in by_key)]
    lines = [
        "| torch | " + " | ".join(f"Python {version}" for version in pythons) + " |",
        "|---" * (1 + len(pythons)) + "|",
    ]
    for torch in torches:
        lines.append(f"| {torch} | " + " | ".join(by_key.get((torch, p), "not tried") for p in pythons) + " |")
    return "\n".join(lines)


def page(outcomes: Sequence[Outcome], wheel: str, command: str) -> str:
    """The result page."""
    rows = [
        f"| {each.torch_version or each.torch} | {each.python} | {each.state} | {each.launches or ''} | "
        f"{each.seconds or ''} | {each.reason.replace('|', ' ')} |"
        for each in outcomes
    ]
    return "\n".join(
        [
            "# Versions of torch and Python",
            "",
            f"{datetime.date.today().isoformat()}, {wheel}, installed into an empty environment; no GPU.",
            "A small script is recorded by `run` and by `run --profile`, shown, and drawn as a page. Yes: every",
            "account of its books that has a second count balances, its step is found, and its operators were heard.",
            "",
            "```console",
            f"$ {command}",
            "```",
            "",
            table(outcomes),
            "",
            "| torch | Python | | launches | seconds, with installing | what is not as it should be |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def read_outcomes(path: Path) -> dict[tuple[str, str], Outcome]:
    """What earlier runs found, by torch and Python: it stands until the combination is tried again."""
    if not path.exists():
        return {}
    return {(each["torch"], each["python"]): Outcome(**each) for each in json.loads(path.read_text())}


def _order(key: tuple[str, str]) -> tuple[int, int]:
    return TORCHES.index(key[0]), PYTHONS.index(key[1])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", nargs="+", choices=TORCHES, default=list(TORCHES))
    parser.add_argument("--python", nargs="+", default=[], help="only these: 3.12, or 3.12=/path/to/python")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "results" / "versions.md")
    parser.add_argument("--readme", action="store_true", help="write the README's table too")
    options = parser.parse_args(arguments)
    pythons = find_pythons(options.python)
    kept = read_outcomes(options.output.with_suffix(".json"))
    with tempfile.TemporaryDirectory(prefix="torchledger-versions-") as folder:
        wheel = build_wheel(Path(folder))
        for torch in options.torch:
            for python, interpreter in pythons.items():
                if interpreter is None and (torch, python) in kept:
                    each = kept[torch, python]
                elif interpreter is None:
                    each = Outcome(torch, python, "cannot be had", "no interpreter on this machine")
                else:
                    each = try_combination(torch, python, interpreter, wheel, Path(folder) / f"{torch}-{python}")
                kept[each.torch, each.python] = each
                print(json.dumps(asdict(each)), flush=True)
                outcomes = [kept[key] for key in sorted(kept, key=_order)]
                options.output.parent.mkdir(parents=True, exist_ok=True)
                options.output.with_suffix(".json").write_text(json.dumps(list(map(asdict, outcomes)), indent=1) + "\n")
                options.output.write_text(
                    page(outcomes, wheel.name, "make versions     # python -m benchmarks.robustness.versions --readme")
                )
    if options.readme:
        write_between_marks(ROOT / "README.md", "versions", table(outcomes))
    return 0 if all(each.state in ("passes", "cannot be had") for each in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
