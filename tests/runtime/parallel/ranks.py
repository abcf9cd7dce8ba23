"""Run a function of a test on every rank of a group, a process each.

The function is at the top of its module and takes a group and its arguments, which cross as JSON, as its result does.
"""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import torch
from torch.distributed import FileStore

from decoding.errors import LaneError
from runtime.parallel.group import Group

ROOT = Path(__file__).parents[3]
TIMEOUT_S = 300


def start_rank(function, folder, rank, world_size, *arguments, **deadlines):
    """One rank's process."""
    membership = {"rank": rank, "world_size": world_size, **deadlines}
    name = f"{function.__module__}:{function.__name__}"
    call = json.dumps([name, str(folder), membership, list(map(_plain, arguments))])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "FATAL"}
    return subprocess.Popen([sys.executable, "-m", __name__, call], cwd=ROOT, env=environment)


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


def main():
    name, folder, membership, arguments = json.loads(sys.argv[1])
    module, _, function = name.partition(":")
    torch.set_num_threads(1)
    try:
        group = Group(**membership, store=FileStore(str(Path(folder) / "store")))
        result = getattr(import_module(module), function)(group, *arguments)
    except LaneError as error:
        result = [type(error).__name__, str(error)]
    (Path(folder) / f"{membership['rank']}.json").write_text(json.dumps(result))
    os._exit(0)  # threads of gloo may still run, and an interpreter that ends before them ends in an abort


if __name__ == "__main__":
    main()
