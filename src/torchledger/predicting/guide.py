"""The sampling guide's own call: a predictor over a folder of its CSV files, trained when first asked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchledger.errors import FitError, PredictError
from torchledger.fitting import TimeModel, fit
from torchledger.operators.declaration import Operator, dtype_name
from torchledger.predicting.model_file import load_model, save_model
from torchledger.predicting.operators import predict
from torchledger.store.cache_folder import cache_folder

_DIRECTIONS = {"fwd": "forward", "bwd": "backward", "dur": "step"}


class Predictor:
    """Answers as the guide's predictor does.

    ``operator_dict`` is the dictionary of models that ``predict_operator`` fills; callers pass it back in.
    """

    def __init__(self) -> None:
        self.operator_dict: dict[str, Any] = {}

    def predict_operator(
        self,
        gpu_name: str,
        function: str,
        precision: str,
        propagation: str,
        shape: Sequence[float],
        model_dict: MutableMapping[str, Any] | None = None,
        config_folder: str | os.PathLike[str] | None = None,
        data_folder: str | os.PathLike[str] | None = None,
    ) -> float:
        """The time in microseconds of ``function`` at ``shape`` (its parameters, in the order of the CSV's columns).

        ``propagation`` is ``"fwd"`` or ``"bwd"``; an optimizer's step, which has no backward, is ``"fwd"`` or, as the
        published configurations call it, ``"dur"``. The model is trained when first needed from
        ``data_folder/{gpu_name}_{function}_{precision}.csv`` (parts are joined), kept in ``model_dict``, and cached on
        disk until the CSV files change. ``config_folder`` must be ``None``: its hyper-parameters are of regressors that
        are not fitted here. Raises ``PredictError`` if it is not, if there are no data, or for a wrong shape.
        """
        if propagation not in _DIRECTIONS:
            raise PredictError(f"propagation {propagation!r} is unknown; there are {', '.join(_DIRECTIONS)}.")
        if config_folder is not None:
            raise PredictError(
                f"config_folder {str(config_folder)!r} would choose the regressors' hyper-parameters; here one model "
                "is fitted whose parameters follow from the data. Pass config_folder=None."
            )
        if data_folder is None:
            raise PredictError("data_folder is needed: the folder that holds the guide's CSV files.")
        from torchledger.operators import find_operator

        models = self.operator_dict if model_dict is None else model_dict
        key = f"{gpu_name}_{function}_{precision}"
        if key not in models:
            models[key] = _trained(gpu_name, function, precision, Path(data_folder))
        operator = find_operator(function, prefer_guide=True)
        if len(shape) != len(operator.parameters):
            raise PredictError(
                f"{function} takes {len(operator.parameters)} numbers ({', '.join(operator.parameters)}), "
                f"not {len(shape)}."
            )
        parameters = {name: int(value) for name, value in zip(operator.parameters, shape, strict=True)}
        prediction = predict(
            models[key],
            operator.key,
            parameters,
            direction=_direction(propagation, operator),
            dtype=dtype_name(precision),
        )
        return prediction.duration_us


def _direction(propagation: str, operator: Operator) -> str:
    if propagation == "fwd" and operator.directions == ("step",):
        return "step"
    return _DIRECTIONS[propagation]


def _trained(gpu_name: str, function: str, precision: str, folder: Path) -> TimeModel:
    from torchledger.sampling.guide_csv import read_guide_csv

    stem = f"{gpu_name}_{function}_{precision}"
    files = [path for path in sorted(folder.glob(f"{stem}*.csv")) if _is_part(path.stem, stem)]
    if not files:
        have = sorted(path.name for path in folder.glob("*.csv"))[:5]
        raise PredictError(f"{folder} holds no {stem}.csv; it holds {', '.join(have) or 'no CSV file at all'}.")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + path.read_bytes())
    cached = cache_folder() / f"{stem}-{digest.hexdigest()[:16]}.tlmodel"
    if cached.exists():
        try:
            return load_model(cached)
        except PredictError:
            cached.unlink(missing_ok=True)  # of another schema or cut off: train again
    samples = [replace(sample, device=gpu_name) for path in files for sample in read_guide_csv(path)]
    try:
        model, _ = fit(samples, jobs=1)
    except FitError as error:
        raise PredictError(f"{files[0]} cannot be learned from: {error}") from error
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        save_model(model, cached, force=True)
    except (OSError, PredictError):
        pass  # without a writable cache the model is trained again next time
    return model


def _is_part(name: str, stem: str) -> bool:
    rest = name.removeprefix(stem).split("_")
    return rest == [""] or (len(rest) == 3 and rest[0] == "" and rest[1].isdigit() and rest[2].isdigit())
