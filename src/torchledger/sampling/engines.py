"""Where workers run: this machine, a SLURM cluster, a Ray cluster, or the place that torchrun or srun started.

An engine only places supervised workers on processors; what is measured, what is done already and what is left is in
the data folder, so any engine may die and another may go on.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.metadata
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchledger.errors import SampleError
from torchledger.sampling.points import check_part
from torchledger.sampling.supervisor import WorkerOptions, supervise

log = logging.getLogger(__name__)

ENTRY_POINT_GROUP = "torchledger.executors"


@dataclass(frozen=True)
class Job:
    """What an engine is to place: a data folder with its plan, the part of it, and how workers measure.

    ``workers`` is how many to place (``None``: one a visible GPU, one on a CPU). ``options`` are the engine's own:
    SLURM's partition and time, Ray's address.
    """

    folder: Path
    worker: WorkerOptions
    part: int = 1
    parts: int = 1
    workers: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def share(self, index: int, count: int) -> tuple[int, int]:
        """Part and parts of worker ``index`` (from 0) of ``count``: together they cover this job's part exactly."""
        return self.part + self.parts * index, self.parts * count


def run_engine(name: str, job: Job) -> None:
    """Place the job's workers on an engine and wait until all are done.

    Raises ``SampleError`` with the words of the first worker that failed, after all have ended.
    """
    check_part(job.part, job.parts)
    engine = ENGINES.get(name) or _installed_engine(name)
    engine(job)


def run_local(job: Job) -> None:
    """One process a GPU of this machine, or ``workers`` processes on its CPU."""
    if job.worker.device.startswith("cuda"):
        gpus = visible_gpus()
        if not gpus:
            raise SampleError("no CUDA device is visible. Pass --device cpu to sample the processor, marked as such.")
        chosen = _chosen_gpus(job, gpus)
        environments = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in chosen]
        worker = dataclasses.replace(job.worker, device="cuda:0")
    else:
        count = job.workers or 1
        threads = max(1, (os.cpu_count() or 1) // count)
        environments = [{"OMP_NUM_THREADS": str(threads)} for _ in range(count)]
        worker = job.worker
    with concurrent.futures.ThreadPoolExecutor(len(environments)) as threads_of_workers:
        futures = []
        for index, environment in enumerate(environments):
            part, parts = job.share(index, len(environments))
            futures.append(
                threads_of_workers.submit(
                    supervise, job.folder, worker, part=part, parts=parts, environment=environment
                )
            )
        _wait(futures)


def run_slurm(job: Job) -> None:
    """A SLURM job array through submitit: one task a GPU. Options: partition, time (minutes), account, cluster
    (``local`` runs the same jobs without SLURM), and any of submitit's own ``slurm_...`` parameters."""
    try:
        import submitit
    except ImportError as error:
        raise SampleError("the slurm engine needs submitit: pip install 'torchledger[slurm]'") from error
    options = dict(job.options)
    executor = submitit.AutoExecutor(
        folder=job.folder / "slurm" / "%j", cluster=options.pop("cluster", None), **_slurm_retries(options)
    )
    on_gpu = job.worker.device.startswith("cuda")
    parameters: dict[str, Any] = {"timeout_min": int(options.pop("time", "360")), "name": "torchledger"}
    if on_gpu:
        parameters["gpus_per_node"] = 1
    for name, value in options.items():
        plain: Any = int(value) if value.isdigit() else value
        parameters[name if name in _SUBMITIT_PARAMETERS or name.startswith("slurm_") else f"slurm_{name}"] = plain
    executor.update_parameters(**parameters)
    count = job.workers or 1
    with executor.batch():
        jobs = []
        for index in range(count):
            part, parts = job.share(index, count)
            jobs.append(executor.submit(_supervise_placed, str(job.folder), job.worker, part, parts))
    failures = []
    for placed in jobs:
        try:
            placed.result()
        except Exception as error:
            # submitit wraps whatever a job died of in its own errors; all jobs are awaited before the first is told.
            failures.append(f"job {placed.job_id}: {str(error).strip().splitlines()[-1]}")
    _tell(failures)


def run_ray(job: Job) -> None:
    """Every GPU of a running Ray cluster, or of one started here. Options: address, num_gpus (as in ``ray.init``)."""
    try:
        import ray
    except ImportError as error:
        raise SampleError("the ray engine needs ray: pip install 'torchledger[ray]'") from error
    started_here = not ray.is_initialized()
    if started_here:
        arguments: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False}
        if "address" in job.options:
            arguments["address"] = job.options["address"]
        elif "num_gpus" in job.options:
            arguments["num_gpus"] = int(job.options["num_gpus"])
        ray.init(**arguments)
    try:
        resources: Any = ray.cluster_resources()  # type: ignore[no-untyped-call]
        gpus = int(resources.get("GPU", 0))
        count = job.workers or gpus or 1
        needs = 1 if gpus else 0
        # A fresh process per call and a retry after a lost node: what was measured before is in the folder.
        place = ray.remote(num_gpus=needs, max_calls=1, max_retries=3)(_supervise_placed)
        shares = [job.share(index, count) for index in range(count)]
        tasks = [place.remote(str(job.folder), job.worker, part, parts) for part, parts in shares]
        failures = []
        for task in tasks:
            try:
                ray.get(task)
            except ray.exceptions.RayError as error:
                failures.append(str(error).strip().splitlines()[-1])
        _tell(failures)
    finally:
        if started_here:
            ray.shutdown()


