"""How every rank of a lane gets the same messages: rank 0 tells the others all that its parent sends.

So the server of a lane (`runtime.worker.server`) runs on every rank as it is. With each message rank 0 tells what it
replied to the last one; a rank that came to another result ends, for the group's text would fall apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from decoding.errors import LaneDiedError, LaneError
from runtime.parallel.group import Group
from runtime.wire.channel import Block, Channel, Message, from_bytes, to_bytes

_TIMED: Final = ("Measure", "KeepBusy")
"""Operations whose reply is seconds, which differ from rank to rank; the lane's are their mean."""
_OF_ONE_RANK: Final = "spans"
"""Steps with their times, in replies of a draft."""
_NOTHING: Final = b"\0" * 8
"""The digest of no reply; others are as long."""
_YES: Final = b"y"

R = TypeVar("R")


class GroupChannel:
    """The channel of a lane's server on one rank of a group; rank 0 alone has a parent.

    Where the group is lost, rank 0 says so to its parent and then sees the end of file, so that its process ends and
    the lane can be started again.
    """

    def __init__(self, group: Group, parent: Channel | None = None) -> None:
        assert (parent is not None) == (group.rank == 0), "rank 0 and no other has a parent"
        self._group, self._parent = group, parent
        self._operation, self._digest, self._is_lost = "", _NOTHING, False

    def receive(self) -> Message:
        """The next message of rank 0's parent, on every rank.

        Raises:
            EOFError: the parent is gone, or on rank 0 a rank was lost.
            LaneDiedError: a rank was lost.
            LaneError: this rank came to another result than rank 0.
        """
        message = from_bytes(self._hear()) if self._parent is None else self._next_message(self._parent)
        self._operation = message.fields["op"]
        return message

    def has_message(self) -> bool:
        """Whether `receive` would not have to wait; raises what it raises."""
        if self._parent is None:
            return self._hear() == _YES
        found = self._or_end(self._parent.has_message)
        self._tell(_YES if found else b"n")
        return found

    def send(self, fields: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        """Answer the parent by rank 0's reply, of seconds by the mean."""
        if "reply" in fields and self._operation in _TIMED:
            fields = {**fields, "reply": self._group.mean(fields["reply"])}
        self._digest = _digest(fields)
        if self._parent is not None:
            self._is_lost = fields.get("error") == LaneDiedError.__name__
            self._parent.send(fields, blocks)
        else:
            self._group.report(fields.get("text", ""))

    def _next_message(self, parent: Channel) -> Message:
        """On rank 0: what the parent sends, once the other ranks have it."""
        if self._is_lost:
            raise EOFError
        message = self._or_end(parent.receive)
        try:
            self._tell(to_bytes(message.fields, message.blocks))
        except LaneDiedError as error:
            refuse(parent, message, error)
            raise EOFError from error
        return message

    def _or_end(self, ask: Callable[[], R]) -> R:
        """Ask the parent; if it is gone, tell the other ranks to end."""
        try:
            return ask()
        except EOFError:
            self._group.tell()
            raise

    def _tell(self, data: bytes) -> None:
        self._group.tell(self._digest + data)

    def _hear(self) -> bytes:
        """On another rank than 0: what it tells."""
        told = self._group.tell()
        if not told:
            raise EOFError
        digest, data = told[: len(_NOTHING)], told[len(_NOTHING) :]
        if digest != self._digest:
            raise LaneError(f"it came to another result of {self._operation} than rank 0")
        return data


def refuse(parent: Channel, message: Message, error: Exception) -> None:
    """Answer a message by an error."""
    if message.fields["id"] is not None:
        parent.send({"id": message.fields["id"], "error": type(error).__name__, "text": str(error)})


def _digest(fields: Mapping[str, Any]) -> bytes:
    """Digest a reply, times and numbers that are not exact left out."""
    reply = fields.get("error", fields.get("reply"))
    if isinstance(reply, Mapping):
        reply = {name: value for name, value in reply.items() if name != _OF_ONE_RANK}
    elif isinstance(reply, list):
        # seconds, or steps with their times
        reply = None
    return hashlib.blake2b(json.dumps(reply, sort_keys=True).encode(), digest_size=len(_NOTHING)).digest()
