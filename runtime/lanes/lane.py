"""Starts a lane's process and exchanges messages with it.

Sending to a lost lane raises nothing; `Reply.result` does.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar

from decoding import errors
from decoding.errors import ConfigError, LaneDiedError, LaneError, LaneTimeoutError, MirrorsdError
from runtime.backends.devices import require_device
from runtime.backends.lane_device import Device, Dtype, ranks_of
from runtime.instruction_set import chosen_by
from runtime.wire.channel import Channel, Message
from runtime.wire.measurement import Measurement
from runtime.wire.operations import TimedReply, answer_to, call
from runtime.worker.process import thread_environment
from runtime.worker.server import LaneServer
from runtime.worker.timing import MeasureRole

_MOST_THREADS: Final = 1024
_ROOT: Final = Path(__file__).parents[2]
_LEAST_SEND_S: Final = 2.0
"""A lane that accepts no message for this long counts as hung, unless its operation may take longer."""
_EXIT_TIMEOUT_S: Final = 5.0

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneSpec:
    """A lane: its name in schedules, and where it runs.

    The name determines the device (`runtime.backends.lane_device`); a name that ends in `-2ranks` splits the target
    over two processes. The lane is pinned to `cores`, if any; each rank has `num_threads` threads. `dtype` None means
    that of the engine.
    """

    name: str
    cores: tuple[int, ...] = ()
    num_threads: int = 1
    dtype: Dtype | None = None

    @property
    def device(self) -> Device:
        """The device; with several ranks, that of the first one."""
        return Device.of_lane(self.name)

    @property
    def num_ranks(self) -> int:
        """Number of processes over which its target is split."""
        return ranks_of(self.name)

    @property
    def kernels(self) -> tuple[object, ...]:
        """What decides which kernels run; lanes with equal values compute the same bits.

        If the system does not describe the cores, it is the lane's name, which no other lane has.
        """
        cores = chosen_by(cores=self.cores)
        return (self.device, self.num_ranks, self.num_threads, self.dtype, *cores) if cores else (self.name,)

    def __post_init__(self) -> None:
        for rank in range(self.num_ranks):
            require_device(self.device.of_rank(rank).name)
        if not 1 <= self.num_threads <= _MOST_THREADS:
            raise ConfigError(f"lane {self.name!r}: num_threads is {self.num_threads}, it must be 1 to {_MOST_THREADS}")
        if self.num_ranks < 1:
            raise ConfigError(f"lane {self.name!r} has no ranks; it needs at least 1")
        if self.num_ranks > 1 and self.device.is_compiled:
            raise ConfigError(f"lane {self.name!r}: several ranks compute by torch on cores or GPUs, not by OpenVINO")
        available = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(self.cores)
        if not available.issuperset(self.cores):
            raise ConfigError(
                f"lane {self.name!r}: cores {list(self.cores)} are not all among those available, {sorted(available)}"
            )


class Lane:
    """A lane, whose process may be running or not. Requests are answered in the order in which they were sent."""

    def __init__(self, spec: LaneSpec) -> None:
        self.spec, self.name = spec, spec.name
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._arrived: dict[int, Message] = {}
        self._next_id = 0
        self._loss = "it was never started"
        self.answers_within_s: Callable[[], float] = lambda: 0.0
        """How many seconds the current operation may block the lane; at least 2 are allowed."""

    @property
    def is_alive(self) -> bool:
        """Whether the lane takes requests: it was not ended, and its process runs."""
        return self._channel is not None and (self._process is None or self._process.poll() is None)

    @property
    def process_id(self) -> int | None:
        """Id of the running process; None without one."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process, without waiting until it has imported its device's library."""
        self._arrived = {}
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", "runtime.worker.process", "--socket", str(theirs.fileno())]
        command += ["--threads", str(self.spec.num_threads), "--device", self.spec.device.name]
        command += ["--ranks", str(self.spec.num_ranks), "--cores", *map(str, self.spec.cores)]
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = thread_environment(self.spec.num_threads, os.environ)
        environment = os.environ | threads | {"PYTHONPATH": os.pathsep.join(paths)}
        with theirs:
            self._process = subprocess.Popen(
                command, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._channel = Channel(ours)

    def request(self, method: Callable[Concatenate[Any, P], R], *args: P.args, **options: P.kwargs) -> "Reply[R]":
        """Request an operation, which is a method of a role; `Reply.result` waits for the answer."""
        self._next_id += 1
        self._send(call(self._next_id, method, *args, **options))
        return Reply(self, self._next_id, method, time.perf_counter())

    def post(self, method: Callable[Concatenate[Any, P], Any], *args: P.args, **options: P.kwargs) -> None:
        """Request an operation without an answer; if it fails, the next answer is its error."""
        self._send(call(None, method, *args, **options))

    def receive(self, request_id: int, timeout_s: float | None) -> Message:
        """Wait for the answer to a request and return it; answers to other requests are kept.

        Raises `LaneDiedError` if the lane is lost, `LaneTimeoutError` if no answer came for `timeout_s` (stops of this
        process do not count), and the `MirrorsdError` with which the operation failed.
        """
        while request_id not in self._arrived:
            if self._channel is None:
                raise LaneDiedError(f"lane {self.name!r} is lost: {self._loss}")
            try:
                message = self._channel.receive(timeout_s)
            except EOFError:
                self._lose("its process ended")
            except TimeoutError:
                raise LaneTimeoutError(f"lane {self.name!r} has not answered for {timeout_s:g} s") from None
            else:
                self._arrived[message.fields["id"]] = message
        message = self._arrived.pop(request_id)
        if "error" in message.fields:
            error = _error(self.name, message)
            if isinstance(error, LaneDiedError):
                self._lose(str(error))
            raise error
        return message

    def measure(self, measurement: Measurement) -> list[float]:
        """Return the seconds of each run, timed in the lane; raise `LaneError` if it cannot time this part."""
        return self.request(MeasureRole.measure, measurement).result().value

    @contextmanager
    def busy(self, measurement: Measurement) -> Iterator[list[float]]:
        """Keep the lane busy with a part during the body; the yielded list gets the seconds of each run afterwards."""
        reply = self.request(MeasureRole.keep_busy, measurement)
        seconds: list[float] = []
        try:
            yield seconds
        finally:
            self.post(LaneServer.ping)
            seconds += reply.result().value

    def forget_answers(self) -> None:
        """Drop answers that were kept, as nobody waits for them any more."""
        self._arrived.clear()

    def kill(self, reason: str) -> None:
        """Kill the process; waiting for an answer raises an error with the reason."""
        if self._process is not None:
            self._process.kill()
        self._lose(reason)

    def close(self) -> None:
        """Close the channel, upon which the process ends; kill it if it has not after 5 s."""
        self._lose("it was closed")

    def _lose(self, reason: str) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            self._loss = reason
        if self._process is not None:
            try:
                code = self._process.wait(_EXIT_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                code = self._process.wait()
            self._process = None
            if code:
                self._loss = f"{reason} (exit code {code})"

    def _send(self, message: Message) -> None:
        if self._channel is None:
            return
        limit_s = max(_LEAST_SEND_S, self.answers_within_s())
        try:
            self._channel.send(message.fields, message.blocks, timeout_s=limit_s)
        except EOFError:
            self._lose("its process ended")
        except TimeoutError:
            self.kill(f"it has taken no message for {limit_s:g} s")


class Reply(NamedTuple, Generic[R]):
    """The answer to a request, which had been handed to the socket at `sent_s`."""

    lane: Lane
    id: int
    method: Callable[..., R]
    sent_s: float

    def result(self, timeout_s: float | None = None) -> TimedReply[R]:
        """Wait for the answer and return it; errors as in `Lane.receive`."""
        return answer_to(self.method, self.lane.receive(self.id, timeout_s))


def _error(lane: str, message: Message) -> MirrorsdError:
    kind = getattr(errors, message.fields["error"], None)
    text = message.fields["text"]
    if isinstance(kind, type) and issubclass(kind, MirrorsdError) and kind is not LaneError:
        return kind(text)
    return LaneError(f"lane {lane!r}: {text if kind is LaneError else message.fields['error'] + ': ' + text}")
