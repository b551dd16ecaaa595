"""A YAML file with the line of every key, so that an error can point at it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchledger.errors import UsageError
from torchledger.printable import ended

Model = TypeVar("Model")

_LARGEST_FILE = 256 << 10  # bytes; parsing takes a second per 100 KB
_MOST_NODES = 100_000  # keys and values, each alias counted as what it stands for
_DEEPEST = 32
_LONGEST_KEY = 100  # characters that a message repeats of one

Location = tuple[str | int, ...]


class YamlError(UsageError):
    """A YAML file that cannot be followed: file, line and key of each fault, one a line."""


@dataclass(frozen=True)
class YamlFile:
    """A parsed file and where its parts stand."""

    path: Path
    content: Any
    lines: dict[Location, int]

    def line(self, location: Location) -> int:
        """The line of a key, or of the nearest key around it that the file holds."""
        while location and location not in self.lines:
            location = location[:-1]
        return self.lines.get(location, 1)

    def fault(self, location: Location, message: str) -> str:
        """One fault as ``file:line: key: what is wrong``."""
        key = ".".join(str(part)[:_LONGEST_KEY] for part in location) or "file"
        return f"{self.path}:{self.line(location)}: {key}: {message}"

    def error(self, location: Location, message: str) -> YamlError:
        """One fault as an error to raise."""
        return YamlError(self.fault(location, message))


def read_yaml(path: Path, *, is_list: bool = False) -> YamlFile:
    """Parse a YAML file of keys and values (or with ``is_list`` of a list) with ``safe_load``'s types.

    Raises ``YamlError`` naming the line if it is none, and for one that stands for far more than it holds.
    """
    import yaml

    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise YamlError(
                f"{path} has {size:,} bytes; one of these has at most {_LARGEST_FILE:,}. Write ranges "
                "instead of lists, or several files."
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise YamlError(f"{path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise YamlError(f"{path} is no text file in UTF-8 ({error.reason} at byte {error.start}).") from error
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _refuse_large(path, node)
        content = None if node is None else loader.construct_document(node)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise YamlError(f"{path} cannot be read: {ended(str(error))}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise YamlError(f"{path}:{line}: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise YamlError(f"{path}: {error}") from error
    lines: dict[Location, int] = {}
    if node is not None:
        _collect(node, (), lines)
    file = YamlFile(path, content, lines)
    if not isinstance(content, dict) and not (is_list and isinstance(content, list)):
        raise file.error((), "must hold keys and values")
    return file


def validate(model: type[Model], file: YamlFile) -> Model:
    """The file's content as a pydantic model; all faults in one ``YamlError``, each with its line."""
    from pydantic import ValidationError

    try:
        return model.model_validate(file.content)  # type: ignore[attr-defined, no-any-return]
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            location = _known_part(file, fault["loc"])
            message = fault["msg"].removeprefix("Value error, ")
            if fault["type"] == "extra_forbidden":
                message = "unknown key"
            elif fault["type"] == "missing":
                message = "is missing"
            faults.append(file.fault(location, message))
        raise YamlError("\n".join(dict.fromkeys(faults))) from error


def _known_part(file: YamlFile, location: Location) -> Location:
    """Without the names of union members that pydantic adds, but with a missing last key."""
    known: Location = ()
    location = tuple(part for part in location if part not in ("number", "list", "range"))
    for index, part in enumerate(location):
        if (*known, part) in file.lines or (index == len(location) - 1 and isinstance(part, str) and part.islower()):
            known = (*known, part)
    return known


def _refuse_large(path: Path, root: Any) -> None:
    """Raise ``YamlError`` for a file whose aliases and merges stand for too much, or for themselves."""
    left = _MOST_NODES
    waiting = [(root, 0)]
    while waiting:
        node, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > _DEEPEST:
            raise YamlError(
                f"{path}:{node.start_mark.line + 1}: what is nested and repeated here comes to more than "
                f"{_MOST_NODES:,} values or {_DEEPEST} levels. Write it with fewer aliases."
            )
        for part in node.value if node.id != "scalar" else ():
            waiting += [(inner, depth + 1) for inner in (part if isinstance(part, tuple) else (part,))]


def _collect(node: Any, location: Location, lines: dict[Location, int]) -> None:
    lines.setdefault(location, node.start_mark.line + 1)
    if node.id == "mapping":
        for key, value in node.value:
            if key.id != "scalar":
                continue
            lines[(*location, key.value)] = key.start_mark.line + 1
            _collect(value, (*location, key.value), lines)
    elif node.id == "sequence":
        for index, value in enumerate(node.value):
            _collect(value, (*location, index), lines)
