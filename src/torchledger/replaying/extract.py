"""Files to take away: one launch, or one whole graph, as a readable module that runs without torchledger.

Such a module makes its inputs, runs the kernel as the generated code does, compares what it wrote with eager ATen ops
and takes the time. It is only written here; running it is the reader's decision.
"""

from __future__ import annotations

import ast
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchledger.errors import MeasureError
from torchledger.nouns import Graph, Kernel, Launch, Run
from torchledger.replaying.call_site import Allocation, find_call_site
from torchledger.replaying.index_bounds import index_bounds
from torchledger.replaying.ledger_code import ledger_code
from torchledger.replaying.reference import Reference, find_reference, library_operands, whole_reference
from torchledger.replaying.reference_inputs import reference_inputs
from torchledger.replaying.sizes import CannotReplay, check_name
from torchledger.replaying.standalone import MAKE_TENSOR, body_text, head_text
from torchledger.replaying.wrapper_text import read_wrapper
from torchledger.store import LedgerReader, open_ledger
from torchledger.store.find import find_graph, find_kernel
from torchledger.store.latest import saved_inputs
from torchledger.store.output import write_output


@dataclass(frozen=True)
class Extracted:
    """A file that was written: what it holds, which outputs it compares with eager ops, and why not the others."""

    path: Path
    title: str
    checked: tuple[str, ...]
    unchecked: Mapping[str, str]


def extract_kernel(
    file: str | os.PathLike[str],
    kernel: str,
    output: str | os.PathLike[str],
    *,
    force: bool = False,
    trust: bool = False,
) -> Extracted:
    """Write one launch of a ledger (or the first launch of a kernel) as a module.

    Raises ``UsageError`` for a name that is not in the ledger, ``MeasureError`` for a launch that cannot be made alone
    or whose code this user did not record here (without ``trust``), and ``StoreError`` if ``output`` exists (without
    ``force``).
    """
    with open_ledger(file) as reader:
        launch = _find_launch(reader, kernel)
        code = ledger_code(reader, [launch.graph], trust=trust)[launch.graph]
        launch = code.launch(launch.launch_id)
        run = reader.run()
        saved = _saved_inputs(reader, launch)
    text, reference = kernel_module(
        code.graph, launch, code.launches, code.kernels, title=_title(str(file), launch, run), saved=saved
    )
    path = Path(output)
    write_output(path, text.encode("utf-8", "backslashreplace"), force=force)
    return Extracted(path, launch.kernel_name, tuple(reference.targets), reference.unchecked)


def extract_graph(
    file: str | os.PathLike[str],
    name: str,
    output: str | os.PathLike[str],
    *,
    force: bool = False,
    trust: bool = False,
) -> Extracted:
    """Write a whole compiled graph as a module; ``python OUTPUT -p`` profiles it. Errors as ``extract_kernel``."""
    with open_ledger(file) as reader:
        name = find_graph(reader, name).name
        code = ledger_code(reader, [name], trust=trust)[name]
        run = reader.run()
    graph = code.graph
    title = f"{graph.name} of {Path(file).name}: a whole compiled graph ({graph.direction}), {_made_by(run)}."
    text, reason = graph_module(graph, code.launches, code.kernels, title=title)
    path = Path(output)
    write_output(path, text.encode("utf-8", "backslashreplace"), force=force)
    unchecked = {"all outputs": reason} if reason else {}
    return Extracted(path, graph.name, () if reason else ("all outputs",), unchecked)


