"""Programs that call modules on one thread while another compiles."""

from __future__ import annotations

from pathlib import Path

from command_line import run_cli

PROGRAM = """
import queue, threading, torch

served, is_over = queue.Queue(2), threading.Event()

def serve():
    model = torch.nn.Linear(8, 8)
    while not is_over.is_set():
        try:
            served.put(model(torch.randn(4, 8)).detach(), timeout=0.1)
        except queue.Full:
            pass

thread = threading.Thread(target=serve, daemon=True)
thread.start()
model = torch.compile(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    model(served.get()).square().mean().backward()
    optimizer.step()
is_over.set()
thread.join()
print("trained")
"""


def test_a_program_whose_other_thread_calls_a_module_before_it_compiles_runs_as_by_itself(tmp_path: Path) -> None:
    (tmp_path / "serves.py").write_text(PROGRAM)
    result = run_cli(tmp_path, "run", "--profile", "--force", "-o", "serves.ledger", "serves.py")
    assert result.returncode == 0 and "trained" in result.stdout, result.stderr[-2000:]
