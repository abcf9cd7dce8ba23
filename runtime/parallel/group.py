"""The group of ranks that share a model: how they connect, exchange tensors, and get messages from rank 0.

Every rank runs the same operations on the same messages. Tensors are exchanged by gloo between CPUs and by NCCL between
GPUs, with a deadline; messages from rank 0 are sent by gloo without one, as a lane may be idle for long. Waiting for a
rank that ends or hangs raises `LaneDiedError`; NCCL ends the whole process at the deadline instead, which its lane
sees.
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
"""Seconds within which all ranks must have joined."""
_FIRST_BYTES: Final = 2048
"""Size to which each message is padded, so that most messages need one broadcast only."""
_LENGTH_BYTES: Final = 8
_FAILURE_BYTES: Final = 1024
"""Size of the text of a failure, which ranks exchange."""
_UNLIMITED: Final = timedelta(days=365)
_POLL_S: Final = 0.05

R = TypeVar("R")


def open_store(port: int, *, listener: int | None = None) -> Store:
    """Connect to the ranks' store, or hold it here if given a `listener` socket.

    Raises `LaneTimeoutError` if the store is not reached.
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
    """A rank's connections to its group; a group of one exchanges nothing."""

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
        """Join the ranks that connect through `store`; None for a group of one.

        Tensors are exchanged on `device`: `cpu`, or this rank's GPU, such as `cuda:1`. `lost` returns which rank's
        process has ended, or an empty text. Raises `LaneTimeoutError` if a rank is late, `LaneDiedError` if one has
        ended, `LaneError` if this rank cannot use its GPU.
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
        """Add up the ranks' tensors, all of one shape, in the order of ranks, on every rank; `x` may be overwritten.

        With more than two ranks an all-reduce would not be batch-invariant: its order of summation depends on an
        element's position in the tensor.
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
        """Return the tensors of all ranks, all of one shape, on every rank."""
        if self.world_size == 1:
            return [x]
        x = x.contiguous()
        parts = [torch.empty_like(x) for _ in range(self.world_size)]
        with self._together():
            dist.all_gather(parts, x)
        return parts

    def mean(self, values: list[float]) -> list[float]:
        """Return the mean over all ranks of each of the values; all ranks have equally many."""
        if not values:
            return []
        total = self.sum(torch.tensor(values, dtype=torch.float64, device=self.device))
        return [value / self.world_size for value in total.tolist()]

    def tell(self, data: bytes = b"") -> bytes:
        """Send `data` from rank 0 and return it on every rank; the other ranks pass nothing and wait without limit."""
        data = len(data).to_bytes(_LENGTH_BYTES, "little") + data
        message = self._broadcast(data[:_FIRST_BYTES], _FIRST_BYTES)
        num_bytes = _LENGTH_BYTES + int.from_bytes(message[:_LENGTH_BYTES], "little")
        if num_bytes > _FIRST_BYTES:
            message += self._broadcast(data[_FIRST_BYTES:], num_bytes - _FIRST_BYTES)
        return message[_LENGTH_BYTES:num_bytes]

    def all_do(self, work: Callable[[], R]) -> R:
        """Run `work` on every rank, without a time limit; raise `LaneError` with the reason if another rank fails."""
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
        """Store the text of a failure for ranks that wait for this one; an empty text removes it."""
        assert self._store is not None, "a failure in a group of one"
        with suppress(RuntimeError):  # the store ends with rank 0
            self._store.set(f"failure/{self.rank}", text)

    def leave(self) -> None:
        """Close the connections, so that ranks that wait for this one fail at once."""
        if dist.is_initialized():
            dist.destroy_process_group()

    def _new_control(self) -> ProcessGroup:
        """Return a process group whose exchanges have no deadline.

        A thread connects it, since torch would wait without limit for a rank that is lost meanwhile.
        """
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
        """Select this rank's GPU; if that fails, report it before joining, so that other ranks do not wait."""
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
        """Turn the failure of an exchange into `LaneDiedError`, with the reason if known."""
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