def kernel_module(
    graph: Graph,
    launch: Launch,
    others: Sequence[Launch],
    kernels: Sequence[Kernel],
    *,
    title: str,
    saved: str | None = None,
) -> tuple[str, Reference]:
    """The module's text, and the reference that it compares with; ``saved`` is a file with what the launch read."""
    site = find_call_site(graph, launch, others, kernels, with_producers=True)
    values = reference_inputs(graph, launch, site)
    reference = find_reference(graph, list(values), site.outputs)
    if site.unnamed:
        reason = f"it reads {', '.join(site.unnamed)}: a value of the compiler's own, made up here"
        reference = Reference((), (), {}, {name: reason for name, _ in site.outputs}, frozenset())
    if reference.unchecked and launch.category in ("extern", "inline"):
        operands = library_operands(graph, launch)
        again = find_reference(graph, list(operands), site.outputs)
        if len(again.unchecked) < len(reference.unchecked):
            values, reference = operands, again
    source = launch.source or "no line of the model"
    described = textwrap.indent(
        "\n".join(
            [
                f"category: {launch.category}",
                f"computes: {', '.join(launch.aten_ops) or 'nothing that the model asked for'}",
                f"made for: {source}",
                *(f"not compared: {name}, {reason}" for name, reason in reference.unchecked.items()),
            ]
        ),
        "    ",
    )
    parameters = ", ".join(reference.parameters)
    named = ", ".join(dict.fromkeys(name for name, _ in site.inputs))
    reads = ", ".join(f"{node!r}: {values[node]}.clone()" for node in reference.parameters)
    targets = ", ".join(f"{name!r}: {node}" for name, node in reference.targets.items())
    pieces = [
        f'"""{_docstring(title)}\n\n{_docstring(described)}\n\nRun it: python FILE.py\n"""\n',
        head_text(site),
        *_needed_operators(launch),
        _WAIT,
        f"DEVICE = {site.device!r}",
        f"TOLERANCE = {_tolerance(reference, launch)!r}  # of each value, and of the root mean square of its tensor",
        f"NOT_COMPARED = {dict(reference.unchecked)!r}\n\n",
        MAKE_TENSOR + "\n",
        body_text(site) + "\n",
        *([f"SAVED = {saved!r}  # what the launch read in the run\n\n", _SAVED_INPUTS] if saved is not None else []),
        f"def reference_inputs({named + ', ' if named else ''}**others):",
        '    """Copies of what the reference reads, by their names in the FX graph."""',
        f"    return {{{reads}}}\n\n",
        f"def reference({parameters}):",
        '    """The same in eager ATen ops: this launch\'s piece of the FX graph."""',
        *(f"    {text}" for text in reference.statements),
        f"    return {{{targets}}}\n\n",
        _COMPARE,
        _KERNEL_MAIN,
    ]
    return "\n".join(pieces), reference


def graph_module(
    graph: Graph, launches: Sequence[Launch], kernels: Sequence[Kernel], *, title: str
) -> tuple[str, str | None]:
    """The text of a whole graph's module, and why it compares nothing (if so)."""
    wrapper = read_wrapper(graph)
    if not wrapper.input_functions:
        raise CannotReplay(f"the generated code of {graph.name} does not say what its inputs are.")
    sources = {kernel.key: [kernel.source] for kernel in kernels if kernel.source}
    bounds: dict[str, int] = {}
    for launch in launches:
        for name, high in index_bounds(launch, sources.get(launch.kernel, []), graph.symbols).items():
            bounds[name] = min(high, bounds.get(name, high))
    inputs, names = _graph_inputs(wrapper.input_functions, bounds, graph)
    placeholders, statements, returned, reason = whole_reference(graph)
    if len(placeholders) != len(names) and reason is None:
        reason = "the FX graph and the generated code have different inputs"
    source = (graph.wrapper_source or "").partition('\nif __name__ == "__main__":')[0]
    pieces = [
        f'"""{_docstring(title)}\n\nRun it: python FILE.py; with -p it is profiled and a trace is written.\n"""\n',
        source,
        "\n",
        f"DEVICE = {(graph.devices or ('cpu',))[0]!r}",
        f"TOLERANCE = {_graph_tolerance(graph)!r}  # of each value, and of the root mean square of its tensor",
        f"NOT_COMPARED = { ({'all outputs': reason} if reason else {})!r}\n\n",
        MAKE_TENSOR + "\n",
        "def make_inputs():",
        '    """The graph\'s inputs, in order."""',
        "    torch.manual_seed(0)",
        *(f"    {line}" for line in inputs),
        f"    return [{', '.join(names)}]\n\n",
        f"def reference({', '.join(placeholders)}):",
        '    """The same in eager ATen ops: the FX graph that was lowered."""',
        *(f"    {text}" for text in (statements if reason is None else ("raise NotImplementedError",))),
        f"    return {returned}\n\n",
        _COMPARE,
        _GRAPH_MAIN,
    ]
    return "\n".join(pieces), reason


