"""Packages of AOTInductor for a device that is not there: no library is built, and what would be in it is compiled when
it is called, as ``torch.compile`` does."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._inductor.package

from torchledger._torch.fakes.tensors import FakeTensors
from torchledger._torch.patching import Patches
from torchledger.errors import PlanError

_DECISION = "a package of AOTInductor: as torch.compile makes it of the exported program"

_OF_PACKAGES = "aot_inductor."
"""What the names of settings begin with that are about a library alone."""

_FILE_FUNCTIONS = ("aot_compile", "aot_load")
"""Of ``torch._export``, whose libraries are files that a program loads by itself."""


class FakePackage:
    """A model as a package holds it: called without autograd."""

    def __init__(self, program: Any, options: Mapping[str, Any]) -> None:
        self._call = torch.compile(program.module(), options=dict(options) or None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return self._call(*args, **kwargs)

    def get_metadata(self) -> dict[str, str]:
        """Nothing: there is no file."""
        return {}

    def get_constant_fqns(self) -> list[str]:
        """None: its weights are the program's."""
        return []

    def load_constants(self, *args: Any, **kwargs: Any) -> None:
        """Take no values, as there are none."""


def package_without_libraries(patches: Patches, mode: FakeTensors, note: Callable[[str], None]) -> None:
    """Until the patches are undone a package is kept in the program that makes it; ``note`` is told of each loaded.

    What is loaded from another file, or compiled to a library without a package, raises ``PlanError``.
    """
    made: dict[str, tuple[Any, Mapping[str, Any]]] = {}

    def compile_and_package(
        exported_program: Any,
        *deprecated: Any,
        package_path: Any = None,
        inductor_configs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> Any:
        path = f"planned_{len(made)}.pt2" if package_path is None else package_path
        configs = {} if inductor_configs is None else inductor_configs
        made[_key(path)] = (
            exported_program,
            {name: value for name, value in configs.items() if not name.startswith(_OF_PACKAGES)},
        )
        return path

    def load(path: Any, *args: Any, **kwargs: Any) -> FakePackage:
        if _key(path) not in made:
            raise PlanError(
                f"the program loads {_name(path)} at {mode.line()}, a package of AOTInductor with kernels for a device "
                "that is not here. Plan a script that exports the model itself, or compiles it (torch.compile)."
            )
        note(_DECISION)
        return FakePackage(*made[_key(path)])

    def refused(*args: Any, **kwargs: Any) -> Any:
        raise PlanError(
            f"the program compiles a library ahead of time at {mode.line()}, which would be built for a device that is "
            "not here. Plan it with aoti_compile_and_package and aoti_load_package, or with torch.compile."
        )

    patches.set(torch._inductor, "aoti_compile_and_package", compile_and_package)
    patches.set(torch._inductor, "aoti_load_package", load)
    patches.set(torch._inductor.package, "load_package", load)
    patches.set(torch._inductor, "aot_compile", refused)
    for name in _FILE_FUNCTIONS:
        if hasattr(torch._export, name):
            patches.set(torch._export, name, refused)


def _key(path: Any) -> str:
    return f"buffer {id(path)}" if isinstance(path, io.IOBase) else os.path.abspath(os.fspath(path))


def _name(path: Any) -> str:
    return "a buffer" if isinstance(path, io.IOBase) else os.fspath(path)
