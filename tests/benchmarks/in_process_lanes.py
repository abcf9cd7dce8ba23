"""Lanes that answer in the process that asks: all of a lane's code but its process, at ten times the speed.

A draft's steps between two messages happen as if by time: after each message as many as are drawn from a seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes import lane_set
from runtime.lanes.lane import Lane, LaneSpec
from runtime.wire.channel import Block, Message
from runtime.worker.server import LaneServer

_MOST_STEPS = 2
"""Of a draft between two messages."""


class InProcessLane(Lane):
    """A lane whose server answers at once."""

    def start(self) -> None:
        """See `Lane`."""
        self._arrived = {}
        self._channel: Any = _ServerEnd(self._arrived)
        self._server = LaneServer(self._channel)
        self._random = random.Random(self.name)

    def _send(self, message: Message) -> None:
        if self._channel is not None:
            self._server._answer(message)
            for _ in range(self._random.randint(0, _MOST_STEPS)):
                if (draft := self._server._draft) is None or not draft.has_work:
                    break
                self._server._step(draft)


class _ServerEnd:
    """Takes the place of `runtime.wire.channel.Channel`."""

    def __init__(self, arrived: dict[int, Message]) -> None:
        self._arrived = arrived

    def send(self, fields: Mapping[str, Any], blocks: Sequence[Block] = ()) -> None:
        """Answer."""
        self._arrived[fields["id"]] = Message(fields, tuple(blocks))

    def close(self) -> None:
        """Nothing is open."""


class _Engine(Engine):
    """An engine that does not look for memory before every text, which takes long."""

    def take_room(self, schedule: Schedule, num_tokens: int) -> None:
        pass


@contextmanager
def in_process_engine(target: Path, *, lanes: Sequence[str], exits: Path) -> Iterator[Engine]:
    """An engine with lanes of these names, in float32."""
    specs = [LaneSpec(name=name) for name in lanes]
    with (
        patch.multiple(lane_set, Lane=InProcessLane, find_drafter=Path),
        _Engine(target, lanes=specs, exits_folder=exits, dtype="float32") as engine,
    ):
        yield engine