def _graph_inputs(
    functions: tuple[ast.FunctionDef, ...], bounds: Mapping[str, int], graph: Graph
) -> tuple[list[str], list[str]]:
    """Lines that make the inputs that the wrapper's own benchmark makes, with values that mean something."""
    lines: list[str] = []
    names: list[str] = []
    roots: dict[str, str] = {}
    for statement in (statement for function in functions for statement in function.body):
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.List):
            names = [ast.unparse(item) for item in statement.value.elts]
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Lambda):
            call = statement.value.body
            lists = [part for part in ast.walk(call) if isinstance(part, ast.List)]
            names = names or [ast.unparse(item) for found in lists[:1] for item in found.elts]
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, value = statement.targets[0].id, statement.value
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "rand_strided":
            named = {keyword.arg: keyword.value for keyword in value.keywords}
            device = str(ast.literal_eval(named["device"]))
            dtype = ast.unparse(named["dtype"])
            lines.append(Allocation(name, ast.unparse(value.args[0]), ast.unparse(value.args[1]), dtype, device).code)
            roots[name] = name
            if dtype == "torch.int8" and name in bounds:
                middle = (bounds[name] - 1) // 2  # as a call site does
                lines[-1] = f"{lines[-1][:-1]}, high={middle + 1}, low={middle})"
        elif isinstance(value, (ast.Constant, ast.Call)):
            lines.append(ast.unparse(statement))
            if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Name):
                roots[name] = value.args[0].id
    highs: dict[str, int] = {}
    for name, root in roots.items():
        if name in bounds:
            highs[root] = min(bounds[name], highs.get(root, bounds[name]))
    bounded = []
    for line in lines:
        high = highs.get(line.partition(" = ")[0])
        is_integer = ("torch.int" in line or "torch.uint" in line) and "high=" not in line
        bounded.append(f"{line[:-1]}, high={high})" if high is not None and is_integer else line)
    return bounded, names


# --- the parts that every file has -----------------------------------------------------------------------------------

_WAIT = "\nasync_compile.wait(globals())\ndel async_compile\n\n"

_COMPARE = '''\
def compare(name, actual, expected):
    """Print how far two tensors are apart; True if they agree within the tolerance."""
    if not isinstance(expected, torch.Tensor):
        return actual == expected
    if actual.shape != expected.shape and actual.numel() == expected.numel():
        expected = expected.reshape(actual.shape)
    if not (expected.is_floating_point() or expected.is_complex()):
        wrong = (actual != expected.to(actual.dtype)).double().mean().item() if actual.numel() else 0.0
        # A comparison of values that differ by rounding may fall on either side.
        passes = wrong <= (1e-3 if expected.dtype == torch.bool else 0.0)
        print(f"  {name}: {100 * wrong:.4f} % of the values differ: {'ok' if passes else 'WRONG'}")
        return passes
    kind = torch.complex128 if expected.is_complex() else torch.float64
    actual, expected = actual.to(kind), expected.to(kind)
    finite = expected[torch.isfinite(expected)].abs()
    scale = finite.square().mean().sqrt() if finite.numel() else torch.zeros((), dtype=torch.float64)
    same = (actual == expected) | (actual.isnan() & expected.isnan())
    error = torch.where(same, 0.0, (actual - expected).abs() / (expected.abs() + scale))
    worst = error.max().item() if error.numel() else 0.0
    passes = bool((error <= TOLERANCE).all())
    print(f"  {name}: largest error {worst:.2e} (allowed {TOLERANCE:.0e}): {'ok' if passes else 'WRONG'}")
    return passes


def measure(run, repeats=100):
    """Median time of one call in microseconds, inputs warm."""
    import statistics
    import time

    for _ in range(10):
        run()
    times = []
    if DEVICE.startswith("cuda"):
        pairs = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
        torch.cuda._sleep(2_000_000)  # so that the device never waits for the host
        for first, last in pairs:
            first.record()
            run()
            last.record()
        torch.cuda.synchronize()
        times = [first.elapsed_time(last) * 1e3 for first, last in pairs]
    else:
        for _ in range(repeats):
            started = time.perf_counter_ns()
            run()
            times.append((time.perf_counter_ns() - started) / 1e3)
    return statistics.median(times)

'''

_SAVED_INPUTS = '''\
made_inputs = make_inputs


def make_inputs():
    """What the launch read in the run, where it was saved; the rest is made up."""
    import json

    from safetensors import safe_open

    inputs = made_inputs()
    with safe_open(SAVED, "pt", device="cpu") as file:
        views = json.loads(file.metadata()["views"])
        for key in file.keys():
            name = key.partition(".")[2].partition("#")[0]
            if key in views and isinstance(inputs.get(name), torch.Tensor):
                inputs[name].as_strided(*views[key]).copy_(file.get_tensor(key))
    return inputs


'''

_KERNEL_MAIN = '''\
def check():
    """True if all outputs that can be compared agree with the reference, False if one does not, None if none can."""
    inputs = make_inputs()
    given = reference_inputs(**inputs)
    prepare(**inputs)
    actual = call(**inputs)
    results = [compare(name, actual[name], value) for name, value in reference(**given).items()]
    for name, reason in NOT_COMPARED.items():
        print(f"  {name}: not compared: {reason}")
    return all(results) if results else None


def main():
    if DEVICE.startswith("cuda"):
        torch.cuda.set_device(torch.device(DEVICE))
    with torch.no_grad():
        print("outputs against eager ATen ops:")
        passes = check()
        print({True: "correct", False: "WRONG", None: "nothing could be compared"}[passes])
        inputs = make_inputs()

        def run():
            prepare(**inputs)
            call(**inputs)

        print(f"time: {measure(run):.2f} us (median of 100 calls)")
    raise SystemExit({True: 0, False: 1, None: 3}[passes])


if __name__ == "__main__":
    main()
'''

