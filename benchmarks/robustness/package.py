"""The wheel and the sdist, built, installed and run without the checkout: `make package`.

python -m benchmarks.robustness.package [--packages FOLDER]

Builds both of the committed state into dist/, checks that the wheel made of the sdist holds the same files, installs
the wheel into a new environment that sees this one's packages, and asks it, in an empty folder, for what needs files
of its own: a prediction, and the page of a set of samples. It says what failed, and ends with 1 then.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from benchmarks.shared.places import ROOT

NEEDS: tuple[str, ...] = ("network",)
RUNS: tuple[tuple[str, ...], ...] = (("--packages", "{out}"),)

QUESTIONS = (
    ("torchledger", "--version"),
    ("torchledger", "predict", "linear", "m=64", "k=64", "n=64"),
    ("python", "-c", "import torchledger, sys; assert 'site-packages' in torchledger.__file__, torchledger.__file__"),
    ("python", "-c", "from torchledger.integrations.pytest_plugin import ledger"),
    ("torchledger", "report", "NVIDIAH200_gelu_fp16.csv", "-o", "page.html"),
)


def build(folder: Path) -> tuple[Path, Path]:
    """The wheel and the sdist of the committed state."""
    with tempfile.TemporaryDirectory() as source:
        packed = subprocess.run(["git", "-C", str(ROOT), "archive", "HEAD"], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", source], input=packed, check=True)
        _run([sys.executable, "-c", _SDIST, str(folder)], cwd=Path(source))
        _run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), source]
        )
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


_SDIST = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"


def check(wheel: Path, sdist: Path) -> None:
    """Raise if the sdist makes another wheel, or the installed wheel cannot answer."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        again = folder / "again"
        _run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "-q",
                "--no-deps",
                "--no-build-isolation",
                "-w",
                str(again),
                str(sdist),
            ]
        )
        (rebuilt,) = again.glob("*.whl")
        if missing := _files(wheel) ^ _files(rebuilt):
            raise SystemExit(f"the sdist and the checkout make different wheels: {sorted(missing)[:5]}")
        _run([sys.executable, "-m", "venv", "--system-site-packages", str(folder / "env")])
        # The packages beside this interpreter serve the new environment; torchledger itself is the wheel's.
        site = next((folder / "env" / "lib").glob("python*/site-packages"))
        here = next(path for path in sys.path if path.endswith("site-packages"))
        (site / "beside.pth").write_text(here + "\n")
        _run(
            [
                str(folder / "env" / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "-q",
                "--no-deps",
                "--force-reinstall",
                str(wheel),
            ]
        )
        work = folder / "work"
        work.mkdir()
        (work / "NVIDIAH200_gelu_fp16.csv").write_text("mp,b,l,dim,F_dur(us),B_dur(us)\n1,4,1024,2048,20.5,31.25\n")

        for program, *words in QUESTIONS:
            _run([str(folder / "env" / "bin" / program), *words], cwd=work)
            print("runs:", program, " ".join(words), flush=True)


def _files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def _run(command: list[str], cwd: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-1000:]}{done.stderr[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, default=ROOT / "dist", help="where to put both")
    folder = parser.parse_args().packages
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("torchledger-*.whl"), *folder.glob("torchledger-*.tar.gz")):
        old.unlink()
    wheel, sdist = build(folder)
    check(wheel, sdist)
    print(f"{wheel.name} ({wheel.stat().st_size / 1e6:.1f} MB), {sdist.name} ({sdist.stat().st_size / 1e6:.1f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
