"""Where the public data sets lie, if they are there at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("TORCHLEDGER_PUBLIC_DATA", Path(__file__).parents[2] / "shared" / "data"))


def public_trace(name: str) -> Path:
    """A public trace; the test is skipped, loudly, where it is absent."""
    path = ROOT / "traces" / name
    if not path.exists():
        pytest.skip(f"{path} is absent; set TORCHLEDGER_PUBLIC_DATA to the folder that holds traces/")
    return path


def public_traces() -> list[str]:
    """Names of the five public traces."""
    return [
        "hta_alexnet.json.gz",
        "hta_triton.json.gz",
        "tl_Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
        "tl_gaunernst_bert-small-uncased__1016001.json.gz",
        "tl_trace.json.gz",
    ]
