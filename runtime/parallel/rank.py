"""What one rank of a group does: join, and serve a lane's operations together with the others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.distributed.distributed_c10d import Store

from decoding.errors import LaneError
from runtime.backends.devices import EAGER
from runtime.memory.collection import leave_imports_alone
from runtime.parallel.group import Group
from runtime.parallel.group_channel import GroupChannel, refuse
from runtime.parallel.membership import Membership
from runtime.wire.channel import Channel
from runtime.worker.server import LaneServer


def serve_rank(
    membership: Membership, store: Store, parent: Channel | None = None, *, lost: Callable[[], str] = str
) -> None:
    """Serve until the parent of rank 0 is gone; rank 0 alone has one.

    Raises:
        LaneError: this rank could not join, or the group was lost. Rank 0 tells its parent instead.
    """
    # what is timed on random text is the same on all ranks
    torch.manual_seed(0)
    try:
        group = Group(membership, store, lost=lost)
    except LaneError as error:
        if parent is None:
            raise
        refuse(parent, parent.receive(), error)
        return
    server = LaneServer(GroupChannel(group, parent), group)
    server.make_ready(EAGER)
    leave_imports_alone()
    server.serve()
    group.leave()
