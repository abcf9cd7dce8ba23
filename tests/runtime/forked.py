"""Processes forked from one that has imported torch and OpenVINO: they start in a moment, and die as any do."""

import multiprocessing
import os
import signal
import socket
import subprocess
from argparse import Namespace
from functools import partial

import pytest

from runtime.wire.channel import Channel
from runtime.worker.process import _cores_of, _serve, thread_environment

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "runtime.worker.torch_models", "runtime.worker.compiled_models", __name__])


class ForkedProcess:
    """A process that calls a function; as much of `subprocess.Popen` as a lane needs."""

    def __init__(self, function, *args):
        self._process = CONTEXT.Process(target=function, args=args, daemon=True)
        with pytest.MonkeyPatch.context() as patch:  # the first one starts what all are forked from
            for name, value in thread_environment(1, os.environ).items():
                patch.setenv(name, value)
            self._process.start()
        self.pid, self.kill = self._process.pid, self._process.kill

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout)
        return self._process.exitcode


def serve(end, options, environment):
    os.environ.update(environment)
    if options.cores:
        os.sched_setaffinity(0, _cores_of(options.cores, 0, options.ranks))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(end, options)


def started_lane(lane):
    """In the place of `Lane.start`."""
    lane._arrived, spec = {}, lane.spec
    options = Namespace(ranks=spec.num_ranks, device=spec.device.name, cores=spec.cores, threads=spec.num_threads)
    ours, theirs = socket.socketpair()
    with theirs:
        lane._process = ForkedProcess(serve, theirs, options, dict(os.environ))
    lane._channel = Channel(ours)


def with_forked_lanes(engine):
    """The engine, whose lanes are forked whenever it starts them."""
    for lane in engine._lanes._lanes.values():
        lane.start = partial(started_lane, lane)
    return engine
