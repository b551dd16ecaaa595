"""Branches of a program that a plan does not take, as ``False`` stands for the truth that they ask of the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from torchledger.nouns import StandIn
from torchledger.program_text import parsed, shortened, statements_around

_TRUTH = "the value of a tensor of bool"
_MOST_NAMED = 4

_SELDOM_HOLDS = re.compile(r"nan|inf|finite|overflow|done|stop|converged", re.IGNORECASE)
"""What looks for numbers that went wrong, or for an end, is as a rule ``False`` on the device, too."""

_LEAVES = (ast.Raise, ast.Break, ast.Continue, ast.Return)


def untaken_note(stand_ins: Iterable[StandIn]) -> str | None:
    """That branches are not in the price which call something and depend on a truth alone (``if mask.any():``);
    ``None`` where there are none. Comparisons (``if loss > best:``) are milestones, as a rule."""
    sources = dict.fromkeys(each.source for each in stand_ins if each.asked == _TRUTH and each.value == "False")
    found = [(source, text) for source in sources if (text := _untaken(source)) is not None]
    if not found:
        return None
    named = ", ".join(f"`if {text}:` ({shortened(source)})" for source, text in found[:_MOST_NAMED])
    further = ", and others" if len(found) > _MOST_NAMED else ""
    return (
        f"not in the price is what stands behind {named}{further}: only the device knows whether that holds, and False "
        "stands for it; where it usually holds, plan the script without the condition"
    )


def _untaken(source: str) -> str | None:
    """The condition at a line, where its branch is not taken and may do work."""
    file, _, number = source.rpartition(":")
    tree = parsed(file) if number.isdigit() else None
    if tree is None:
        return None
    around = [each for each in statements_around(tree, int(number)) if isinstance(each, ast.If)]
    asks = next((each for each in reversed(around) if _is_at(each.test, int(number))), None)
    if asks is None or not isinstance(asks.test, (ast.Call, ast.Name, ast.Attribute, ast.Subscript)):
        return None
    text = ast.unparse(asks.test)
    works = any(isinstance(node, ast.Call) for each in asks.body for node in ast.walk(each))
    if not works or isinstance(asks.body[-1], _LEAVES) or _SELDOM_HOLDS.search(text):
        return None
    return text


def _is_at(test: ast.expr, line: int) -> bool:
    return test.lineno <= line <= (test.end_lineno or test.lineno)
