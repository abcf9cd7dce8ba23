"""The ranks of one model: what they sum and gather, and what the first one tells the others.

Every rank runs the same operations on the same messages. Data crosses by gloo between CPUs and by NCCL between GPUs,
and has a deadline; what rank 0 tells the others crosses by gloo and may take as long as a lane is idle. A rank that
ends closes its connections, so that those who wait for it fail at once; one that hangs fails them at the deadline.
All of this becomes `LaneDiedError`, which names the rank where that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from decoding.errors import LaneDiedError, LaneError
from runtime.parallel.membership import Membership, meet

_FIRST_BYTES: Final = 2048
"""What every message to the other ranks is filled up to: most need no second broadcast."""
_LENGTH_BYTES: Final = 8
_FAILURE_BYTES: Final = 1024
_UNLIMITED: Final = timedelta(days=365)

R = TypeVar("R")


class Group:
    """One rank's view of its group; a group of one exchanges nothing."""

    def __init__(
        self,
        membership: Membership,
        store: Store | None = None,
        *,
        device: str = "cpu",
        lost: Callable[[], str] = str,
    ) -> None:
        """Join.

        Args:
            membership: which rank this is.
            store: where the ranks meet; None for a group of one.
            device: whose tensors are exchanged, `cpu` or `cuda:0`.
            lost: says of a rank's process that it has ended, if it has; nothing where that is not known.

        Raises:
            LaneError: see `meet`.
        """
        self.rank, self.world_size, self.device = membership.rank, membership.world_size, device
        self._deadline_s, self._store, self._lost = membership.deadline_s, store, lost
        if store is None:
            assert membership.world_size == 1, "a group of several without a store"
            return
        meet(store, membership, lost)
        with self._together():
            dist.init_process_group(
                "gloo" if device == "cpu" else "nccl",
                store=store,
                rank=membership.rank,
                world_size=membership.world_size,
                timeout=timedelta(seconds=membership.deadline_s),
            )
            self._control = dist.new_group(backend="gloo", timeout=_UNLIMITED)

    @classmethod
    def alone(cls) -> Group:
        """A group of one."""
        return cls(Membership(rank=0, world_size=1))

    def sum(self, x: Tensor) -> Tensor:
        """The ranks' tensors of one shape added up, on every rank; `x` may be overwritten.

        The order is that of the ranks. An all-reduce of more than two settles it by an element's place in the
        tensor, and so by the rows computed at once: then a row's bits would depend on its company.
        """
        if self.world_size == 2:
            x = x.contiguous()
            with self._together():
                dist.all_reduce(x)
            return x
        total, *parts = self.gather(x)
        for part in parts:
            total = total + part
        return total

    def gather(self, x: Tensor) -> list[Tensor]:
        """The ranks' tensors of one shape, on every rank."""
        if self.world_size == 1:
            return [x]
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        with self._together():
            dist.all_gather(parts, x)
        return parts

    def mean(self, values: list[float]) -> list[float]:
        """The mean over the ranks of each of so many numbers, which all of them have."""
        if not values:
            return []
        total = self.sum(torch.tensor(values, dtype=torch.float64, device=self.device))
        return [value / self.world_size for value in total.tolist()]

    def tell(self, data: bytes = b"") -> bytes:
        """What rank 0 says, on every rank; the others give nothing, and wait for as long as it takes."""
        if self.world_size == 1:
            return data
        first = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        if self.rank == 0:
            data = len(data).to_bytes(_LENGTH_BYTES, "little") + data
            first[: len(data)] = _as_tensor(data[:_FIRST_BYTES])
        self._broadcast(first)
        head = first.numpy().tobytes()
        num_bytes = _LENGTH_BYTES + int.from_bytes(head[:_LENGTH_BYTES], "little")
        if num_bytes <= _FIRST_BYTES:
            return head[_LENGTH_BYTES:num_bytes]
        more = torch.zeros(num_bytes - _FIRST_BYTES, dtype=torch.uint8)
        if self.rank == 0:
            more = _as_tensor(data[_FIRST_BYTES:])
        self._broadcast(more)
        return head[_LENGTH_BYTES:] + more.numpy().tobytes()

    def all_do(self, work: Callable[[], R]) -> R:
        """Something that every rank does on its own, for as long as it takes; if one fails, all do.

        Raises:
            LaneError: it failed on another rank; the message says how.
        """
        if self.world_size == 1:
            return work()
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001  raised below, once the others know
            failure = error
        texts = self._exchange("" if failure is None else f"{type(failure).__name__}: {failure}")
        if failure is not None:
            raise failure
        failed = [rank for rank, text in enumerate(texts) if text]
        if failed:
            raise LaneError(f"rank {failed[0]} of {self.world_size} failed: {texts[failed[0]]}")
        return result

    def report(self, text: str) -> None:
        """Leave word of a failure, which whoever waits for this rank finds; an empty text takes it back."""
        if self._store is not None:
            self._store.set(_failure_key(self.rank), text)

    def leave(self) -> None:
        """Close the connections: ranks that wait for this one fail at once."""
        if self._store is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _exchange(self, text: str) -> list[str]:
        """The ranks' texts, cut where they are long."""
        data = text.encode()[:_FAILURE_BYTES]
        texts = [torch.empty(_FAILURE_BYTES, dtype=torch.uint8) for _ in range(self.world_size)]
        with self._together():
            dist.all_gather(texts, _as_tensor(data.ljust(_FAILURE_BYTES, b"\0")), group=self._control)
        return [found.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for found in texts]

    def _broadcast(self, tensor: Tensor) -> None:
        with self._together():
            dist.broadcast(tensor, 0, group=self._control)

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LaneDiedError(f"a group of {self.world_size} ranks is lost: {self._loss(str(error))}") from error

    def _loss(self, text: str) -> str:
        """Who was lost, and how, as far as it is known."""
        for rank in range(self.world_size):
            if rank != self.rank and (said := self._reported(rank)):
                return f"rank {rank} failed: {said}"
        if lost := self._lost():
            return lost
        if "timed out" in text.lower():
            return f"a rank has not answered for {self._deadline_s:g} s"
        return f"a rank ended ({text.splitlines()[0]})"

    def _reported(self, rank: int) -> str:
        """What a rank left word of; nothing where the store is gone with rank 0."""
        assert self._store is not None, "a failure in a group of one"
        try:
            key = _failure_key(rank)
            return self._store.get(key).decode() if self._store.check([key]) else ""
        except RuntimeError:
            return ""


def _failure_key(rank: int) -> str:
    return f"failure/{rank}"


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
