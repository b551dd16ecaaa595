"""``torchledger predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from torchledger.cli.output import json_option
from torchledger.errors import UsageError

if TYPE_CHECKING:
    from torchledger.fitting.timing_states import State


@click.command(name="predict")
@click.argument("operator")
@click.argument("parameters", nargs=-1)
@click.option(
    "--device",
    default="H200",
    show_default=True,
    help="A device of `torchledger devices`, a model file or a data sheet (YAML).",
)
@click.option("--dtype", default="bf16", show_default=True, help="fp16, bf16, fp32, ... or torch's name.")
@click.option("--direction", help="forward, backward or step; all that are known unless given.")
@click.option(
    "--state",
    type=click.Choice(("warm", "swept", "turns", "graph")),
    default="warm",
    show_default=True,
    help="warm: just after the kernel's own repeats; swept: after other work has swept the cache; "
    "turns: forward and backward in turns; graph: in the replay of a CUDA graph.",
)
@click.option(
    "--operators", multiple=True, type=click.Path(path_type=Path), help="A Python file with operators of your own."
)
@json_option
def command(
    operator: str,
    parameters: tuple[str, ...],
    device: str,
    dtype: str,
    direction: str | None,
    state: State,
    operators: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Predict OPERATOR at a shape, without running it.

    PARAMETERS are NAME=VALUE. OPERATOR may also be `encoder`: with its layers, hidden, heads, length, batch and mp,
    every operator that a training step of it runs is priced.
    """
    from torchledger.cli.output import print_document, print_json
    from torchledger.operators import load_operators
    from torchledger.predicting.devices import find_model
    from torchledger.predicting.operators import parse_parameters, predict_directions
    from torchledger.reporting.document import as_plain
    from torchledger.reporting.fits import encoder_document, predictions_as_plain, predictions_document
    from torchledger.store import is_ledger

    if is_ledger(operator):
        raise UsageError(f"{operator} is a ledger, not an operator: `torchledger predict-step {operator}` predicts it.")
    for file in operators:
        load_operators(file)
    if operator == "encoder":
        from torchledger.predicting.encoder import parse_encoder, price_encoder

        if direction is not None:
            raise UsageError("an encoder is priced in both directions: leave --direction out.")
        if state != "warm":
            raise UsageError("an encoder is priced by warm times: leave --state out.")
        priced = price_encoder(find_model(device), parse_encoder(parse_parameters(parameters)), dtype=dtype)
        print_json(as_plain(priced)) if as_json else print_document(encoder_document(priced))
        return
    predictions = predict_directions(
        find_model(device), operator, parse_parameters(parameters), direction=direction, dtype=dtype, state=state
    )
    print_json(predictions_as_plain(predictions)) if as_json else print_document(predictions_document(predictions))
