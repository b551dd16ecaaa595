"""Benchmarks, in rooms by what is asked: each is run from the repository's root, ``python -m benchmarks.ROOM.NAME``.

They build ledgers and programs with what tests do (``tests/factories.py``, ``model_zoo.py``, ``browser.py`` ...). These
import one another by their bare names, as pytest has it, so their folders are put on the path: here, and nowhere else.
"""

from __future__ import annotations

import sys

from benchmarks.shared.places import ROOT

for folder in ("tests", "tests/unit/capturing"):
    if str(ROOT / folder) not in sys.path:
        sys.path.append(str(ROOT / folder))
