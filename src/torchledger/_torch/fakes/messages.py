"""Small whole numbers that ranks of a world that is not there send each other, such as shapes: they go by mail.

Ranks are run one after another, or a few at once, the first ones first: what a rank before this one has sent is known
where it was recorded, message by message. What comes from any other rank is not known.
"""

from __future__ import annotations

import base64
import json
import pickle
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torchledger._torch.fakes.shares import forget_value, is_small, keep_value, origin_of, value_of
from torchledger.nouns import NUMBERS, RUNNING, WorldSpec

_LOOKS_AGAIN_S = 0.05
_MOST_SENT = 1 << 10
"""So many numbers of a message: sizes are few."""

_MOST_OF_OBJECTS = 1 << 20
"""So many characters of objects that are broadcast: settings are few."""


def _are_sizes(tensor: Any) -> bool:
    return is_small(tensor) and tensor.numel() <= _MOST_SENT and not tensor.is_floating_point()


@dataclass
class Messages:
    """The messages of small whole numbers between one rank and the others, in their order for each pair and group, and
    the objects that ranks broadcast."""

    spec: WorldSpec
    _received: Counter[tuple[int, str]] = field(default_factory=Counter)
    _heard: Counter[tuple[int, str]] = field(default_factory=Counter)

    def send(self, tensors: list[Any], group: str, to: int) -> None:
        """Leave what is sent for a rank that comes after this one; ``null`` stands for values that nobody knows."""
        if self.spec.mail is None or to <= self.spec.rank:
            return
        for tensor in filter(_are_sizes, tensors):
            known = value_of(tensor)
            message = {
                "shape": list(tensor.shape),
                "values": None if known is None else known.flatten().tolist(),
                "origin": origin_of(known),
            }
            with self._path(self.spec.rank, to, group).open("a") as file:
                file.write(json.dumps(message) + "\n")

    def receive(self, tensors: list[Any], group: str, source: int) -> None:
        """Give each tensor the values that it is sent, or, where they are not known, none."""
        for tensor in filter(_are_sizes, tensors):
            number = self._received[source, group]
            self._received[source, group] += 1
            sent = self._message(source, group, number, list(tensor.shape))
            if sent is None or sent["values"] is None:
                forget_value(tensor)
            else:
                keep_value(tensor, sent["values"], sent["origin"])

    def _message(self, source: int, group: str, number: int, shape: list[int]) -> dict[str, Any] | None:
        """A message by its number; for one that its sender did not come to stands the last one of its shape."""
        if self.spec.mail is None or source >= self.spec.rank:
            return None
        runs = self._runs(source)  # asked first: what it sends before it ends is read
        while number >= len(sent := self._read(source, group)) and runs:
            time.sleep(_LOOKS_AGAIN_S)
            runs = self._runs(source)
        alike = [each for each in (sent[number : number + 1] or sent) if each["shape"] == shape]
        return alike[-1] if alike else None

    def _read(self, source: int, group: str) -> list[dict[str, Any]]:
        path = self._path(source, self.spec.rank, group)
        if not path.exists():
            return []
        whole = path.read_text().rpartition("\n")[0]  # what is behind the last end of a line is being written
        return [json.loads(line) for line in whole.splitlines()]

    def publish(self, objects: list[Any], group: str) -> None:
        """Leave objects that this rank broadcasts to ranks behind it; an empty line where they cannot be kept."""
        if self.spec.mail is None:
            return
        try:
            written = base64.b64encode(pickle.dumps(objects)).decode()
        except (pickle.PicklingError, TypeError, AttributeError, RuntimeError, NotImplementedError):
            written = ""
        with self._objects(self.spec.rank, group).open("a") as file:
            file.write((written if len(written) <= _MOST_OF_OBJECTS else "") + "\n")

    def published(self, group: str, source: int) -> list[Any] | None:
        """The next objects that a rank before this one broadcasts; ``None`` where they are not known."""
        if self.spec.mail is None or source >= self.spec.rank:
            return None
        number = self._heard[source, group]
        self._heard[source, group] += 1
        path = self._objects(source, group)
        while True:
            runs = self._runs(source)  # asked first, as above
            lines = path.read_text().rpartition("\n")[0].split("\n") if path.exists() else []
            if number < len(lines) or not runs:
                break
            time.sleep(_LOOKS_AGAIN_S)
        line = "".join(lines[number : number + 1])
        return list(pickle.loads(base64.b64decode(line))) if line else None

    def _objects(self, source: int, group: str) -> Path:
        return Path(self.spec.mail or "") / f"objects_{source}_{quote(group, safe='')}.txt"

    def _runs(self, rank: int) -> bool:
        return (Path(self.spec.mail or "") / f"request_{rank}{RUNNING}").exists()

    def _path(self, source: int, to: int, group: str) -> Path:
        return Path(self.spec.mail or "") / f"{NUMBERS}{source}_{to}_{quote(group, safe='')}.jsonl"
