"""The ranks of a lane, which form a group on this host; rank 0 starts the others.

Rank 0 forwards all messages of its parent, so that the same lane server (`runtime.worker.server`) runs on every rank.
With each message it sends a digest of its last reply; a rank that had another result ends.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeVar

import torch
from torch.distributed.distributed_c10d import Store

from decoding.errors import LaneDiedError, LaneError
from runtime.backends.lane_device import Device
from runtime.parallel.group import HOST, Group, open_store
from runtime.wire.channel import Block, Channel, Message, from_bytes, to_bytes
from runtime.worker.server import LaneServer

_TIMED: Final = ("MeasureRole.measure", "MeasureRole.keep_busy")
"""Operations whose reply is times, which differ between ranks; the lane replies their means."""
_SPANS: Final = "spans"
"""The field of a draft's replies with the times of its steps."""
_NOTHING: Final = b"\0" * 8
"""The digest before any reply, as long as other digests."""
_YES: Final = b"y"
_INTERFACE_VARIABLES: Final = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
_EXIT_TIMEOUT_S: Final = 2.0
"""Seconds that other ranks have to end, less than the parent gives rank 0 (`runtime.lanes.lane`)."""

R = TypeVar("R")
Processes = Mapping[int, subprocess.Popen[bytes]]
"""Processes by rank."""