def run_env(job: Job) -> None:
    """This process is one of many that torchrun or srun started: take the share that the environment gives."""
    rank, world, local = placed_by_launcher(os.environ)
    part, parts = job.share(rank, world)
    environment = {}
    worker = job.worker
    if worker.device.startswith("cuda"):
        gpus = visible_gpus()
        if not gpus:
            raise SampleError("no CUDA device is visible to this task.")
        # srun may show each task its own GPU only; torchrun shows all to all.
        environment = {"CUDA_VISIBLE_DEVICES": gpus[local % len(gpus)]}
        worker = dataclasses.replace(worker, device="cuda:0")
    supervise(job.folder, worker, part=part, parts=parts, environment=environment)


ENGINES: Mapping[str, Callable[[Job], None]] = {
    "local": run_local,
    "slurm": run_slurm,
    "ray": run_ray,
    "env": run_env,
}


def placed_by_launcher(environment: Mapping[str, str]) -> tuple[int, int, int]:
    """Rank, number of ranks and rank on this node, from torchrun's or srun's variables."""
    for names in (("RANK", "WORLD_SIZE", "LOCAL_RANK"), ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID")):
        values = [environment.get(name) for name in names]
        if None not in values:
            rank, world, local = (int(value) for value in values if value is not None)
            return rank, world, local
    raise SampleError("--engine env runs under torchrun or srun: neither RANK nor SLURM_PROCID is set.")


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES would name each visible GPU, without starting CUDA in this process."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip() and name.strip() != "-1"]
    import torch

    return [str(index) for index in range(torch.cuda.device_count())]


def _chosen_gpus(job: Job, gpus: list[str]) -> list[str]:
    """The GPUs of a local job: the one that ``cuda:2`` names, else as many as there are workers."""
    _, _, index = job.worker.device.partition(":")
    if index:
        if not index.isdigit() or int(index) >= len(gpus):
            raise SampleError(f"there is no {job.worker.device}: {len(gpus)} CUDA device(s) are visible.")
        return [gpus[int(index)]]
    if job.workers is not None and job.workers > len(gpus):
        raise SampleError(f"{job.workers} workers need as many GPUs; {len(gpus)} are visible. One process a GPU.")
    return gpus[: job.workers or len(gpus)]


def _supervise_placed(folder: str, worker: WorkerOptions, part: int, parts: int) -> int:
    """What a cluster's engine runs on a node: the scheduler has made one GPU visible."""
    if worker.device.startswith("cuda"):
        worker = dataclasses.replace(worker, device="cuda:0")
    return supervise(folder, worker, part=part, parts=parts)


_SUBMITIT_PARAMETERS = ("timeout_min", "name", "mem_gb", "cpus_per_task", "nodes", "tasks_per_node", "gpus_per_node")


def _slurm_retries(options: dict[str, str]) -> dict[str, Any]:
    retries = options.pop("max_num_timeout", None)
    return {} if retries is None else {"slurm_max_num_timeout": int(retries)}


def _wait(futures: list[concurrent.futures.Future[int]]) -> None:
    failures = []
    for future in futures:
        try:
            future.result()
        except SampleError as error:
            failures.append(str(error))
    _tell(failures)


def _tell(failures: list[str]) -> None:
    if failures:
        rest = f" ({len(failures) - 1} other workers failed too)" if len(failures) > 1 else ""
        raise SampleError(failures[0] + rest)


def _installed_engine(name: str) -> Callable[[Job], None]:
    """An engine that another package brings under the entry point group ``torchledger.executors``."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP):
        if entry.name == name:
            engine: Callable[[Job], None] = entry.load()
            return engine
    raise SampleError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}.")
