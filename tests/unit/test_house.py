"""The rooms of the house: the direction in which a record moves through them, and where torch's private names stand.

Files are read, not imported, so imports inside functions and modules that are named in a string count too.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import torchledger

HOUSE = Path(torchledger.__file__).parent
IN_ORDER = (
    ("nouns", "errors", "printable", "claims", "signals", "loop_ends"),
    ("work", "roofline"),
    ("store", "_torch"),
    ("device",),
    ("traces", "operators"),
    ("capturing",),
    ("stepping",),
    ("memory",),
    ("profiling", "replaying", "watching", "comparing"),
    ("jobs",),
    ("sampling",),
    ("expecting",),
    ("fitting",),
    ("predicting",),
    ("planning", "calibrating"),
    ("reporting",),
    ("cli", "integrations"),
)
PLACE = {room: place for place, rooms in enumerate(IN_ORDER) for room in rooms}

PRIVATE_TORCH = re.compile(r"torch(?!\.ops\b)(?:\.\w+)*?\._[a-zA-Z]\w*(?:\.\w+)*")
"""A path into torch with a part that begins with an underscore; ``torch.ops`` aside, where operators' names may."""

IN_A_STRING = re.compile(r"torch\.[\w.]+|torchledger\.\w+\.[\w.]+")
"""A module's name; two parts that begin with this house's name may also be a group of entry points."""

PUBLIC_UNDERSCORES = {"_make", "_replace", "_fields", "_asdict", "_exit"}
"""Of named tuples and ``os``: documented, whatever they begin with."""

OTHERS_PRIVATE = {HOUSE / "fitting" / "learning.py": {"_predictors", "_baseline_prediction"}}
"""Of other packages than torch: scikit-learn has no public way to its trees."""


