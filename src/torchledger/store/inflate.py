"""Compressed files, opened up no further than an honest one goes."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from torchledger.errors import StoreError

MOST_INFLATION = 40
"""Bytes that a byte of a compressed file may stand for. Records and traces as text shrink to a tenth or a twentieth; a
file that is made to fill the memory, to a thousandth."""

SMALL_BYTES = 16 << 20
"""What any file may grow to."""

LONGEST_LINE = 64 << 20
"""Bytes of one line, which holds one record: the largest fused kernels take some 100 KB."""


def inflated_limit(compressed_bytes: int) -> int:
    """The most bytes that a file of so many compressed bytes may hold."""
    return max(SMALL_BYTES, MOST_INFLATION * compressed_bytes)


def inflated_lines(path: Path, kind: str) -> Iterator[bytes]:
    """The lines of a gzip file; ``kind`` says in messages what the file should be.

    Raises ``StoreError`` naming the file if it cannot be read, is damaged, or holds more than its size allows.
    """
    try:
        limit = inflated_limit(path.stat().st_size)
        with gzip.open(path, "rb") as file:
            while line := file.readline(LONGEST_LINE):
                limit -= len(line)
                if limit < 0 or len(line) == LONGEST_LINE:
                    raise StoreError(
                        f"{path} is no {kind}: it holds more than {MOST_INFLATION} times its size, or a line of more "
                        f"than {LONGEST_LINE >> 20} MB. Ask whoever wrote it for another."
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"{path} is no {kind}, or is cut off ({error}).") from error
