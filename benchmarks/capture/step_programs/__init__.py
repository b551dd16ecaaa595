"""Ordinary scripts, each with another way to spend a step: ``steps_drawn.py`` draws of them and records them.

They know nothing of torchledger. Each takes a number of steps and a file; ``tick(KIND)`` ends a step of the script's
own count. At its end a script has written the kind, the moment and the FLOPs so far of each to that file; the FLOPs
are 0 unless somebody runs it with a ``counted`` in its globals. What a script prints follows from its seed alone.
"""

from __future__ import annotations

from benchmarks.capture.step_programs import (
    derivatives,
    further,
    further_regions,
    libraries,
    loops,
    models,
    more_libraries,
    more_loops,
    more_models,
    objectives,
    optimizers,
)
from benchmarks.capture.step_programs.pieces import HEAD

__all__ = ["HEAD", "PROGRAMS"]

THEMES = (
    objectives,
    optimizers,
    derivatives,
    models,
    loops,
    libraries,
    more_models,
    more_loops,
    more_libraries,
    further,
    further_regions,
)

PROGRAMS: dict[str, str] = {name: text for theme in THEMES for name, text in theme.PROGRAMS.items()}
"""By name; each is put behind ``HEAD``."""