def named_modules(tree: ast.AST, known: Container[str] = ()) -> Iterator[str]:
    """Whatever may be a module's full name: of imports, of what they take from it, and in strings.

    Where all that is taken from a folder are ``known`` files of it, the folder's own file is not meant.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            taken = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from taken
            if not all(name in known for name in taken):
                yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IN_A_STRING.fullmatch(node.value):
            yield node.value


def rooms_of(tree: ast.AST) -> set[str]:
    """The rooms that a file imports or names."""
    return {name.split(".")[1] for name in named_modules(tree) if name.startswith("torchledger.")}


def paths_into_torch(tree: ast.AST) -> Iterator[str]:
    """Attributes of torch and its modules, by their full path, under whatever name they were imported."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
            known |= {alias.name.split(".")[0]: alias.name.split(".")[0] for alias in node.names if not alias.asname}
        elif isinstance(node, ast.ImportFrom):
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}

    def path_of(node: ast.AST) -> str:
        if isinstance(node, ast.Attribute):
            return f"{path_of(node.value)}.{node.attr}"
        return known.get(node.id, "") if isinstance(node, ast.Name) else ""

    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield path_of(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            yield f"{path_of(node.args[0])}.{getattr(node.args[1], 'value', '')}"


def foreign_attributes(tree: ast.AST) -> Iterator[str]:
    """Attributes that begin with an underscore and that this file gave to nothing of its own."""
    own = set(PUBLIC_UNDERSCORES)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
            own.add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[a-zA-Z]", node.attr) and node.attr not in own:
            is_operator = re.match(r"(torch\.)?ops\b", ast.unparse(node.value))
            yield from () if is_operator else (node.attr,)


def private_torch_names(tree: ast.AST) -> set[str]:
    """Private paths into torch, however they are reached, and private attributes of objects made elsewhere."""
    paths = {*paths_into_torch(tree), *named_modules(tree)}
    return {path for path in paths if PRIVATE_TORCH.fullmatch(path)} | set(foreign_attributes(tree))


def circle(imports: Mapping[str, Iterable[str]]) -> list[str] | None:
    """Files that import each other in a ring, by their modules' names; ``None`` if there are none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def module_name(path: Path) -> str:
    """``torchledger.store.codec``; a folder's own file has the folder's name."""
    parts = path.relative_to(HOUSE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    """A file's tree, which several tests read."""
    return ast.parse(path.read_text())


@functools.cache
def all_imports() -> dict[str, set[str]]:
    """Every file of the house and those that it imports or names.

    The front door is left out: that it names every room is what it is for.
    """
    trees = {module_name(path): parsed(path) for path in HOUSE.rglob("*.py")}
    return {
        name: {other for other in named_modules(tree, trees) if other in trees} - {name, "torchledger"}
        for name, tree in trees.items()
        if name != "torchledger"
    }


@pytest.mark.parametrize("room", sorted(set(PLACE) - {"cli"}))
def test_a_room_imports_no_later_room(room: str) -> None:
    files = [HOUSE / f"{room}.py"] if (HOUSE / f"{room}.py").exists() else sorted((HOUSE / room).rglob("*.py"))
    assert files
    wrong = {
        str(path.relative_to(HOUSE)): later
        for path in files
        if (later := {each for each in rooms_of(parsed(path)) if PLACE.get(each, 0) > PLACE[room]})
    }
    assert not wrong


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(all_imports()) is None


def test_private_names_of_torch_stand_in_one_room() -> None:
    wrong = {
        str(path.relative_to(HOUSE)): found
        for path in HOUSE.rglob("*.py")
        if "_torch" not in path.parts and (found := private_torch_names(parsed(path)) - OTHERS_PRIVATE.get(path, set()))
    }
    assert not wrong


@pytest.mark.parametrize(
    ("source", "room"),
    [
        ("from torchledger.cli.show import command", "cli"),
        ("def f():\n    import torchledger.fitting.fit", "fitting"),
        ("from torchledger import reporting", "reporting"),
        ("importlib.import_module('torchledger.sampling.worker')", "sampling"),
        ("run([python, '-m', 'torchledger.replaying.bench_worker'])", "replaying"),
    ],
)
def test_a_room_is_seen_however_it_is_imported(source: str, room: str) -> None:
    assert rooms_of(ast.parse(source)) & set(PLACE) == {room}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import torch\ntorch._dynamo.reset()", "torch._dynamo.reset"),
        ("import torch as t\ndef f():\n    t.cuda._sleep(1)", "torch.cuda._sleep"),
        ("from torch import cuda\ncuda._sleep(1)", "torch.cuda._sleep"),
        ("from torch import _C", "torch._C"),
        ("def f():\n    from torch._inductor import config", "torch._inductor"),
        ("import torch._functorch.config", "torch._functorch.config"),
        ("from torch.utils._pytree import tree_map", "torch.utils._pytree"),
        ("importlib.import_module('torch._inductor.codecache')", "torch._inductor.codecache"),
        ("sys.modules.get('torch._guards')", "torch._guards"),
        ("import torch\ngetattr(torch, '_scaled_mm')", "torch._scaled_mm"),
        ("def f(tensor):\n    return tensor.untyped_storage()._cdata", "_cdata"),
    ],
)
def test_a_private_name_of_torch_is_seen_however_it_is_reached(source: str, name: str) -> None:
    assert name in private_torch_names(ast.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.ops.aten._softmax(x)",
        "code = 'torch.ops.inductor._alloc_from_pool'",
        "import torch\ntorch.compiler.reset()",
        "class A:\n    def f(self, other):\n        self._own = other._own",
        "row = row._replace(a=1)",
        "log('Turn torch._inductor.config.cpp_wrapper off.')",
    ],
)
def test_operators_own_attributes_and_sentences_are_no_private_names_of_torch(source: str) -> None:
    assert not private_torch_names(ast.parse(source))


def test_a_circle_is_found_with_the_files_in_it() -> None:
    assert set(circle({"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"]}) or ()) == {"a", "b", "c"}
    assert circle({"a": ["b", "c"], "b": ["c"]}) is None


def test_the_files_that_are_read_are_those_of_the_house() -> None:
    imports = all_imports()
    assert "torchledger.store.ledger" in imports["torchledger.store.latest"]
    assert "torchledger.replaying.bench_worker" in imports["torchledger.replaying.bench"]
    assert len(imports) > 200
