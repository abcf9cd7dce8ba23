"""A group on this host: the lane's process is rank 0 and starts the others, over the loopback interface alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from runtime.parallel.membership import Membership, open_store
from runtime.parallel.rank import serve_rank
from runtime.wire.channel import Channel
from runtime.worker.process import cores_of

_HOST: Final = "127.0.0.1"
_INTERFACE_VARIABLE: Final = "GLOO_SOCKET_IFNAME"
_ATTEMPT: Final = "0"
_EXIT_TIMEOUT_S: Final = 5.0


def lead(parent: Channel, num_ranks: int, *, cores: Sequence[int], num_threads: int) -> None:
    """Be rank 0 of a group on this host until the parent is gone; `Followers` says what the arguments are."""
    # gloo would listen where other hosts can reach it
    os.environ.setdefault(_INTERFACE_VARIABLE, _loopback_interface())
    membership = Membership(rank=0, world_size=num_ranks)
    with Followers(membership, cores=cores, num_threads=num_threads) as followers:
        serve_rank(membership, followers.store, parent, lost=followers.lost)


def _loopback_interface() -> str:
    """`lo` on Linux, `lo0` on macOS."""
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


class Followers:
    """The other ranks' processes, with the environment that torchrun would give them; a context manager.

    On leaving it every one of them is ended.
    """

    def __init__(self, membership: Membership, *, cores: Sequence[int], num_threads: int) -> None:
        """Start them.

        Args:
            membership: of rank 0.
            cores: of all ranks together, dealt out as evenly as it goes; of fewer cores than ranks each has all.
            num_threads: of each.
        """
        listener = socket.create_server((_HOST, 0))
        host, port = listener.getsockname()
        # a listener that the store opens would be reached from other hosts
        self.store = open_store(
            (host, port),
            membership.join_deadline_s,
            attempt=_ATTEMPT,
            is_master=True,
            master_listen_fd=listener.detach(),
        )
        common = {
            "WORLD_SIZE": str(membership.world_size),
            "LOCAL_WORLD_SIZE": str(membership.world_size),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": str(False),
            "TORCHELASTIC_RESTART_COUNT": _ATTEMPT,
        }
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for rank in range(1, membership.world_size):
            own = common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            command = [sys.executable, "-P", "-m", "runtime.parallel.rank_process", "--threads", str(num_threads)]
            command += ["--join-deadline", str(membership.join_deadline_s), "--deadline", str(membership.deadline_s)]
            command += ["--cores", *map(str, cores_of(cores, rank, membership.world_size))]
            self._processes[rank] = subprocess.Popen(command, env=os.environ | own, stdin=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_EXIT_TIMEOUT_S)
            process.kill()
            process.wait()

    def lost(self) -> str:
        """Which rank's process has ended, if one has."""
        for rank, process in self._processes.items():
            if process.poll() is not None:
                return f"the process of rank {rank} has ended (exit code {process.returncode})"
        return ""
