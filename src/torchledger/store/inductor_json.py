"""``Data_<name>.json``: one file a graph, or one of all, in the layout of the data-collection notes.

``nodes`` holds one entry per launch. As in the notes, ``inputs`` of a library call are what it reads, ``inputs`` of a
fused kernel the layouts of what it computes; sizes and strides are text; ``flops`` is a float (``null`` if unknown);
``kwargs`` holds one dict for a library call and nothing for a fused kernel. ``gpu_info`` gives memory in MiB and clocks
in MHz; a field that the device does not tell is ``null``.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from torchledger.errors import StoreError
from torchledger.nouns import Buffer, Device, Graph, Kernel, Launch
from torchledger.store.ledger import LedgerReader
from torchledger.store.output import write_files, write_output
from torchledger.work.categories import operator_name

_MIB = 2**20


def export_inductor_json(reader: LedgerReader, target: str | os.PathLike[str], *, force: bool = False) -> list[Path]:
    """Write ``Data_<graph>.json`` for every graph into the folder ``target`` (made if needed); returns the paths.

    A ``target`` that ends in ``.json`` is one file: the nodes of all graphs in their order, each with its ``graph``
    where there are several. Raises ``StoreError`` before anything is written if a file exists (without ``force``) or
    there is no graph.
    """
    graphs = reader.read(Graph)
    if not graphs:
        raise StoreError(f"{reader.path} holds no compiled graph to export: `torchledger show {reader.path}` says why.")
    devices = reader.run().devices
    paths = {kernel.key: kernel.path for kernel in reader.iterate(Kernel) if kernel.path}
    data = {
        graph.name: graph_as_inductor_json(graph, reader.read(Launch, graph=graph.name), devices, paths)
        for graph in graphs
    }
    target = Path(target)
    if target.suffix == ".json":
        write_output(target, _as_json(_in_one(data) if len(data) > 1 else data[graphs[0].name]), force=force)
        return [target]
    contents = {f"Data_{_file_stem(name)}.json": _as_json(content) for name, content in data.items()}
    return write_files(target, contents, force=force)


def _in_one(data: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Several graphs' content as one; ``gpu_info`` is that of the first that runs on an accelerator."""
    infos = [content["gpu_info"] for content in data.values()]
    return {
        "nodes": [{"graph": name, **node} for name, content in data.items() for node in content["nodes"]],
        "gpu_info": next((info for info in infos if info["compute_capability"] is not None), infos[0]),
    }


def _as_json(content: dict[str, Any]) -> bytes:
    return orjson.dumps(content, option=orjson.OPT_INDENT_2)


def graph_as_inductor_json(
    graph: Graph, launches: Sequence[Launch], devices: Sequence[Device], kernel_paths: Mapping[str, str]
) -> dict[str, Any]:
    """The content of one ``Data_<name>.json``; ``kernel_paths`` is kernel key to the file that defines it."""
    return {
        "nodes": [_node(launch, kernel_paths.get(launch.kernel, "")) for launch in launches if launch.is_call],
        "gpu_info": _gpu_info(_device_of(graph, devices)),
    }


def _node(launch: Launch, path: str) -> dict[str, Any]:
    is_extern = launch.category == "extern"
    ops = [_overload_packet(name) for name in launch.aten_ops]
    described = ("input", "inout") if is_extern else ("output", "inout")
    return {
        "flops": None if launch.flops is None else float(launch.flops),
        "ops": ops,
        "inputs": [_layout(buffer) for buffer in launch.buffers if buffer.role in described],
        "kwargs": [{name: _literal(value) for name, value in launch.kwargs.items()}] if is_extern else [],
        "triton": {"kernel_name": _library_name(launch) if is_extern else launch.kernel_name, "kernel_path": path},
    }


def _layout(buffer: Buffer) -> dict[str, Any]:
    return {
        "dtype": buffer.dtype if buffer.dtype.startswith("torch.") else f"torch.{buffer.dtype}",
        "size": [str(size) for size in buffer.shape_expr or buffer.shape],
        "stride": [str(stride) for stride in buffer.stride_expr or buffer.stride],
    }


def _gpu_info(device: Device | None) -> dict[str, Any]:
    if device is None:
        device = Device(name="unknown", kind="unknown")
    memory = device.total_memory_bytes
    return {
        "name": device.name,
        "compute_capability": list(device.compute_capability) if device.compute_capability else None,
        "total_memory": None if memory is None else memory / _MIB,
        "clock_rate": device.clock_rate_mhz,
        "memory_clock_rate": device.memory_clock_rate_mhz,
        "num_multiprocessors": device.num_multiprocessors,
        "max_threads_per_block": device.max_threads_per_block,
        "max_threads_per_multiprocessor": device.max_threads_per_multiprocessor,
        "warp_size": device.warp_size,
        "l2_cache_size": device.l2_cache_bytes,
        "max_shared_memory_per_multiprocessor": device.max_shared_memory_per_multiprocessor_bytes,
        "global_memory_bus_width": device.memory_bus_width_bits,
    }


def _device_of(graph: Graph, devices: Sequence[Device]) -> Device | None:
    """The accelerator that the graph runs on, else the CPU."""
    for name in graph.devices:
        kind, _, index = name.partition(":")
        for device in devices:
            if device.kind == kind and device.index == int(index or 0) and kind != "cpu":
                return device
    return next((device for device in devices if device.kind == "cpu"), devices[0] if devices else None)


def _library_name(launch: Launch) -> str:
    """The operator that a library call runs, by its own name: ``aten.addmm`` for ``extern_kernels.addmm``."""
    namespace, name = operator_name(launch.kernel_name)
    return f"{namespace or 'aten'}.{name}"


def _overload_packet(name: str) -> str:
    """``aten.mm.default`` without its overload: ``aten.mm``."""
    return ".".join(name.split(".")[:2])


def _literal(text: str) -> Any:
    """The value that the text of an argument stands for, as JSON can hold it; else the text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value if _is_plain(value) else text


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


def _file_stem(name: str) -> str:
    return re.sub(r"[^\w.-]", "_", name)
