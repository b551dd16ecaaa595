"""Values that end loops, and values that are only looked at."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from torchledger.loop_ends import Comparison, ValueLoop, may_end_a_loop, value_loop


def stack_of(folder: Path, text: str) -> list[str]:
    """Of a program in which lines that end with ``# 1``, ``# 2`` call each other and the last reads."""
    script = folder / "program.py"
    script.write_text(dedent(text))
    lines = script.read_text().splitlines()
    marked = {line.partition("# ")[2]: number for number, line in enumerate(lines, 1) if "# " in line}
    return [f"{script}:{marked[place]}" for place in sorted(marked)]


def ends_a_loop(folder: Path, text: str) -> bool:
    return may_end_a_loop(stack_of(folder, text))


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


ENDED_BY = {
    "its own condition": ("while (b - x).norm() > 1e-3:  # 1\n    x = step(x)\n", ValueLoop(True, True, False)),
    "the contrary of it": ("while not done.all():  # 1\n    x = step(x)\n", ValueLoop(False, True, False)),
    "a break": (
        "while True:\n    x = step(x)\n    if (x < 1e-3).all():  # 1\n        break\n",
        ValueLoop(False, False, False),
    ),
    "where a condition does not hold": (
        "while True:\n    if (x > 1).any():  # 1\n        x = step(x)\n    else:\n        break\n",
        ValueLoop(True, False, False),
    ),
    "a number that is compared later": (
        "while error > 1e-3:\n    x = step(x)\n    error = x.norm().item()  # 1\n",
        ValueLoop(None, False, False),
    ),
    "what a function returns": (
        "def residual(x):\n    return x.norm().item()  # 2\nwhile residual(x) > 1e-3:  # 1\n    x = step(x)\n",
        ValueLoop(None, True, False),
    ),
    "its own condition, beside a count": (
        "while n < 9 and not (x < 1e-3).all():  # 1\n    x = step(x)\n    n += 1\n",
        ValueLoop(False, True, False, counts=True),
    ),
    "a break, beside one at a number of rounds": (
        "while True:\n    n += 1\n    if n > 9:\n        break\n    if x.norm() < 1e-3:  # 1\n        break\n",
        ValueLoop(False, False, False, counts=True, left=Comparison(above=False, bound=1e-3)),
    ),
    "its own condition, beside a length": (
        "while x.shape[1] < 9 and (x > 1).any():  # 1\n    x = step(x)\n",
        ValueLoop(True, True, False, counts=True),
    ),
    "its own condition, in a function that trains": (
        "def step(x):\n    while x.norm() > 1e-3:  # 1\n        x = f(x)\n    x.mean().backward()\n",
        ValueLoop(True, True, False),
    ),
    "whether it takes a step": (
        "while t < end:\n    new = step(x)\n    if (new - x).norm() < 1e-3:  # 1\n        t = t + h\n    h = h * 0.9\n",
        ValueLoop(None, False, False, advances=True),
    ),
    "whether a method of it takes a step": (
        "def advance(self):\n    if self.error < 1:  # 2\n        t = self.t + h\n    else:\n        t = self.t\n"
        "    return t\nwhile end > self.t:\n    self.t = advance(self)  # 1\n",
        ValueLoop(None, False, False, advances=True),
    ),
    "whether it is held back": (
        "while (x - y).norm() > 1e-3:\n    x = step(x)\n    if (x > 1e6).any():  # 1\n        x = x.clamp(max=1e6)\n",
        ValueLoop(None, False, False),
    ),
    "a truth that is assigned": (
        "while not done:\n    x = step(x)\n    done = (x < 1e-3).all().item()  # 1\n",
        ValueLoop(False, False, False),
    ),
    "the contrary of what is assigned": (
        "while not done:\n    x = step(x)\n    done = not (x > 1e-3).any()  # 1\n",
        ValueLoop(True, False, False),
    ),
    "what follows of it": (
        "while x.ok:\n    far = bool((x > 1e-3).any())  # 1\n    near = not far\n    x.ok = not (near or x.old)\n",
        ValueLoop(True, False, False),
    ),
    "a break by what is assigned": (
        "while True:\n    done = (x < 1e-3).all().item()  # 1\n    if done or n > 9:\n        break\n",
        ValueLoop(False, False, False),
    ),
    "a flag that is set": (
        "while go_on:\n    x = step(x)\n    if (x < 1e-3).all():  # 1\n        go_on = False\n",
        ValueLoop(False, False, False),
    ),
    "a truth that a function returns": (
        "def done(x):\n    return not (x > 1e-3).any()  # 2\nwhile not done(x):  # 1\n    x = step(x)\n",
        ValueLoop(True, True, False),
    ),
    "a truth that a function returns written out": (
        "def done(x):\n    if (x < 1e-3).all():  # 2\n        return True\n    return False\n"
        "while True:\n    x = step(x)\n    if done(x):  # 1\n        break\n",
        ValueLoop(False, False, False),
    ),
    "a truth that a function returns and its caller assigns": (
        "def far(x):\n    found = bool((x > 1e-3).any())  # 2\n    return found\n"
        "while not done:\n    x = step(x)\n    done = not far(x)  # 1\n",
        ValueLoop(True, False, False),
    ),
    "a truth that another function makes something of": (
        "while goes_on(done):\n    x = step(x)\n    done = bool((x < 1e-3).all())  # 1\n",
        ValueLoop(None, False, False),
    ),
    "the loss of its steps": (
        "while loss > 0.1:\n    optimizer.step()\n    loss = model(x).item()  # 1\n",
        ValueLoop(None, False, True),
    ),
    "the loss of an optimizer that calls for it": (
        "while loss > 0.1:\n    loss = lbfgs.step(closure)  # 1\n",
        ValueLoop(None, False, True),
    ),
    "what a simulation says": (
        "while not done.all():  # 1\n    done = world.step(act(x))\n",
        ValueLoop(False, True, False),
    ),
    "the loss of a function that makes a step": (
        "def train(x):\n    loss = model(x)\n    loss.backward()\n    return loss.item()  # 2\n"
        "while loss > 0.1:\n    loss = train(x)  # 1\n",
        ValueLoop(None, False, True),
    ),
}

