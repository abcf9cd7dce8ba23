"""Lanes that are threads of this process instead of processes: they start at once, and can run doubles."""

import socket
import threading
from contextlib import contextmanager

import pytest

from runtime.engine import Engine
from runtime.lanes import lane_set
from runtime.lanes.lane import Lane, LaneSpec
from runtime.wire.channel import Channel
from runtime.worker.server import LaneServer


class ThreadLane(Lane):
    """A lane whose server is a thread of this process."""

    def start(self):
        ours, theirs = socket.socketpair()
        self._theirs, self.server = theirs, self.new_server(Channel(theirs))

        def serve():
            with theirs:
                self.server.serve()

        threading.Thread(target=serve, daemon=True).start()
        self._channel = Channel(ours)
        self._arrived = {}

    def new_server(self, channel):
        return LaneServer(channel, self.spec.device, num_threads=self.spec.num_threads)

    def die(self):
        """As when a process ends: the other end is gone."""
        self._theirs.shutdown(socket.SHUT_RDWR)


@contextmanager
def thread_engine(target_folder, *, dtype="float32", lanes=("big", "small"), **options):
    """An engine with lanes of these names."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane_set, "Lane", ThreadLane)
        specs = [LaneSpec(name=name) for name in lanes]
        with Engine(target_folder, lanes=specs, dtype=dtype, draft_deadline_s=60.0, **options) as engine:
            yield engine
