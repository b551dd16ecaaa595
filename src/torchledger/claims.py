"""Answers that are yes or no."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec

Asked = ParamSpec("Asked")


def claim(function: Callable[Asked, bool]) -> Callable[Asked, bool]:
    """A function whose "no" drops something: where it answers nothing, that is a fault, and not a no.

    A fault is heard by whatever guard it happens under, and listed; taken for a no, it would be lost in silence.

    >>> claim(lambda: None)()
    Traceback (most recent call last):
    TypeError: <lambda> answers neither yes nor no
    """

    @functools.wraps(function)
    def asked(*args: Asked.args, **kwargs: Asked.kwargs) -> bool:
        answer = function(*args, **kwargs)
        if answer is None:
            raise TypeError(f"{function.__name__} answers neither yes nor no")
        return answer

    return asked
