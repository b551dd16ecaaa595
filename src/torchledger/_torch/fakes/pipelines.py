"""Pipelines of a world that is not there: stages tell each other shapes by mail, and agree on what one of them says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.distributed import distributed_c10d as c10d

from torchledger._torch.patching import Patches, pass_through
from torchledger._torch.tensors import tensors_in
from torchledger.errors import UsageError
from torchledger.nouns import RUNNING, WorldSpec
from torchledger.work.stage_mail import StageReader, nearest_stage, stage_mail

_LOOKS_AGAIN_S = 0.05


class World(Protocol):
    """What a pipeline asks of the world around it."""

    spec: WorldSpec
    mail: dict[int, list[dict[str, Any]]]
    read_mail: dict[int, list[dict[str, Any]]]

    def stand_in(self, what: str) -> None:
        """Note a value that another rank would have given."""


class _Vote:
    """What all stages agree on, as something that has an ``item``."""

    def __init__(self, value: int) -> None:
        self._value = value

    def item(self) -> int:
        """The vote."""
        return self._value


def let_pipelines_run(world: World, patches: Patches) -> None:
    """Stages tell each other the shapes that they send. What a stage before this one left in the mail stands for them,
    and the gradient of what a stage sent has its shape."""
    from torch.distributed.pipelining import stage as stages

    kind: Any = stages.PipelineStage
    # A stage whose parameters are fake is taken for one that is built on ``meta``, and not moved to its device.
    if hasattr(stages, "FakeTensor"):
        patches.set(stages, "FakeTensor", ())
    else:  # since torch 2.14
        patches.set(stages, "is_fake_tensor", lambda parameter: False)

    def check(original: Callable[..., Any], self: Any, submodule: Any, stage_index: int, num_stages: int, *args: Any,
              **kwargs: Any) -> Any:  # fmt: skip
        if next(submodule.parameters(), None) is None:
            raise UsageError(
                f"stage {stage_index} of {num_stages} of the pipeline has no parameters: there are more stages than "
                f"layers. The nearest that works is fewer than {num_stages} stages, at most one a layer."
            )
        return original(self, submodule, stage_index, num_stages, *args, **kwargs)

    pass_through(patches, kind, "__init__", check)
    if hasattr(kind, "_recv_meta"):

        def receive(self: Any, source: int) -> Any:
            if source > self.stage_index:
                return stages._StageBackwardMeta(backward_metas=stages._derive_grad_metas(self._stage_meta.outputs))
            metas = (
                stages._TensorMeta(
                    torch.Size(each["shape"]), tuple(each["stride"]), _dtype(each), each["requires_grad"]
                )
                for each in _read_mail(world, source, self)
            )
            return stages._StageForwardMeta(forward_metas=tuple(metas))

        def send(self: Any, meta: Any, target: int) -> None:
            if target > self.stage_index:
                leave_mail(world, self.stage_index, meta.forward_metas)

        def vote(self: Any, has_backward: bool, received_acc: Any = None) -> _Vote:
            return _Vote(0 if stages.InferenceMode.needs_dynamic(self._user_meta, has_backward) else 1)

        def result(self: Any, received_result: Any = None) -> Any:
            has_backward = self.has_backward
            return received_result or vote(self, has_backward)

        for name, value in (
            ("_recv_meta", receive),
            ("_send_meta", send),
            ("_warmup_forward_vote", vote),
            ("_warmup_backward_result", result),
        ):
            patches.set(kind, name, value)
        return

    under_way: list[Any] = []

    def infer(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        under_way.append(self)
        try:
            return original(self, *args, **kwargs)
        finally:
            under_way.pop()

    def send_object_list(original: Callable[..., Any], objects: list[Any], *args: Any, **kwargs: Any) -> Any:
        if not under_way:
            return original(objects, *args, **kwargs)
        leave_mail(world, under_way[-1].stage_index, tuple(tensors_in(objects)))
        return None

    def recv_object_list(original: Callable[..., Any], objects: list[Any], *args: Any, **kwargs: Any) -> Any:
        if not under_way:
            return original(objects, *args, **kwargs)
        objects[0] = tuple(
            torch.empty_strided(each["shape"], each["stride"], dtype=_dtype(each), device="meta")
            for each in _read_mail(world, under_way[-1].stage_index - 1, under_way[-1])
        )
        return 0

    pass_through(patches, kind, "_shape_inference", infer)
    pass_through(patches, c10d, "send_object_list", send_object_list)
    pass_through(patches, c10d, "recv_object_list", recv_object_list)


def leave_mail(world: World, stage: int, metas: Sequence[Any]) -> None:
    """Leave what a stage sends to the next one: shapes, strides and dtypes. Since torch 2.13 a stage tells them anew
    when it goes over to evaluation, where it wants no gradients back: that it has wanted some is kept."""
    plain = [
        {
            "shape": list(meta.shape),
            "stride": list(meta.stride() if callable(meta.stride) else meta.stride),
            "dtype": str(meta.dtype).removeprefix("torch."),
            "requires_grad": bool(meta.requires_grad),
        }
        for meta in metas
    ]
    before = world.mail.get(stage, [])
    if [each["shape"] for each in before] == [each["shape"] for each in plain]:
        for now, then in zip(plain, before, strict=True):
            now["requires_grad"] = now["requires_grad"] or then["requires_grad"]
    world.mail[stage] = plain
    if world.spec.mail is not None:
        path = Path(world.spec.mail) / f"stage_{stage}.json"
        path.with_suffix(".new").write_text(json.dumps(plain))
        path.with_suffix(".new").rename(path)  # whole, for a rank that waits for it


def _read_mail(world: World, stage: int, reader: Any) -> list[dict[str, Any]]:
    """What a stage sends to the next one; of stages that nobody ran, what the nearest one before it sends."""
    _wait_for_mail(world.spec, stage)
    found = dict(world.mail)
    if world.spec.mail is not None:
        found = stage_mail(Path(world.spec.mail)) | found
    nearest = nearest_stage(found, stage)
    if nearest is None:
        raise UsageError(
            f"stage {stage} of the pipeline tells the next one the shapes that it sends, and no rank before this one "
            "has been run. Plan all ranks (leave --rank out), or give PipelineStage its input_args."
        )
    if nearest != stage:
        world.stand_in(f"what stage {stage} of the pipeline sends has the shapes of what stage {nearest} sends")
    world.read_mail[stage] = found[nearest]
    if world.spec.mail is not None:
        told = StageReader(tuple(c10d.get_process_group_ranks(reader.group)), world.read_mail)
        told.write(Path(world.spec.mail), world.spec.rank)
    return found[nearest]


def _wait_for_mail(spec: WorldSpec, stage: int) -> None:
    """Wait for what a stage sends, for as long as a rank before this one runs that may be it."""
    if spec.mail is None:
        return
    folder = Path(spec.mail)
    while not (folder / f"stage_{stage}.json").exists():
        ranks = (int(path.stem.partition("_")[2]) for path in folder.glob(f"request_*{RUNNING}"))
        if not any(rank < spec.rank for rank in ranks):
            return
        time.sleep(_LOOKS_AGAIN_S)


def _dtype(meta: Mapping[str, Any]) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, meta["dtype"])
    return dtype
