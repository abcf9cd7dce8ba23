"""Run a function of a test on every rank of a group, a process each.

The function is at the top of its module and takes a group and its arguments; its result crosses as JSON.
"""

import json
import os
from importlib import import_module
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import FileStore

from decoding.errors import LaneError
from runtime.parallel.group import Group
from tests.runtime.forked import ForkedProcess

TIMEOUT_S = 300


def start_rank(function, folder, rank, world_size, *arguments, ends_at=None, **deadlines):
    """One rank's process; rank 1 ends where it would call the function of torch's that it `ends_at`."""
    membership = {"rank": rank, "world_size": world_size, **deadlines}
    name = f"{function.__module__}:{function.__name__}"
    return ForkedProcess(_run, name, str(folder), membership, list(map(_plain, arguments)), ends_at if rank else None)


def on_ranks(function, folder, world_size, *arguments):
    """The function's results on all ranks."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = [start_rank(function, folder, rank, world_size, *arguments) for rank in range(world_size)]
    try:
        codes = [process.wait(TIMEOUT_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * world_size
    return [result_of(folder, rank) for rank in range(world_size)]


def result_of(folder, rank):
    return json.loads((folder / f"{rank}.json").read_text())


def _plain(argument):
    return str(argument) if isinstance(argument, Path) else argument


def _run(name, folder, membership, arguments, ends_at):
    module, _, function = name.partition(":")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if ends_at is not None:
        setattr(dist, ends_at, lambda *_, **__: os._exit(3))
    try:
        group = Group(**membership, store=FileStore(str(Path(folder) / "store")))
        result = getattr(import_module(module), function)(group, *arguments)
    except LaneError as error:
        result = [type(error).__name__, str(error)]
    (Path(folder) / f"{membership['rank']}.json").write_text(json.dumps(result))
    os._exit(0)  # threads of gloo may still run, and an interpreter that ends before them ends in an abort
