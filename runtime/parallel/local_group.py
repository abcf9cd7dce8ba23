"""The ranks of a lane, a group on this host: what each does, and how rank 0 starts the others."""

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
from runtime.parallel.group import HOST, Group, Membership, open_store
from runtime.parallel.group_channel import GroupChannel, refuse
from runtime.wire.channel import Channel
from runtime.worker.server import LaneServer

_INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
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
        cores: of all ranks together.
        num_threads: of each rank.
    """
    # gloo would listen where other hosts can reach it; the interface is `lo` on Linux, `lo0` on macOS
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault(_INTERFACE_VARIABLE, loopback)
    membership = Membership(rank=0, world_size=num_ranks)
    listener = socket.create_server((HOST, 0))
    port: int = listener.getsockname()[1]
    # a listener that the store opens would be reached from other hosts
    store = open_store(port, membership.join_deadline_s, listener=listener.detach())
    options = ["--device", device, "--threads", str(num_threads), "--store", str(port), "--cores", *map(str, cores)]
    with _followers(num_ranks, options) as processes:
        serve_rank(membership, store, parent, device=Device.of_lane(device), lost=lambda: _lost(processes))


def follow(rank: int, num_ranks: int, *, device: str, port: int) -> None:
    """Be another rank of a group on this host, whose rank 0 holds the store at a port, until the group ends."""
    membership = Membership(rank=rank, world_size=num_ranks)
    store = open_store(port, membership.join_deadline_s)
    serve_rank(membership, store, device=Device.of_lane(device).of_rank(rank))


@contextmanager
def _followers(num_ranks: int, options: Sequence[str]) -> Iterator[Processes]:
    """The other ranks' processes; all end on leaving."""
    command = [sys.executable, "-P", "-m", "runtime.worker.process", "--ranks", str(num_ranks), *options]
    processes = {
        rank: subprocess.Popen([*command, "--rank", str(rank)], stdin=subprocess.DEVNULL)
        for rank in range(1, num_ranks)
    }
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
