"""Values that end loops, and values that are only looked at."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from torchledger.stepping.loop_ends import may_end_a_loop


def ends_a_loop(folder: Path, text: str) -> bool:
    """Of a program in which lines that end with ``# 1``, ``# 2`` call each other and the last reads."""
    script = folder / "program.py"
    script.write_text(dedent(text))
    lines = script.read_text().splitlines()
    marked = {line.partition("# ")[2]: number for number, line in enumerate(lines, 1) if "# " in line}
    return may_end_a_loop([f"{script}:{marked[place]}" for place in sorted(marked)])


ENDS = {
    "a while that asks": """
        while (b - x).norm() > 1e-3:  # 1
            x = step(x)
    """,
    "a break": """
        for _ in range(100):
            x = step(x)
            if (b - x).norm().item() < 1e-3:  # 1
                break
    """,
    "a number that is compared later": """
        def solve(x):
            for _ in range(100):
                error = (b - x).norm().item()  # 1
                relative = error / scale
                if relative < 1e-3:
                    return x
    """,
    "a flag that is set": """
        done = False
        while not done:
            if (x < 1e-3).all():  # 1
                done = True
    """,
    "what a function returns": """
        def residual(x):
            found = x.norm().item()  # 2
            return found
        while residual(x) > 1e-3:  # 1
            x = step(x)
    """,
    "an attribute that a method sets": """
        class Solver:
            def advance(self):
                self.error = self.x.norm().item()  # 2
        while solver.error > 1e-3:
            solver.advance()  # 1
    """,
    "a whole turn in a method": """
        def integrate(self):
            while self.next_t > self.state.t1:  # 1
                self.state = self.adaptive_step(self.state)
    """,
    "a statement of several lines": """
        for _ in range(9):
            if (
                x.norm()
                < 1e-3  # 1
            ):
                break
    """,
}

GOES_ON = {
    "a log": """
        for name, loss in losses.items():
            logs[name] = loss.item()  # 1
    """,
    "a sum of losses": """
        for batch in batches:
            total += model(batch).item()  # 1
    """,
    "a check of each gradient": """
        for parameter in parameters:
            if not torch.isfinite(parameter.grad).all():  # 1
                break
    """,
    "a check that is asked for later": """
        for parameter in parameters:
            bad = torch.isnan(parameter.grad).any()
            if bad:  # 1
                break
    """,
    "an assertion": """
        for each in outputs:
            assert each.min() >= 0  # 1
    """,
    "an error": """
        for each in outputs:
            if (each < 0).any():  # 1
                raise ValueError(each)
    """,
    "a layer that looks at what it is given": """
        def forward(x):
            if (x > 6e4).any():  # 2
                x = x.clamp(max=6e4)
            return x + 1
        for layer in layers:
            x = forward(x)  # 1
    """,
    "a helper that prints": """
        def log(name, value):
            print(name, value.item())  # 2
        while step < 100:
            log("loss", loss)  # 1
            step += 1
    """,
    "a break of a loop inside": """
        for each in outputs:
            if (each < 0).any():  # 1
                for name in names:
                    if name:
                        break
    """,
}


@pytest.mark.parametrize("text", ENDS.values(), ids=ENDS.keys())
def test_a_loop_that_asks_a_value_whether_it_goes_on_may_end_by_it(tmp_path: Path, text: str) -> None:
    assert ends_a_loop(tmp_path, text)


@pytest.mark.parametrize("text", GOES_ON.values(), ids=GOES_ON.keys())
def test_a_value_that_is_only_looked_at_ends_no_loop(tmp_path: Path, text: str) -> None:
    assert not ends_a_loop(tmp_path, text)


@pytest.mark.parametrize("text", [None, "while (", "x = 1\n"])
def test_where_no_text_tells_of_a_line_it_may_end_a_loop(tmp_path: Path, text: str | None) -> None:
    script = tmp_path / "gone.py"
    if text is not None:
        script.write_text(text)
    assert may_end_a_loop([f"{script}:7"])
