"""The process of one rank of a group: started by rank 0 on its own host, or on several hosts by torchrun.

::

    torchrun --nnodes 2 --nproc-per-node 1 ... -m runtime.parallel.rank_process --threads 8 --parent ~/private/lane.sock

Which rank it is stands in the environment, as torchrun sets it. Rank 0 connects to its parent, a lane that waits at
the Unix socket (`LaneSpec(name="cluster", socket=Path.home() / "private/lane.sock")`) in a folder that nobody but its
user can enter; the others take no notice of it. With `--device cuda:0`, and a lane whose name begins so, each rank has
a GPU of its host, by its local rank.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Final

from decoding.errors import LaneError, MirrorsdError
from runtime.backends.lane_device import EAGER, Device
from runtime.worker.pinning import pin

_POLL_S: Final = 0.1


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve as the rank that the environment names, until the group ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--device", default=EAGER)
    parser.add_argument("--cores", type=int, nargs="*", default=[])
    parser.add_argument("--parent")
    parser.add_argument("--join-deadline", type=float, default=120.0)
    parser.add_argument("--deadline", type=float, default=60.0)
    options = parser.parse_args(arguments)
    pin(options.cores, options.threads)
    try:
        _serve(options, os.environ)
    except MirrorsdError as error:
        sys.exit(f"rank {os.environ.get('RANK')}: {error}")


def _serve(options: argparse.Namespace, environment: Mapping[str, str]) -> None:
    """Load torch, meet the others where the environment says, and serve."""
    import torch

    from runtime.parallel.group import Membership, open_store
    from runtime.parallel.local_group import serve_rank
    from runtime.wire.channel import Channel

    rank, world_size, port = (_number(environment, name) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    membership = Membership(
        rank=rank, world_size=world_size, join_deadline_s=options.join_deadline, deadline_s=options.deadline
    )
    parent = Channel(_connected(options.parent, options.join_deadline)) if rank == 0 else None
    torch.set_num_threads(options.threads)
    # torchrun holds a store itself
    is_master = rank == 0 and environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = open_store(
        (environment.get("MASTER_ADDR", "127.0.0.1"), port),
        membership.join_deadline_s,
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        is_master=is_master,
    )
    local_rank = environment.get("LOCAL_RANK", str(rank))
    serve_rank(membership, store, parent, device=Device.of_lane(options.device).of_rank(int(local_rank)))


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name)
    if value is None or not value.isdecimal():
        raise LaneError(f"{name} is {value!r}: a rank needs the environment that torchrun sets")
    return int(value)


def _connected(path: str | None, deadline_s: float) -> socket.socket:
    """Rank 0's connection to its parent, which may start later."""
    if path is None:
        raise LaneError("rank 0 needs --parent, the socket where its lane waits")
    stop_s = time.monotonic() + deadline_s
    while True:
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(path)
        except OSError as error:
            end.close()
            if time.monotonic() > stop_s:
                raise LaneError(f"no lane has waited at {path} for {deadline_s:g} s ({error})") from error
            time.sleep(_POLL_S)
        else:
            return end


if __name__ == "__main__":
    main()
