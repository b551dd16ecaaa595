"""Variables of running functions."""

from __future__ import annotations

import sys
import weakref
from typing import Any

from torchledger.frame_variables import local_of


class Large:
    """Something that should not live long."""


def test_a_variable_is_read_by_its_name() -> None:
    here = 3
    frame = sys._getframe()
    assert local_of(frame, "here") == here == 3
    assert local_of(frame, "nowhere") is None and local_of(frame, "nowhere", 5) == 5


def test_what_a_function_lets_go_is_gone_though_another_of_its_variables_was_read() -> None:
    steps, large = 3, Large()
    seen = weakref.ref(large)
    assert local_of(sys._getframe(), "steps") == steps
    del large
    assert seen() is None


def test_variables_that_the_program_keeps_itself_stay_as_they_are() -> None:
    kept: dict[str, Any] = {}

    def run(rate: float, width: int) -> None:
        settings = locals()
        assert local_of(sys._getframe(), "width") == width
        kept.update(settings)

    run(0.1, 64)
    assert kept["rate"] == 0.1 and kept["width"] == 64


def test_variables_of_a_module_stay() -> None:
    names = {"local_of": local_of, "sys": sys}
    exec("found = local_of(sys._getframe(), 'sys')", names)
    assert names["found"] is sys and names["sys"] is sys
