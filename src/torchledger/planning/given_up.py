"""What a plan says of code that Dynamo compiled so often that it compiles it no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchledger._torch.dynamo import GivenUp

_MOST_NAMED = 3


def given_up_note(found: Sequence[GivenUp]) -> str | None:
    """Which functions were compiled as often as a limit lets them, and what becomes of them; ``None`` for no such.

    On the device the same guards fail, so that what the plan runs eagerly then runs eagerly there, too.
    """
    if not found:
        return None
    functions = dict.fromkeys(f"{each.function} ({Path(each.path).name}:{each.line})" for each in found)
    named = ", ".join(list(functions)[:_MOST_NAMED])
    more = f" and {len(functions) - _MOST_NAMED} more" if len(functions) > _MOST_NAMED else ""
    limits = " and ".join(dict.fromkeys(f"torch._dynamo.config.{each.limit} of {each.times}" for each in found))
    return (
        f"Dynamo compiles {named}{more} no more, by {limits}: what none of its compilations fits runs eagerly, here as "
        "on the device; TORCH_LOGS=recompiles says why they did not fit"
    )
