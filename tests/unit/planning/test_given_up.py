"""What a plan says of code that is compiled no more."""

from __future__ import annotations

from torchledger._torch.dynamo import GivenUp
from torchledger.planning.given_up import given_up_note


def given_up(function: str, limit: str = "recompile_limit", times: int = 8) -> GivenUp:
    return GivenUp(function, "/home/me/model.py", 7, limit, times)


def test_nothing_is_said_where_no_limit_was_met() -> None:
    assert given_up_note([]) is None


def test_the_function_and_its_limit_are_named_and_what_becomes_of_it() -> None:
    said = given_up_note([given_up("forward")])
    assert said is not None
    assert said.startswith("Dynamo compiles forward (model.py:7) no more, by torch._dynamo.config.recompile_limit of 8")
    assert "runs eagerly, here as on the device" in said


def test_of_many_functions_three_are_named() -> None:
    said = given_up_note([given_up(each) for each in ("a", "a", "b", "c", "d", "e")])
    assert said is not None and "a (model.py:7), b (model.py:7), c (model.py:7) and 2 more no more" in said
