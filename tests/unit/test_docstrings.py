"""Examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import torchledger

HOUSE = Path(torchledger.__file__).parent
WITH_EXAMPLES = [
    ".".join(("torchledger", *path.relative_to(HOUSE).with_suffix("").parts))
    for path in sorted(HOUSE.rglob("*.py"))
    if ">>> " in path.read_text()
]


def test_some_modules_have_examples() -> None:
    assert len(WITH_EXAMPLES) > 50


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_docstrings_give_what_they_say(name: str) -> None:
    assert not doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS).failed
