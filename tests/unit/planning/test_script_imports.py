"""Modules that a script needs are looked for before it is run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from torchledger.errors import PlanError
from torchledger.planning.script_imports import check_imports


def _script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(text)
    return str(path)


def test_a_module_that_is_not_there_is_named_with_its_line(tmp_path: Path) -> None:
    script = _script(tmp_path, '"""Trains."""\nfrom __future__ import annotations\nimport os, no_such_module.part\n')
    before = list(sys.path)
    with pytest.raises(PlanError, match=r"needs the module 'no_such_module' at .*train\.py:3: install it here"):
        check_imports(script)
    assert sys.path == before


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import no_such_module\nexcept ImportError:\n    pass\n",
        "import sys\nsys.path.append('elsewhere')\nimport no_such_module\n",
        "import beside\nimport no_such_module\n",
        "from . import no_such_module\n",
        "import torch.nn as nn\nfrom pathlib import Path\n",
        "import (\n",
    ],
)
def test_what_may_be_there_once_the_script_runs_is_left_to_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "beside.py").write_text("import sys\nsys.path.append('elsewhere')\n")
    check_imports(_script(tmp_path, text))
