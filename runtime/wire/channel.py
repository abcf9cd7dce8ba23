"""Messages between processes: a JSON header and raw arrays over a socket. Nothing is ever unpickled."""

import json
import math
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from runtime.arrays import Array, as_array, as_tensor, numpy_type
from runtime.wire.stops import STOPS

if TYPE_CHECKING:
    from torch import Tensor


_LENGTHS = struct.Struct("<IQ")
"""Bytes of the JSON header, and of all arrays together."""

_READ_BYTES = 1 << 20

_PIECE_S: Final = 0.25
"""Waits are split into pieces of this length; a piece that ends this much too late shows a stop of the process."""

R = TypeVar("R")


class Block(NamedTuple):
    """An array in a message: `data` holds the elements in row-major order and the machine's byte order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


class Message(NamedTuple):
    """A message: JSON-able fields, and arrays."""

    fields: Mapping[str, Any]
    blocks: tuple[Block, ...] = ()


class Channel:
    """One end of a socket pair, for whole messages; a partly received one is kept until the rest arrives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._received = bytearray()
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def send(self, fields: Mapping[str, Any], blocks: Sequence[Block] = (), *, timeout_s: float | None = None) -> None:
        """Send one message.

        Raises `EOFError` if the other end is gone; `TimeoutError` if it accepted no byte for `timeout_s`, after which
        the channel is unusable.
        """
        left = memoryview(to_bytes(fields, blocks))
        try:
            while left:  # the limit is per piece, as hidden states of a long prompt are many megabytes
                left = left[self._within(timeout_s, partial(self._socket.send, left)) :]
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EOFError from error

    def receive(self, timeout_s: float | None = None) -> Message:
        """Wait for a message; raise `EOFError` if the other end is gone, `TimeoutError` if nothing came in time."""
        while (stop := self._end_of_message()) is None:
            self._fill(timeout_s)
        message = bytes(self._received[:stop])
        del self._received[:stop]
        return from_bytes(message)

    def has_message(self) -> bool:
        """Return whether `receive` would not have to wait; raise `EOFError` if the other end is gone."""
        while self._end_of_message() is None:
            if not self._poll.poll(0):
                return False
            self._fill(None)
        return True

    def close(self) -> None:
        """Close the socket; the other end sees the end of file."""
        self._socket.close()

    def _fill(self, timeout_s: float | None) -> None:
        try:
            data = self._within(timeout_s, partial(self._socket.recv, _READ_BYTES))
        except ConnectionResetError as error:
            raise EOFError from error
        if not data:
            raise EOFError
        self._received += data

    def _within(self, timeout_s: float | None, act: Callable[[], R]) -> R:
        """Return the result of a call of the socket; raise `TimeoutError` if it takes more than `timeout_s`.

        Time in which this process was stopped does not count, as Ctrl-Z stops the other end too; `STOPS` records it.
        """
        left_s = math.inf if timeout_s is None else timeout_s
        while True:
            piece_s = max(min(left_s, _PIECE_S), 1e-6)  # a timeout of zero would make the socket non-blocking
            self._socket.settimeout(piece_s)
            start_s = time.perf_counter()
            try:
                result = act()
            except TimeoutError:
                if STOPS.late_s(start_s, piece_s) < _PIECE_S:
                    left_s -= piece_s
                if left_s <= 0:
                    raise
            else:
                STOPS.late_s(start_s, piece_s)
                return result

    def _end_of_message(self) -> int | None:
        if len(self._received) < _LENGTHS.size:
            return None
        stop = _LENGTHS.size + sum(_LENGTHS.unpack_from(self._received))
        return stop if stop <= len(self._received) else None


def to_bytes(fields: Mapping[str, Any], blocks: Sequence[Block] = ()) -> bytes:
    """Return the bytes of a message."""
    if blocks:
        fields = {**fields, "blocks": [(block.dtype, block.shape) for block in blocks]}
    header = json.dumps(fields, separators=(",", ":")).encode()
    num_bytes = sum(len(block.data) for block in blocks)
    return b"".join([_LENGTHS.pack(len(header), num_bytes), header, *[block.data for block in blocks]])


def from_bytes(message: bytes) -> Message:
    """Return the message in the bytes of `to_bytes`."""
    num_header_bytes, _ = _LENGTHS.unpack_from(message)
    place = _LENGTHS.size + num_header_bytes
    fields = json.loads(message[_LENGTHS.size : place])
    blocks = []
    for dtype, shape in fields.pop("blocks", ()):
        stop = place + numpy_type(dtype).itemsize * math.prod(shape)
        blocks.append(Block(dtype, tuple(shape), message[place:stop]))
        place = stop
    return Message(fields, tuple(blocks))


def to_block(array: Array) -> Block:
    """Return an array as a block, with the same bits."""
    host_array = as_array(array)
    return Block(host_array.dtype.name, host_array.shape, host_array.tobytes())


def to_array(block: Block) -> NDArray[Any]:
    """Return a block as a new numpy array."""
    return np.frombuffer(bytearray(block.data), numpy_type(block.dtype)).reshape(block.shape)


def to_tensor(block: Block) -> "Tensor":
    """Return a block as a new tensor."""
    return as_tensor(to_array(block))
