"""What is imported is declared, and what is declared is explained."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import torchledger

_ROOT = Path(__file__).parents[2]
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_DISTRIBUTIONS = {
    "yaml": "PyYAML",
    "sklearn": "scikit-learn",
    "pynvml": "nvidia-ml-py",
    "lightning": "pytorch-lightning",
    "pytorch_lightning": "pytorch-lightning",
}
_BROUGHT = {"torch": {"triton", "sympy"}, "jinja2": {"markupsafe"}}
"""What a dependency itself depends on and hands to us."""
_OPTIONAL = {"flash_attn"}
"""Measured where it is installed, and never needed."""


def _name(requirement: str) -> str:
    return re.split(r"[<>=\[; ]", requirement)[0]


def _imported() -> set[str]:
    found = set()
    for path in Path(torchledger.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return {_DISTRIBUTIONS.get(name, name) for name in found - set(sys.stdlib_module_names) - {"torchledger"}}


def test_every_package_that_is_imported_is_declared() -> None:
    declared = {_name(each) for each in _PROJECT["dependencies"]}
    declared |= {_name(each) for extra in _PROJECT["optional-dependencies"].values() for each in extra}
    assert _imported() - set().union(*_BROUGHT.values()) - _OPTIONAL <= declared


def test_every_dependency_is_explained() -> None:
    told = (_ROOT / "docs" / "dependencies.md").read_text()
    rows = " ".join(line for line in told.splitlines() if line.startswith("|"))
    assert [each for each in _PROJECT["dependencies"] if _name(each) not in rows] == []