_GRAPH_MAIN = '''\
def check():
    """True if all outputs agree with the reference, False if one does not, None if there is none."""
    if NOT_COMPARED:
        print(f"  not compared: {NOT_COMPARED}")
        return None
    expected = reference(*(value.clone() if isinstance(value, torch.Tensor) else value for value in make_inputs()))
    actual = call(make_inputs())
    expected = expected if isinstance(expected, (tuple, list)) else (expected,)
    pairs = [(index, *pair) for index, pair in enumerate(zip(actual, expected)) if isinstance(pair[1], torch.Tensor)]
    return all([compare(f"output {index}", value, wanted) for index, value, wanted in pairs])


def profile(run, path):
    """Write a trace and print the heaviest kernels."""
    from torch.profiler import ProfilerActivity, profile as profiler

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if DEVICE.startswith("cuda") else [])
    run()
    with profiler(activities=activities) as found:
        for _ in range(5):
            run()
    found.export_chrome_trace(path)
    order = "self_cuda_time_total" if DEVICE.startswith("cuda") else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=order, row_limit=20))
    print(f"trace: {path} (open it at chrome://tracing or ui.perfetto.dev)")


def main():
    import sys

    if DEVICE.startswith("cuda"):
        torch.cuda.set_device(torch.device(DEVICE))
    with torch.no_grad():
        print("outputs against eager ATen ops:")
        passes = check()
        print({True: "correct", False: "WRONG", None: "nothing could be compared"}[passes])
        inputs = make_inputs()

        def run():
            call(list(inputs))

        print(f"time: {measure(run, repeats=20):.2f} us (median of 20 calls)")
        if "-p" in sys.argv:
            profile(run, __file__ + ".trace.json")
    raise SystemExit({True: 0, False: 1, None: 3}[passes])


if __name__ == "__main__":
    main()
'''

_TOLERANCES = (("f8", 0.2), ("bf16", 5e-2), ("f16", 1e-2), ("f32", 2e-4), ("f64", 1e-8))
_SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}


_NEEDED = """\
if not hasattr(torch.ops.{namespace}, {name!r}):
    raise SystemExit(
        "this launch calls torch.ops.{namespace}.{name}, which is not registered here: "
        "import the module that does at the top of this file."
    )
"""


def _needed_operators(launch: Launch) -> list[str]:
    """A check that an operator is there which only the program that was recorded may register."""
    namespace, _, rest = (launch.call or "").removeprefix("torch.ops.").partition(".")
    if not (launch.call or "").startswith("torch.ops.") or namespace == "aten":
        return []
    for part in (namespace, rest.partition(".")[0]):
        check_name(part)
    return [_NEEDED.format(namespace=namespace, name=rest.partition(".")[0])]


def _tolerance(reference: Reference, launch: Launch) -> float:
    """That of the least exact type on the way: a fused kernel rounds at other places than eager ops do."""
    seen = set(reference.dtypes) | {_SHORT.get(buffer.dtype, buffer.dtype) for buffer in launch.buffers}
    return _loosest(seen)


def _graph_tolerance(graph: Graph) -> float:
    source = graph.fx_source or ""
    return 4 * _loosest({short for short, _ in _TOLERANCES if f'"{short}' in source})


def _loosest(seen: set[str]) -> float:
    return next((value for short, value in _TOLERANCES if any(name.startswith(short) for name in seen)), 2e-4)


def _find_launch(reader: LedgerReader, question: str) -> Launch:
    target = find_kernel(reader, question)
    for launch in reader.iterate(Launch, kernel=target.key, kernel_name=target.kernel_name):
        if target.launch_id in (None, launch.launch_id):
            return launch
    raise MeasureError(f"{question} is never launched by itself: it is a part of another kernel. Extract that one.")


def _title(file: str, launch: Launch, run: Run) -> str:
    return f"{launch.kernel_name}: launch {launch.launch_id} of {Path(file).name}, {_made_by(run)}."


def _made_by(run: Run) -> str:
    devices = ", ".join(device.name for device in run.devices) or "an unknown device"
    return f"generated by torch {run.environment.torch} on {devices}"


def _docstring(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'''")


def _saved_inputs(reader: LedgerReader, launch: Launch) -> str | None:
    """The file with what a launch read, if it is still there."""
    path = saved_inputs(reader, subject=launch.launch_id).get(launch.launch_id)
    return str(Path(path).absolute()) if path is not None and Path(path).exists() else None
