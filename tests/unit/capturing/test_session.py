"""A capture's life: caches, faults, forks and bad paths."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from torch import nn

import torchledger
from captured import capture_call, read
from command_line import run_cli
from factories import make_graph, make_run
from torchledger.capturing.graph_breaks import absent_graphs_note
from torchledger.capturing.process import run_script, run_warnings
from torchledger.capturing.session import Capture
from torchledger.errors import StoreError
from torchledger.nouns import Gap, Launch
from torchledger.store import LedgerWriter, open_ledger
from warm import WarmProcess

TESTS = Path(__file__).parents[2]
WITH_TESTS = {"PYTHONPATH": os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH"))))}
UNBUILT = "from unbuilt import unbuilt_kernels\nunbuilt_kernels().__enter__()\n"
"""First lines of a script of which nobody asks what its kernels compute."""

TRAIN = """
import sys
import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
compiled = torch.compile(model)
for _ in range(2):
    loss = F.cross_entropy(compiled(torch.randn(4, 8)), torch.randint(0, 2, (4,)))
    loss.backward()
"""


def write_script(folder: Path, *parts: str) -> Path:
    script = folder / "train.py"
    script.write_text("".join(textwrap.dedent(part) for part in parts))
    return script


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "nothing was captured"),
        ([make_run()], "no compiled graph: is torch.compile called?"),
        (
            [make_run(status="failed", exit_code=2)],
            "no compiled graph: the script ended with exit code 2 before one was compiled.",
        ),
        (
            [make_run(left_eager="torch.compile compiled 0 of 1 frame")],
            "no compiled graph: torch.compile compiled 0 of",
        ),
        ([make_run(), make_graph(), Gap("device_time", "profile", "too few steps")], "no profile: too few steps."),
        ([make_run(), make_graph()], None),
    ],
)
def test_the_end_of_a_run_tells_what_is_missing(tmp_path: Path, records: list[object], said: str | None) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(*records)
    warnings = run_warnings(tmp_path / "a.ledger", has_children=False)
    assert [warning.startswith(said) for warning in warnings] == ([] if said is None else [True])


def test_a_profile_of_a_program_that_neither_compiled_nor_trained_says_that_it_found_no_step(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)\n")
    attached: dict[str, dict[str, object]] = {"torchledger.profiling.profile": {"warmup": 1, "repeats": 1}}
    path = tmp_path / "a.ledger"
    outcome = run_script([str(tmp_path / "a.py")], path, attached=attached, is_profiled=True)
    assert outcome.warnings[0].startswith("no profile: no graph was compiled, and neither an optimizer's step")
    with open_ledger(path) as ledger:
        assert [gap.where for gap in ledger.read(Gap)] == ["profile"]
    assert not any("no profile" in warning for warning in run_warnings(path, has_children=True, is_profiled=True))


def test_a_profile_that_a_killed_process_never_wrote_is_missed(tmp_path: Path) -> None:
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), make_graph())
    (warning,) = run_warnings(tmp_path / "a.ledger", has_children=False, is_profiled=True)
    assert warning.startswith("no profile: the process ended")


def test_the_ledger_of_a_killed_process_says_that_a_profile_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", WITH_TESTS["PYTHONPATH"])
    script = write_script(tmp_path, UNBUILT, "import os, torch\ntorch.compile(torch.cos)(torch.ones(3))\nos._exit(5)\n")
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    outcome = run_script([str(script)], tmp_path / "a.ledger", environment=cache, is_profiled=True)
    with open_ledger(tmp_path / "a.ledger") as reader:
        reasons = [gap.reason for gap in reader.read(Gap) if gap.where == "profile"]
    assert outcome.exit_code == 5
    assert reasons == ["the process ended before it could write one (killed, or os._exit)"]
    assert len([warning for warning in outcome.warnings if warning.startswith("no profile")]) == 1


@pytest.mark.parametrize(
    ("graphs", "said"), [(1, "1 of 1 graph was lowered again"), (2, "2 of 2 graphs were lowered again")]
)
def test_one_graph_that_is_lowered_again_was_lowered_again(tmp_path: Path, graphs: int, said: str) -> None:
    made = [make_graph(name=f"forward_{number}", lowered_again="same_code") for number in range(graphs)]
    with LedgerWriter(tmp_path / "a.ledger") as writer:
        writer.add(make_run(), *made)
    (warning,) = run_warnings(tmp_path / "a.ledger", has_children=False)
    assert warning.startswith(said)
    assert warning.endswith("finds it." if graphs == 1 else "finds them.")


def test_what_was_compiled_before_the_capture_began_is_what_an_empty_ledger_names(tmp_path: Path) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(torch.cos)
    compiled(torch.ones(3))
    with torchledger.capture(tmp_path / "a.ledger"):
        compiled(torch.ones(3))
    with open_ledger(tmp_path / "a.ledger") as reader:
        assert "before this capture began" in (reader.run().left_eager or "")
    (warning,) = run_warnings(tmp_path / "a.ledger", has_children=False)
    assert warning.startswith("no compiled graph: torch.compile compiled") and "compile inside it" in warning


def test_an_exported_program_that_runs_without_being_compiled_is_what_an_empty_ledger_names() -> None:
    module = torch.export.export(nn.ReLU(), (torch.ones(3),)).module()
    note = absent_graphs_note(Counter())
    assert isinstance(module, nn.Module) and note is not None and "what torch.export made" in note


@pytest.mark.slow
def test_a_second_process_with_warm_caches_gets_the_same_ledger(tmp_path: Path) -> None:
    script = write_script(tmp_path, TRAIN)
    plain = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        timeout=200,
    )
    assert plain.returncode == 0  # fills the cache without torchledger, which must hide nothing from it
    for name in ("cold", "warm"):
        result = run_cli(tmp_path, "run", "-o", f"{name}.ledger", "train.py", TORCHINDUCTOR_VEC_ISA_OK="")
        assert result.returncode == 0, result.stderr
    cold, warm = read(tmp_path / "cold.ledger"), read(tmp_path / "warm.ledger")
    assert cold.launches
    assert not any(graph.cache_hit for graph in cold.graphs)
    assert all(graph.cache_hit for graph in warm.graphs)
    assert cold.launches == warm.launches
    assert cold.kernels == warm.kernels
    assert cold.reference_flops == warm.reference_flops == cold.flops
    assert [graph.wrapper_calls for graph in cold.graphs] == [graph.wrapper_calls for graph in warm.graphs]


@pytest.mark.slow
def test_a_model_that_moved_is_not_given_the_lines_of_its_old_place(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    model = """
    import torch
    from torch import nn

    class Model(nn.Module):
        def forward(self, x):
            return torch.relu(x @ x).sum()

    torch.compile(Model())(torch.randn(8, 8, requires_grad=True)).backward()
    """
    seen = []
    for folder, moved_by in (("old", 0), ("new", 3), ("new", 3)):
        (tmp_path / folder).mkdir(exist_ok=True)
        script = write_script(tmp_path / folder, "\n" * moved_by, model)
        result = run_cli(tmp_path / folder, "run", "--force", "train.py", TORCHINDUCTOR_CACHE_DIR=cache)
        assert result.returncode == 0, result.stderr
        ledger = read(tmp_path / folder / "train.ledger")
        assert {(line.file, line.line) for launch in ledger.launches for line in launch.sources} == {
            (str(script), 7 + moved_by)
        }
        seen.append([graph.cache_hit for graph in ledger.graphs])
    assert seen == [[False, False], [False, False], [True, True]]


def test_a_backward_compiled_after_a_cached_forward_keeps_its_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import codecache
    from torch._inductor.utils import fresh_inductor_cache

    def forwards_only(graph_module: object, example_inputs: object, settings: dict[str, bool]) -> None:
        if settings["is_backward"]:
            raise codecache.BypassFxGraphCache("the test keeps backwards out of the cache")

    monkeypatch.setattr(codecache.FxGraphCache, "_check_can_cache", staticmethod(forwards_only))
    weight = torch.randn(16, 16, requires_grad=True)
    with fresh_inductor_cache(), torch._functorch.config.patch(enable_autograd_cache=False):
        seen = []
        for number in range(2):

            def product(x: torch.Tensor) -> torch.Tensor:
                return x @ weight

            captured = capture_call(
                tmp_path / f"{number}.ledger",
                lambda product=product: torch.compile(product)(torch.randn(4, 16, requires_grad=True)).sum().backward(),
            )
            seen.append({graph.direction: graph.cache_hit for graph in captured.graphs})
            assert captured.reference_flops == captured.flops == 3 * 2 * 4 * 16 * 16
    assert seen == [{"forward": False, "backward": False}, {"forward": True, "backward": False}]


def test_a_failing_script_keeps_its_traceback_and_exit_code(tmp_path: Path) -> None:
    write_script(tmp_path, UNBUILT, TRAIN, "raise RuntimeError('boom')\n")
    result = run_cli(tmp_path, "run", "train.py", **WITH_TESTS)
    assert result.returncode == 1
    assert "RuntimeError: boom" in result.stderr
    assert "torchledger/" not in result.stderr.split("Traceback")[1]
    with open_ledger(tmp_path / "train.ledger") as ledger:
        assert (ledger.run().status, ledger.run().exit_code) == ("failed", 1)
        assert ledger.count(Launch) > 0


def test_a_script_gets_its_own_arguments_and_its_exit_code_is_ours(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\nprint(sys.argv, __name__)\nsys.exit(7)\n")
    result = run_cli(tmp_path, "run", "train.py", "--force", "-o", "x", "--help")
    assert result.returncode == 7
    assert result.stdout == "['train.py', '--force', '-o', 'x', '--help'] __main__\n"


def test_a_module_runs_with_m(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\nprint(__name__, sys.argv[1:])\n")
    result = run_cli(tmp_path, "run", "-o", "a.ledger", "-m", "train", "1")
    assert result.stdout == "__main__ ['1']\n", result.stderr


def test_a_script_without_torch_imports_none(tmp_path: Path) -> None:
    write_script(tmp_path, "import sys\nprint('torch' in sys.modules)\n")
    result = run_cli(tmp_path, "run", "train.py")
    assert result.stdout == "False\n"
    with open_ledger(tmp_path / "train.ledger") as ledger:
        assert ledger.count(Launch) == 0
        assert ledger.run().status == "finished"


def test_an_unwritable_output_is_refused_before_the_script_starts(tmp_path: Path, warm: WarmProcess) -> None:
    write_script(tmp_path, "open('started', 'w')\n")
    code, _, told = warm.run(tmp_path, "run", "-o", "absent/a.ledger", "train.py")
    assert code == 1
    assert "absent" in told
    assert not (tmp_path / "started").exists()


def test_an_existing_output_needs_force(tmp_path: Path, warm: WarmProcess) -> None:
    write_script(tmp_path, "open('started', 'a').write('x')\n")
    assert warm.run(tmp_path, "run", "train.py")[0] == 0
    code, _, told = warm.run(tmp_path, "run", "train.py")
    assert code == 1
    assert "--force" in told
    assert warm.run(tmp_path, "run", "--force", "train.py")[0] == 0
    assert (tmp_path / "started").read_text() == "xx"


def test_a_script_that_does_not_exist_is_named(tmp_path: Path, warm: WarmProcess) -> None:
    code, _, told = warm.run(tmp_path, "run", "nothing.py")
    assert code == 2
    assert "nothing.py" in told
    assert not list(tmp_path.glob("*.ledger")) and not list(tmp_path.glob("*.job"))


def test_a_killed_script_leaves_its_finished_graphs(tmp_path: Path, warm: WarmProcess) -> None:
    write_script(tmp_path, TRAIN, "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    code, _, told = warm.run(tmp_path, "run", "train.py")
    assert code == 128 + 9, told
    captured = read(tmp_path / "train.ledger")
    assert [graph.name for graph in captured.graphs] == ["forward_0", "backward_0"]
    assert len(captured.calls) == captured.wrapper_calls


@pytest.mark.slow
def test_processes_that_compile_write_ledgers_of_their_own(tmp_path: Path) -> None:
    body = textwrap.indent(TRAIN, "    ")
    write_script(
        tmp_path,
        f"import os\nimport torch.multiprocessing as mp\ndef work(rank):\n    os.environ['RANK'] = str(rank)\n{body}\n"
        "if __name__ == '__main__':\n    mp.spawn(work, nprocs=2)\n",
    )
    result = run_cli(tmp_path, "run", "train.py")
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.glob("*.ledger")), "what only starts others leaves no ledger of its own"
    job = tmp_path / "train.job"
    assert sorted(path.name for path in job.iterdir()) == ["job.json", "rank0.ledger", "rank1.ledger"]
    with open_ledger(job / "rank1.ledger") as ledger:
        assert ledger.run().rank == 1
        assert ledger.count(Launch) > 0


def test_a_process_that_a_script_starts_loads_the_capture_with_torch_and_not_before(tmp_path: Path) -> None:
    child = "import sys; print('torchledger.capturing' in sys.modules)"
    write_script(
        tmp_path,
        "import subprocess, sys\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
        f"subprocess.run([sys.executable, '-c', 'import torch; ' + {child!r}], check=True)\n",
    )
    result = run_cli(tmp_path, "run", "train.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "True"]


@pytest.mark.slow
def test_a_forked_child_writes_beside_its_parent(tmp_path: Path) -> None:
    script = f"""
    import os
    import torch, torchledger
    from torch import nn

    def compile_one():
        torch.compile(nn.Linear(8, 8))(torch.randn(2, 8)).sum().backward()

    with torchledger.capture({str(tmp_path / "a.ledger")!r}):
        pid = os.fork()
        if pid == 0:
            torch._inductor.config.compile_threads = 1
            compile_one()
            os._exit(0)
        os.waitpid(pid, 0)
    """
    path = write_script(tmp_path, UNBUILT, script)
    environment = os.environ | WITH_TESTS | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run([sys.executable, str(path)], check=True, env=environment, timeout=200)
    parent = read(tmp_path / "a.ledger")
    (child_path,) = tmp_path.glob("a.pid*.ledger")
    child = read(child_path)
    assert parent.launches == []
    assert len(child.calls) == child.wrapper_calls > 0


def test_a_fault_in_a_hook_is_a_gap_and_the_compile_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchledger.capturing.recorder import Recorder

    def broken(*args: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(Recorder, "on_kernel_call", broken)
    x = torch.randn(3, 5)
    results = []
    captured = capture_call(
        tmp_path / "a.ledger", lambda: results.append(torch.compile(lambda x: (x * 2 + 1).sin())(x)), builds=True
    )
    assert torch.allclose(results[0], (x * 2 + 1).sin())
    assert any("planted" in gap.reason for gap in captured.gaps)
    assert any("has no entry" in gap.reason for gap in captured.gaps)


def test_leaving_a_capture_takes_every_hook_out_also_after_an_error(tmp_path: Path) -> None:
    import torch._inductor.compile_fx
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen
    from torch._inductor.scheduler import Scheduler

    before = Scheduler.codegen, PythonWrapperCodegen.generate_kernel_call
    metadata = dict(torch._inductor.config.aot_inductor.metadata)
    with pytest.raises(RuntimeError, match="mine"), torchledger.capture(tmp_path / "a.ledger"):
        assert Scheduler.codegen is not before[0]
        raise RuntimeError("mine")
    assert (Scheduler.codegen, PythonWrapperCodegen.generate_kernel_call) == before
    assert torch._inductor.config.aot_inductor.metadata == metadata
    with open_ledger(tmp_path / "a.ledger") as ledger:
        assert ledger.run().status == "failed"


def test_capture_refuses_a_bad_path_at_once(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent"):
        torchledger.capture(tmp_path / "absent" / "a.ledger")


def test_compiled_results_are_the_same_bits_with_and_without_a_capture(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
    x = torch.randn(8, 16)
    outputs = []
    capture_call(tmp_path / "a.ledger", lambda: outputs.append(torch.compile(model)(x)), builds=True)
    torch._dynamo.reset()
    outputs.append(torch.compile(model)(x))
    assert torch.equal(*outputs)


def test_a_rank_whose_ledger_cannot_be_made_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    (tmp_path / "j.job").write_text("not a folder")
    with Capture(tmp_path / "j.ledger", argv=("train.py",), is_child=True):
        torch.compile(lambda x: x + 1, backend="inductor")(torch.ones(3))
    assert "1 of 1 graphs are lost: cannot make" in capsys.readouterr().err


def test_a_rank_that_has_compiled_nothing_knows_its_own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    capture = Capture(tmp_path / "j.ledger", argv=("train.py",), is_child=True)
    assert capture.own_path() == tmp_path / "j.job" / "rank3.ledger"
    capture.close()


@pytest.mark.parametrize("symbols", [{}, {"s0": 8}])
def test_a_cached_graph_of_other_sizes_differs_from_the_model_and_not_from_a_step(symbols: dict[str, int]) -> None:
    from torchledger.capturing.graph_records import as_traced_here
    from torchledger.capturing.payload import Payload
    from torchledger.capturing.recorder import Traced
    from torchledger.nouns import FlopReference

    made = FlopReference("model", {"aten.mm": 100})
    here = as_traced_here(
        Payload(make_graph(symbols=symbols, flop_references=(made,))),
        Traced("key", FlopReference("model", {"aten.mm": 60})),
    )
    (difference,) = here.differences
    assert difference.amount == 40
    assert difference.is_eager_too == bool(symbols), "a step's calls are counted at their own sizes"