class GroupChannel:
    """The channel of a lane's server on one rank of a group; only rank 0 has a parent.

    If the group is lost, rank 0 reports it to its parent and ends, so that the lane can be started again.
    """

    def __init__(self, group: Group, parent: Channel | None = None) -> None:
        assert (parent is not None) == (group.rank == 0), "rank 0 and no other has a parent"
        self._group, self._parent = group, parent
        self._operation, self._digest, self._is_lost = "", _NOTHING, False
        self._failure: Exception | None = None

    def receive(self) -> Message:
        """Return the next message of rank 0's parent, on every rank.

        Raises `EOFError` if the parent is gone. If a rank is lost, raises `EOFError` on rank 0 and `LaneDiedError` on
        others. Raises `LaneError` if results differ.
        """
        message = from_bytes(self._hear()) if self._parent is None else self._passed_on(self._parent)
        self._operation = message.fields["op"]
        return message

    def has_message(self) -> bool:
        """Return whether `receive` would not have to wait; errors as there."""
        if self._parent is None:
            return self._hear() == _YES
        found = self._or_end(self._parent.has_message)
        self._tell(self._parent, _YES if found else b"n")
        return found

    def send(self, fields: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        """Send rank 0's reply to the parent; times are the means over all ranks."""
        if "reply" in fields and self._operation in _TIMED:
            try:
                fields = {**fields, "reply": self._group.mean(fields["reply"])}
            except LaneDiedError as error:
                fields = {"id": fields["id"], **_as_fields(error)}
        self._digest, self._failure = _digest(fields), None
        if self._parent is not None:
            self._is_lost = fields.get("error") == LaneDiedError.__name__
            self._parent.send(fields, blocks)
        else:
            self._group.report(fields.get("text", ""))

    def fail(self, error: Exception) -> None:
        """Take an error, which the next answer will report, as this rank's result.

        So a rank that alone fails, in a step of branches or a request without an answer, ends at the next message.
        """
        self._failure, self._digest = error, _digest(_as_fields(error))
        if self._parent is None:
            self._group.report(str(error))

    def _passed_on(self, parent: Channel) -> Message:
        if self._is_lost:
            raise EOFError
        message = self._or_end(parent.receive)
        self._tell(parent, to_bytes(message.fields, message.blocks), message)
        return message

    def _tell(self, parent: Channel, data: bytes, message: Message | None = None) -> None:
        """Send data to the other ranks; if they are lost, report it to the parent, as the answer to any `message`."""
        try:
            self._group.tell(self._digest + data)
        except LaneDiedError as error:
            refuse(parent, self._failure or error, message)
            raise EOFError from error

    def _or_end(self, ask: Callable[[], R]) -> R:
        """Call a method of the parent's channel; if the parent is gone, tell the other ranks."""
        try:
            return ask()
        except EOFError:
            with suppress(LaneDiedError):
                self._group.tell()
            raise

    def _hear(self) -> bytes:
        """Return the data that rank 0 sends, after comparing its digest with this rank's."""
        received = self._group.tell()
        if not received:
            raise EOFError
        digest, data = received[: len(_NOTHING)], received[len(_NOTHING) :]
        if digest != self._digest:
            if self._failure is not None:
                raise LaneError(f"it failed, and rank 0 did not in the same way: {self._failure}")
            raise LaneError(f"it came to another result of {self._operation} than rank 0")
        return data


def refuse(parent: Channel, error: Exception, message: Message | None = None) -> None:
    """Answer a message with an error, or the next message that has an answer; raise `EOFError` if none comes."""
    while message is None or message.fields["id"] is None:
        message = parent.receive()
    parent.send({"id": message.fields["id"], **_as_fields(error)})


def _as_fields(error: Exception) -> dict[str, str]:
    return {"error": type(error).__name__, "text": str(error)}


def _digest(fields: Mapping[str, Any]) -> bytes:
    """Return a digest of a reply without times: of lists, which are times or steps, and of spans."""
    reply = fields.get("error", fields.get("reply"))
    if isinstance(reply, Mapping):
        reply = {name: value for name, value in reply.items() if name != _SPANS}
    elif isinstance(reply, list):
        reply = None
    return hashlib.blake2b(json.dumps(reply, sort_keys=True).encode(), digest_size=len(_NOTHING)).digest()


def serve_rank(
    rank: int,
    num_ranks: int,
    store: Store,
    parent: Channel | None = None,
    *,
    device: Device,
    lost: Callable[[], str] = str,
) -> None:
    """Join the group and serve a lane's operations until rank 0's parent is gone; only rank 0 has a `parent`.

    Raises `LaneError` if this rank cannot join or the group is lost; rank 0 reports it to its parent instead.
    """
    torch.manual_seed(0)  # heads are timed on random states, the same on all ranks
    try:
        group = Group(rank, num_ranks, store, device=device.own_name, lost=lost)
    except LaneError as error:
        if parent is None:
            raise
        with suppress(EOFError):
            refuse(parent, error)
        return
    channel = GroupChannel(group, parent)
    LaneServer(channel, device, group=group, on_failure=channel.fail).serve_process()
    group.leave()


def lead(parent: Channel, num_ranks: int, *, device: str, cores: Sequence[int], num_threads: int) -> None:
    """Run rank 0 of a group on this host until the parent is gone; ranks connect over the loopback interface only.

    Other ranks use the GPUs after `device`; `cores` are those of all ranks, `num_threads` is for each rank.
    """
    # by default, gloo and NCCL listen where other hosts can reach them; the interface is `lo` on Linux, `lo0` on macOS
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    for variable in _INTERFACE_VARIABLES:
        os.environ.setdefault(variable, loopback)
    listener = socket.create_server((HOST, 0))
    port: int = listener.getsockname()[1]
    store = open_store(port, listener=listener.detach())  # a socket opened by the store would be open to other hosts
    options = ["--device", device, "--threads", str(num_threads), "--store", str(port), "--cores", *map(str, cores)]
    with _followers(num_ranks, options) as processes:
        serve_rank(0, num_ranks, store, parent, device=Device.of_lane(device), lost=lambda: _lost(processes))


def follow(rank: int, num_ranks: int, *, device: str, port: int) -> None:
    """Run a further rank of a group on this host until the group ends; rank 0 holds the store at `port`."""
    serve_rank(rank, num_ranks, open_store(port), device=Device.of_lane(device).of_rank(rank))


@contextmanager
def _followers(num_ranks: int, options: Sequence[str]) -> Iterator[Processes]:
    command = [sys.executable, "-P", "-m", "runtime.worker.process", "--ranks", str(num_ranks), *options]
    command += ["--leader", str(os.getpid())]
    processes = {
        rank: subprocess.Popen([*command, "--rank", str(rank)], stdin=subprocess.DEVNULL)
        for rank in range(1, num_ranks)
    }
    try:
        yield processes
    finally:
        end_s = time.monotonic() + _EXIT_TIMEOUT_S
        for process in processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, end_s - time.monotonic()))
            process.kill()
            process.wait()


def _lost(processes: Processes) -> str:
    for rank, process in processes.items():
        if process.poll() is not None:
            return f"the process of rank {rank} has ended (exit code {process.returncode})"
    return ""
