"""Lanes of the machine made of laws: what a measurement takes, alone and next to another one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING

from runtime.target.target_model import TargetModel
from runtime.wire.measurement import Measurement
from runtime.wire.operations import TimedReply
from runtime.worker.timing import MeasureRole
from tests.calibrate.profiling.fake_machine.laws import DRAFT_PREFILL, GUESS_S, Laws

if TYPE_CHECKING:
    from tests.calibrate.profiling.fake_machine.engine import FakeEngine


class Done:
    def __init__(self, answer: TimedReply) -> None:
        self.answer = answer

    def result(self, timeout_s: float | None = None) -> TimedReply:
        return self.answer


class FakeRequest:
    """A measurement that starts now; it is slowed if another lane's is under way."""

    def __init__(self, lane: FakeLane, measurement: Measurement) -> None:
        self.lane, self.measurement, self.contended = lane, measurement, False
        self.start_s = lane.machine.now_s

    def result(self, timeout_s: float | None = None) -> TimedReply:
        self.lane.machine.under_way.remove(self)
        return self.lane.measured(self.measurement, contended=self.contended, start_s=self.start_s)


@dataclass
class FakeLane:
    """Notes every visit in the machine's `visits`; slowed while another lane is `busy`."""

    name: str
    laws: Laws
    machine: FakeEngine

    @property
    def spec(self) -> SimpleNamespace:
        return SimpleNamespace(kernels=self.machine.kernels[self.name])

    def request(self, method, work=None) -> Done | FakeRequest:
        if method is TargetModel.lay_out_again:
            self.machine.laid_out.append(self.name)
        if method is not MeasureRole.measure:
            return Done(TimedReply(None, 0.0, 0.0))
        self.machine.visits.append((self.name, work))
        request = FakeRequest(self, work)
        for other in self.machine.under_way:
            other.contended = request.contended = True
        self.machine.under_way.append(request)
        return request

    def measured(self, measurement: Measurement, *, contended: bool, start_s: float) -> TimedReply:
        """What it took from `start_s` on; the machine's time is at least that of its end."""
        machine = self.machine
        law_s = self.seconds(measurement, contended=contended or bool(machine.busy_lanes - {self.name}))
        law_s *= machine.trouble(self.name, measurement, machine.times_before[self.name, measurement])
        machine.times_before[self.name, measurement] += 1
        end_s, machine.now_s = machine.now_s, start_s
        taken = [machine.work(self.name, law_s) for _ in range(measurement.warm_up + measurement.repeats)]
        machine.timed_s += max(0.0, machine.now_s - end_s)
        machine.now_s = max(end_s, machine.now_s)
        now_s = time.perf_counter()
        return TimedReply(taken[measurement.warm_up :], now_s, now_s)

    @contextmanager
    def busy(self, measurement: Measurement) -> Iterator[list[float]]:
        self.machine.busy_lanes.add(self.name)
        yield []
        self.machine.busy_lanes.remove(self.name)

    def seconds(self, m: Measurement, *, contended: bool) -> float:
        laws, machine = self.laws, self.machine
        if m.part == "draft_step":
            factor = laws.step_contended if contended else 1.0
            return factor * laws.step_s(m.rows, m.context, with_features=m.with_features)
        by_part = {
            "head_step": lambda: machine.head_s(machine.drafters[self.name], m.rows) / laws.speed,
            "stream": lambda: laws.target_s("verify", m.rows, m.context, None) + machine.streams_s / laws.speed,
            "draft_streams": lambda: GUESS_S * (1 + m.rows) / laws.speed,
            "prefill": lambda: laws.prefill_s(m.rows),
            "draft_prefill": lambda: DRAFT_PREFILL * laws.prefill_s(m.rows),
            "draft_start": lambda: laws.start_s(m.rows, m.context),
        }
        if m.part in by_part:
            return by_part[m.part]()
        factor = laws.target_contended if contended else 1.0
        return factor * laws.target_s(m.part, m.rows, m.context, m.exit_layer)