ENDED_BY_NONE = {
    "a loop without an end of its own": "for _ in count():\n    if (x < 1e-3).all():  # 1\n        break\n",
    "a loop of which one inside it is left": (
        "for _ in range(9):\n    kl = x.item()  # 1\n    for y in ys:\n        if kl > 0.05:\n            break\n"
    ),
    "a log": "while step < 100:\n    print(loss.item())  # 1\n    step += 1\n",
    "a check": "while True:\n    if torch.isnan(x).any():  # 1\n        break\n",
}


@pytest.mark.parametrize(("text", "loop"), ENDED_BY.values(), ids=ENDED_BY.keys())
def test_a_while_that_goes_round_as_long_as_a_value_says_is_told_with_the_truth_that_has_it_go_on(
    tmp_path: Path, text: str, loop: ValueLoop
) -> None:
    assert value_loop(stack_of(tmp_path, text)) == loop


@pytest.mark.parametrize("text", ENDED_BY_NONE.values(), ids=ENDED_BY_NONE.keys())
def test_what_ends_by_itself_or_by_no_value_is_no_loop_of_values(tmp_path: Path, text: str) -> None:
    assert value_loop(stack_of(tmp_path, text)) is None


LEFT_BY = {
    "a number that is read there": ("if x.item() > 0.05:  # 1\n        break", Comparison(True, 0.05)),
    "a number that is read before": ("kl = float(x)  # 1\n    if kl > 1.5 * target:\n        break", Comparison(True)),
    "a bound that stands first": ("if target < x.item():  # 1\n        break", Comparison(True)),
    "a mean of numbers": (
        "kls.append(x.item())  # 1\n    if np.mean(kls) > 0.05:\n        break",
        Comparison(True, 0.05),
    ),
    "a sum over how many": (
        "kls += [x.item()]  # 1\n    if sum(kls) / len(kls) >= 0.05:\n        break",
        Comparison(True, 0.05),
    ),
    "the contrary": ("if not x.item() <= 0.05:  # 1\n        break", Comparison(True, 0.05)),
    "what a number is taken from": ("if 1.0 - x.item() > 0.05:  # 1\n        break", Comparison(False)),
    "another way": ("if x.item() < 0.05:  # 1\n        y = f(y)\n    else:\n        break", Comparison(True, 0.05)),
    "a bound that may not be given": (
        "if target is not None and x.item() > target:  # 1\n        break",
        Comparison(True),
    ),
    "how much numbers differ": ("new = x.item()  # 1\n    if old - new < 1e-3:\n        break\n    old = new", None),
    "rounds without progress": ("if x.item() > best:  # 1\n        n += 1\n    if n > 9:\n        break", None),
}


@pytest.mark.parametrize(("text", "left"), LEFT_BY.values(), ids=LEFT_BY.keys())
def test_a_for_that_a_value_may_end_early_is_told_with_the_numbers_by_which_it_is_left(
    tmp_path: Path, text: str, left: Comparison | None
) -> None:
    loop = value_loop(stack_of(tmp_path, f"for _ in range(9):\n    {text}\n"))
    assert loop is not None and loop.has_end and loop.ends_anyway and loop.left == left


def test_of_loops_in_one_another_the_one_that_is_left_is_told(tmp_path: Path) -> None:
    text = (
        "while True:\n    for _ in range(4):\n        if x.item() > 1:  # 1\n            break\n    loss.backward()\n"
    )
    loop = value_loop(stack_of(tmp_path, text))
    assert loop is not None and loop.has_end and not loop.trains


def test_a_truth_that_would_have_a_for_left_is_told_by_its_contrary(tmp_path: Path) -> None:
    loop = value_loop(stack_of(tmp_path, "for _ in range(9):\n    if not (x < 1).all():  # 1\n        break\n"))
    assert loop is not None and loop.goes_on is True


def test_where_no_text_tells_of_a_line_no_loop_of_values_is_known(tmp_path: Path) -> None:
    assert value_loop([f"{tmp_path / 'gone.py'}:7"]) is None
