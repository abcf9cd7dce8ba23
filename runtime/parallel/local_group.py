"""The ranks of a lane: what each does, and the group on this host, whose rank 0 starts the others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import torch
from torch.distributed.distributed_c10d import Store

from decoding.errors import LaneError
from runtime.backends.lane_device import Device
from runtime.parallel.group import Group, Membership, open_store
from runtime.parallel.group_channel import GroupChannel, refuse
from runtime.wire.channel import Channel
from runtime.worker.pinning import cores_of
from runtime.worker.server import LaneServer

_HOST: Final = "127.0.0.1"
_INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
_ATTEMPT: Final = "0"
_EXIT_TIMEOUT_S: Final = 5.0

Processes = Mapping[int, subprocess.Popen[bytes]]


def serve_rank(
    membership: Membership,
    store: Store,
    parent: Channel | None = None,
    *,
    device: Device,
    lost: Callable[[], str] = str,
) -> None:
    """Join the group and serve a lane's operations until the parent of rank 0 is gone; rank 0 alone has one.

    Args:
        membership: which rank this is.
        store: where the ranks meet.
        parent: rank 0's.
        device: this rank's own.
        lost: says of a rank's process that it has ended, if it has.

    Raises:
        LaneError: this rank could not join, or the group was lost. Rank 0 tells its parent instead.
    """
    # what is timed on random text is the same on all ranks
    torch.manual_seed(0)
    try:
        group = Group(membership, store, device=device.own_name, lost=lost)
    except LaneError as error:
        if parent is None:
            raise
        refuse(parent, parent.receive(), error)
        return
    LaneServer(GroupChannel(group, parent), group).serve_on(device.name)
    group.leave()


def lead(parent: Channel, num_ranks: int, *, device: str, cores: Sequence[int], num_threads: int) -> None:
    """Be rank 0 of a group on this host, over the loopback interface alone, until the parent is gone.

    Args:
        parent: the lane's driver.
        num_ranks: ranks, this one included.
        device: of rank 0; GPUs of the others follow it.
        cores: of all ranks together, dealt out as evenly as it goes; of fewer cores than ranks each has all.
        num_threads: of each rank.
    """
    # gloo would listen where other hosts can reach it; the interface is `lo` on Linux, `lo0` on macOS
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault(_INTERFACE_VARIABLE, loopback)
    membership = Membership(rank=0, world_size=num_ranks)
    listener = socket.create_server((_HOST, 0))
    address: tuple[str, int] = listener.getsockname()
    # a listener that the store opens would be reached from other hosts
    store = open_store(
        address, membership.join_deadline_s, attempt=_ATTEMPT, is_master=True, master_listen_fd=listener.detach()
    )
    options = ["--device", device, "--threads", str(num_threads)]
    with _followers(membership, address, options, cores) as processes:
        serve_rank(membership, store, parent, device=Device.of_lane(device), lost=lambda: _lost(processes))


@contextmanager
def _followers(
    membership: Membership, address: tuple[str, int], options: Sequence[str], cores: Sequence[int]
) -> Iterator[Processes]:
    """The other ranks' processes, with the environment that torchrun would give them; all end on leaving."""
    world_size = membership.world_size
    common = {
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": address[0],
        "MASTER_PORT": str(address[1]),
        "TORCHELASTIC_USE_AGENT_STORE": str(False),
        "TORCHELASTIC_RESTART_COUNT": _ATTEMPT,
    }
    command = [sys.executable, "-P", "-m", "runtime.parallel.rank_process", *options]
    command += ["--join-deadline", str(membership.join_deadline_s), "--deadline", str(membership.deadline_s), "--cores"]
    processes = {}
    for rank in range(1, world_size):
        environment = os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        own_cores = map(str, cores_of(cores, rank, world_size))
        processes[rank] = subprocess.Popen([*command, *own_cores], env=environment, stdin=subprocess.DEVNULL)
    try:
        yield processes
    finally:
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_TIMEOUT_S)
            process.kill()
            process.wait()


def _lost(processes: Processes) -> str:
    """Say which rank's process has ended, if one has."""
    for rank, process in processes.items():
        if process.poll() is not None:
            return f"the process of rank {rank} has ended (exit code {process.returncode})"
    return ""
