"""Which rank of a group a process is, and how the ranks find each other in a store."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not exported by name
from torch.distributed.distributed_c10d import PrefixStore, Store

from decoding.errors import LaneDiedError, LaneError, LaneTimeoutError

_POLL_S: Final = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """Which rank of how many a process is, and how long it waits for the others.

    Attributes:
        rank: from 0.
        world_size: number of ranks.
        join_deadline_s: for all of them to be there.
        deadline_s: for each exchange of data.
    """

    rank: int
    world_size: int
    join_deadline_s: float = 120.0
    deadline_s: float = 60.0

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise LaneError(f"rank {self.rank} is not one of a group of {self.world_size}")


def open_store(address: tuple[str, int], deadline_s: float, *, attempt: str, **host: Any) -> Store:
    """Where the ranks of a group leave word.

    Args:
        address: host and port of the process that holds it.
        deadline_s: to reach it.
        attempt: torchrun has one store for a group and for those it starts in its place.
        host: what `TCPStore` takes to make this process the one that holds it.

    Raises:
        LaneTimeoutError: it could not be reached.
    """
    timeout = timedelta(seconds=deadline_s)
    try:
        store = TCPStore(*address, timeout=timeout, wait_for_workers=False, **host)
    except RuntimeError as error:
        where = f"{address[0]}:{address[1]}"
        raise LaneTimeoutError(f"rank 0 was not reached at {where} within {deadline_s:g} s") from error
    return PrefixStore(f"mirrorsd/{attempt}", store)


def meet(store: Store, membership: Membership, lost: Callable[[], str]) -> None:
    """Wait until every rank is there.

    Args:
        store: where every rank leaves word.
        membership: which rank this is.
        lost: says of a rank's process that it has ended, if it has.

    Raises:
        LaneTimeoutError: a rank has not joined in time.
        LaneDiedError: a rank's process has ended.
        LaneError: a rank was started for a group of another size.
    """
    rank, world_size = membership.rank, membership.world_size
    missing, deadline = set(range(world_size)), time.monotonic() + membership.join_deadline_s
    try:
        store.set(_key(rank), str(world_size))
        while missing := {other for other in missing if not _is_there(store, other, membership)}:
            if text := lost():
                raise LaneDiedError(f"a group of {world_size} ranks could not form: {text}")
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(missing)))
                raise LaneTimeoutError(
                    f"rank {names} of a group of {world_size} has not joined within {membership.join_deadline_s:g} s"
                )
            time.sleep(_POLL_S)
    except RuntimeError as error:
        raise LaneDiedError(f"a group of {world_size} ranks could not form: rank 0 is gone") from error


def _is_there(store: Store, other: int, membership: Membership) -> bool:
    if not store.check([_key(other)]):
        return False
    size = store.get(_key(other)).decode()
    if size != str(membership.world_size):
        raise LaneError(
            f"rank {other} was started for a group of {size}, rank {membership.rank} for one of {membership.world_size}"
        )
    return True


def _key(rank: int) -> str:
    return f"joined/{rank}"
