"""The ranks of one model: how they meet, what they sum and gather, and what the first one tells the others.

Every rank runs the same operations on the same messages. Data crosses by gloo between CPUs and by NCCL between GPUs and
has a deadline; what rank 0 tells crosses by gloo and may take as long as a lane is idle. Who waits for a rank that ends
or hangs gets a `LaneDiedError`; NCCL ends the whole process at the deadline instead, which its lane sees.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from threading import Thread
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # documented, but not exported by name
from torch.distributed.distributed_c10d import ProcessGroup, Store

from decoding.errors import LaneDiedError, LaneError, LaneTimeoutError

HOST: Final = "127.0.0.1"
JOIN_DEADLINE_S: Final = 120.0
"""Seconds until all ranks must be there."""
_FIRST_BYTES: Final = 2048
"""Size that each message to the other ranks is padded to: most need no second broadcast."""
_LENGTH_BYTES: Final = 8
_FAILURE_BYTES: Final = 1024
"""Size of the text of a failure that ranks exchange."""
_UNLIMITED: Final = timedelta(days=365)
_POLL_S: Final = 0.05

R = TypeVar("R")


def open_store(port: int, *, listener: int | None = None) -> Store:
    """Open the ranks' store, held here with its `listener`'s socket; raise `LaneTimeoutError` if it is not reached."""
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
    """A rank's view of its group; a group of one exchanges nothing."""

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

        Tensors are exchanged on `device`: `cpu`, or this rank's GPU, such as `cuda:1`. `lost` says which rank's process
        has ended, if that is known. Raises `LaneTimeoutError` for a rank that is late, `LaneDiedError` for one that has
        ended, `LaneError` for a GPU that this rank cannot use.
        """
        self.rank, self.world_size, self.device = rank, world_size, device
        self._deadline_s, self._store, self._lost = deadline_s, store, lost
        if store is None:
            return
        gpu = torch.device(device) if device.startswith("cuda:") else None
        if gpu is not None:
            self._compute_on(gpu)
        self._meet(store, join_deadline_s)
        with self._together():
            dist.init_process_group(
                "gloo" if gpu is None else "nccl",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=deadline_s),
                device_id=gpu,
            )
            self._control = self._new_control()

    @classmethod
    def alone(cls) -> "Group":
        """Return a group of one."""
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
        """Return the means over the ranks of numbers of which each rank has as many."""
        if not values:
            return []
        total = self.sum(torch.tensor(values, dtype=torch.float64, device=self.device))
        return [value / self.world_size for value in total.tolist()]

    def tell(self, data: bytes = b"") -> bytes:
        """Return on every rank what rank 0 says; the others give nothing, and wait for as long as it takes."""
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
        try:
            result = work()
        except Exception as error:
            self._exchange(f"{type(error).__name__}: {error}")
            raise
        for rank, text in enumerate(self._exchange("")):
            if text:
                raise LaneError(f"rank {rank} of {self.world_size} failed: {text}")
        return result

    def report(self, text: str) -> None:
        """Leave word of a failure, which ranks that wait for this one find; an empty text takes it back."""
        assert self._store is not None, "a failure in a group of one"
        with suppress(RuntimeError):  # the store is gone with rank 0, and who would read it too
            self._store.set(f"failure/{self.rank}", text)

    def leave(self) -> None:
        """Close the connections: ranks that wait for this one fail at once."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _new_control(self) -> ProcessGroup:
        """Connect without a deadline: torch would wait for a rank that is lost meanwhile as long, so a thread does."""
        formed: Future[ProcessGroup] = Future()

        def form() -> None:
            try:
                formed.set_result(dist.new_group(backend="gloo", timeout=_UNLIMITED))
            except RuntimeError as error:
                formed.set_exception(error)

        Thread(target=form, daemon=True).start()
        try:
            return formed.result(self._deadline_s)
        except TimeoutError as error:
            raise RuntimeError("timed out") from error

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

    def _compute_on(self, gpu: torch.device) -> None:
        """Choose this rank's GPU before it joins, so that a rank that cannot is not waited for."""
        try:
            torch.cuda.set_device(gpu)
        except RuntimeError as error:
            text = f"it cannot compute on {gpu}: {str(error).splitlines()[0]}"
            self.report(text)
            raise LaneError(f"rank {self.rank} of {self.world_size} failed: {text}") from error

    def _meet(self, store: Store, deadline_s: float) -> None:
        missing, end_s = set(range(self.world_size)), time.monotonic() + deadline_s
        try:
            store.set(f"joined/{self.rank}", "")
            while missing := {rank for rank in missing if not store.check([f"joined/{rank}"])}:
                if text := self._word() or self._lost():
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
        """Raise `LaneDiedError`, with what is known of it, where an exchange fails."""
        try:
            yield
        except RuntimeError as error:
            raise LaneDiedError(f"a group of {self.world_size} ranks is lost: {self._loss(str(error))}") from error

    def _loss(self, text: str) -> str:
        with suppress(RuntimeError):  # the store is gone with rank 0
            if word := self._word():
                return word
        if lost := self._lost():
            return lost
        if "timed out" in text.lower() or "timeout" in text.lower():
            return f"a rank has not answered for {self._deadline_s:g} s"
        return f"a rank ended ({text.splitlines()[0]})"

    def _word(self) -> str:
        assert self._store is not None, "a failure in a group of one"
        for rank in range(self.world_size):
            key = f"failure/{rank}"
            if rank != self.rank and self._store.check([key]) and (said := self._store.get(key).decode()):
                return f"rank {rank} failed: {said}"
        return ""


def _as_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
