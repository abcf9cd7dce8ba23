"""The ranks of one model: how they meet, what they sum and gather, and what the first one tells the others.

Every rank runs the same operations on the same messages. Data crosses by gloo between CPUs and by NCCL between GPUs and
has a deadline; what rank 0 tells crosses by gloo and may take as long as a lane is idle. Who waits for a rank that ends
or hangs gets a `LaneDiedError`; NCCL ends the whole process at the deadline instead, which its lane sees.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not exported by name
from torch.distributed.distributed_c10d import Store

from decoding.errors import LaneDiedError, LaneError, LaneTimeoutError

HOST: Final = "127.0.0.1"
JOIN_DEADLINE_S: Final = 120.0
"""For all ranks to be there."""
_FIRST_BYTES: Final = 2048
"""What every message to the other ranks is filled up to: most need no second broadcast."""
_LENGTH_BYTES: Final = 8
_FAILURE_BYTES: Final = 1024
_UNLIMITED: Final = timedelta(days=365)
_POLL_S: Final = 0.05

R = TypeVar("R")


def open_store(port: int, *, listener: int | None = None) -> Store:
    """Open the store on this host where ranks leave word; with a `listener` (file descriptor) this process holds it.

    Raises `LaneTimeoutError` if it cannot be reached.
    """
    try:
        return TCPStore(
            HOST,
            port,
            timeout=timedelta(seconds=JOIN_DEADLINE_S),
            wait_for_workers=False,
            is_master=listener is not None,
            master_listen_fd=listener,
        )
    except RuntimeError as error:
        raise LaneTimeoutError(f"rank 0 was not reached at {HOST}:{port} within {JOIN_DEADLINE_S:g} s") from error


class Group:
    """One rank's view of its group; a group of one exchanges nothing."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        store: Store | None = None,
        *,
        device: str = "cpu",
        lost: Callable[[], str] = str,
        join_deadline_s: float = JOIN_DEADLINE_S,
        deadline_s: float = 60.0,
    ) -> None:
        """Join the ranks that meet at `store`; None for a group of one.

        Tensors are exchanged on `device`: `cpu`, or this rank's GPU, such as `cuda:1`. `lost` says of a rank's process
        that it has ended, if that is known. Raises `LaneTimeoutError` for a rank that is late, `LaneDiedError` for one
        that has ended.
        """
        self.rank, self.world_size, self.device = rank, world_size, device
        self._deadline_s, self._store, self._lost = deadline_s, store, lost
        if store is None:
            assert world_size == 1, "a group of several without a store"
            return
        self._meet(store, join_deadline_s)
        on_gpu = torch.device(device) if device.startswith("cuda:") else None
        if on_gpu is not None:
            torch.cuda.set_device(on_gpu)
        with self._together():
            dist.init_process_group(
                "gloo" if on_gpu is None else "nccl",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=deadline_s),
                device_id=on_gpu,
            )
            self._control = dist.new_group(backend="gloo", timeout=_UNLIMITED)

    @classmethod
    def alone(cls) -> Group:
        """A group of one."""
        return cls(0, 1)

    def sum(self, x: Tensor) -> Tensor:
        """Add up the ranks' tensors of one shape in their order, on every rank; `x` may be overwritten.

        An all-reduce of more than two sums by an element's place, and so by the rows computed at once.
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
        """Return the ranks' tensors of one shape, on every rank."""
        if self.world_size == 1:
            return [x]
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        with self._together():
            dist.all_gather(parts, x)
        return parts

    def mean(self, values: list[float]) -> list[float]:
        """Return the mean over the ranks of each of so many numbers, which all of them have."""
        if not values:
            return []
        total = self.sum(torch.tensor(values, dtype=torch.float64, device=self.device))
        return [value / self.world_size for value in total.tolist()]

    def tell(self, data: bytes = b"") -> bytes:
        """Return on every rank what rank 0 says; the others give nothing, and wait for as long as it takes."""
        if self.world_size == 1:
            return data
        data = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        told = self._broadcast(data[:_FIRST_BYTES], _FIRST_BYTES)
        num_bytes = _LENGTH_BYTES + int.from_bytes(told[:_LENGTH_BYTES], "little")
        if num_bytes > _FIRST_BYTES:
            told += self._broadcast(data[_FIRST_BYTES:], num_bytes - _FIRST_BYTES)
        return told[_LENGTH_BYTES:num_bytes]

    def all_do(self, work: Callable[[], R]) -> R:
        """Do something on every rank, however long it takes; raise `LaneError`, with the reason, if another fails."""
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
            self._store.set(f"failure/{self.rank}", text)

    def leave(self) -> None:
        """Close the connections: ranks that wait for this one fail at once."""
        if self._store is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _exchange(self, text: str) -> list[str]:
        data = text.encode()[:_FAILURE_BYTES]
        texts = [torch.empty(_FAILURE_BYTES, dtype=torch.uint8) for _ in range(self.world_size)]
        with self._together():
            dist.all_gather(texts, _as_tensor(data.ljust(_FAILURE_BYTES, b"\0")), group=self._control)
        return [found.numpy().tobytes().rstrip(b"\0").decode(errors="replace") for found in texts]

    def _broadcast(self, data: bytes, num_bytes: int) -> bytes:
        tensor = _as_tensor(data.ljust(num_bytes, b"\0"))
        with self._together():
            dist.broadcast(tensor, 0, group=self._control)
        return tensor.numpy().tobytes()

    def _meet(self, store: Store, deadline_s: float) -> None:
        missing, end_s = set(range(self.world_size)), time.monotonic() + deadline_s
        try:
            store.set(f"joined/{self.rank}", "")
            while missing := {rank for rank in missing if not store.check([f"joined/{rank}"])}:
                if text := self._lost():
                    raise LaneDiedError(f"a group of {self.world_size} ranks could not form: {text}")
                if time.monotonic() > end_s:
                    names = ", ".join(map(str, sorted(missing)))
                    raise LaneTimeoutError(
                        f"rank {names} of a group of {self.world_size} has not joined within {deadline_s:g} s"
                    )
                time.sleep(_POLL_S)
        except RuntimeError as error:
            raise LaneDiedError(f"a group of {self.world_size} ranks could not form: rank 0 is gone") from error

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise LaneDiedError(f"a group of {self.world_size} ranks is lost: {self._loss(str(error))}") from error

    def _loss(self, text: str) -> str:
        for rank in range(self.world_size):
            if rank != self.rank and (said := self._reported(rank)):
                return f"rank {rank} failed: {said}"
        if lost := self._lost():
            return lost
        if "timed out" in text.lower():
            return f"a rank has not answered for {self._deadline_s:g} s"
        return f"a rank ended ({text.splitlines()[0]})"

    def _reported(self, rank: int) -> str:
        assert self._store is not None, "a failure in a group of one"
        key = f"failure/{rank}"
        try:
            return self._store.get(key).decode() if self._store.check([key]) else ""
        except RuntimeError:
            return ""


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
