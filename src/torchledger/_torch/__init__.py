"""Every private torch and Inductor name that torchledger touches, by version, in one place.

Rules of this room:

- nothing here is imported before the user's program has imported Inductor (or asked for a capture);
- what differs between versions differs here, and nowhere else;
- wrappers around Inductor's methods pass all arguments through untouched, so that a new keyword breaks nothing.

Tested with torch 2.11 (CUDA) and 2.13 (CPU); a small training with each from 2.9 to 2.14.
"""

from __future__ import annotations

TESTED_VERSIONS = ((2, 9), (2, 14))
"""Oldest and newest (major, minor) of torch that ``make versions`` passes with."""


def version_warning(version: str) -> str | None:
    """A sentence for a torch version outside the tested range, else ``None``.

    >>> version_warning("2.13.0+cpu") is None
    True
    """
    try:
        found = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
    except ValueError:
        return f"torch {version} has a version that torchledger cannot read; what it captures is best effort."
    if TESTED_VERSIONS[0] <= found <= TESTED_VERSIONS[1]:
        return None
    oldest, newest = (".".join(map(str, tested)) for tested in TESTED_VERSIONS)
    return f"torch {version} is outside the tested range {oldest} to {newest}; what is captured is best effort."
