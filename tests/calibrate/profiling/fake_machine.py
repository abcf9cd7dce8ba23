"""A machine made of laws: every time is a formula, so calibration can be held to the right answer.

It may change its mind: cores that switch between two speeds, spikes, and a drift of all of them (`Weather`).
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace

from decoding.messages import Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from hwprofiles.host import split_lanes
from hwprofiles.profile import LaneProfile, LatencyTable
from runtime.lanes.sequence_lanes import NOBODY, Listener
from runtime.wire.measurement import Measurement
from runtime.wire.operations import Answer, Ping

NUM_LAYERS = 10
EXIT_LAYERS = (4, 6)
EXIT_S = 3e-3
HEAD_S = 12e-3
GUESS_S = 2e-3
"""What one more guess of the draft's streams adds."""
DRAFT_PREFILL = 0.25
"""Of what the target takes to read a prompt."""
GAP_S = 2e-3
"""Between one verification and the next."""


@dataclass
class Laws:
    """Seconds on one lane; `speed` divides all of them.

    In a run the target takes `target_in_run` times as long as in a loop, and `target_contended` times that while a
    draft works. The draft takes `step_in_run` times a loop's time in a run, and `step_contended` times the loop's
    while a target works: its cache is lost only once. Steps of branches take `branch_in_run` times that. The first step
    of a rollout takes `draft_wake_s` more in a run.
    """

    speed: float = 1.0
    target_in_run: float = 1.0
    step_in_run: float = 1.0
    target_contended: float = 1.0
    step_contended: float = 1.0
    branch_in_run: float = 1.0
    draft_wake_s: float = 0.0

    def layer_s(self, rows: int, context: int) -> float:
        return (1e-3 + 1e-4 * rows + 1e-6 * rows * context) / self.speed

    def head_s(self, rows: int) -> float:
        return HEAD_S * (1 + 0.1 * rows) / self.speed

    def exit_s(self, rows: int) -> float:
        return EXIT_S * (1 + 0.05 * rows) / self.speed

    def step_s(self, rows: int, context: int, *, with_features: bool = False) -> float:
        seconds = 5e-3 + 2e-4 * rows + 1e-6 * context
        return (seconds + (1e-3 if with_features else 0.0)) / self.speed

    def start_s(self, rows: int, context: int) -> float:
        return self.step_s(rows, context, with_features=True) + 2e-3 / self.speed

    def prefill_s(self, rows: int) -> float:
        return 2e-3 * rows / self.speed

    def lane(self, name: str, rows: Sequence[int], contexts: Sequence[int]) -> LaneProfile:
        """What a calibration without noise would find on these grids."""

        def table(seconds: Callable[[int, int], float]) -> LatencyTable:
            lines = tuple(tuple(seconds(count, context) for context in contexts) for count in rows)
            return LatencyTable(rows=tuple(rows), contexts=tuple(contexts), seconds=lines, source="laws")

        return LaneProfile(
            name=name,
            device="fake",
            dispatch_s=0.0,
            layer=table(self.layer_s),
            lm_head=table(lambda count, _: self.head_s(count)),
            exit=dict.fromkeys(EXIT_LAYERS, table(lambda count, _: self.exit_s(count))),
            draft_step=table(self.step_s),
            # a single row of a step never has features, see `calibrate.profiling.lane_parts`
            draft_step_features=table(lambda count, at: self.step_s(count, at, with_features=count > 1)),
            draft_start=table(self.start_s),
        )

    def target_s(self, part: str, rows: int, context: int, exit_layer: int | None) -> float:
        if part == "lm_head":
            return self.head_s(rows)
        if part == "exit":
            return self.exit_s(rows)
        if part in ("verify", "verify_tree"):
            return self._lane.verify_s(NUM_LAYERS, rows, context)
        assert exit_layer is not None
        if part == "suffix":
            return self._lane.suffix_s(NUM_LAYERS, exit_layer, rows, context)
        return self._lane.prefix_s(exit_layer, rows, context)

    @cached_property
    def _lane(self) -> LaneProfile:
        """Laws of the target are linear in rows and in context: a grid needs its corners alone."""
        return self.lane("any", (0, 200), (0, 10_000))


@dataclass
class Weather:
    """What a shared machine does to all times, by a seed; nothing by default.

    Every core switches between its own speed and one `slow` times as slow, after stretches of about `fast_s` and
    `slow_s` seconds; a lane of several cores is as slow as the slowest. One work in `spike_every` takes `spike_s` more,
    and everything becomes slower by `drift` in a hundred seconds.
    """

    seed: int = 0
    slow: float = 1.0
    fast_s: float = 3.0
    slow_s: float = 1.5
    spike_every: int = 0
    spike_s: float = 10e-3
    drift: float = 0.0
    _switches: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def factor(self, cores: Sequence[int], now_s: float) -> float:
        return max(self._of_core(core, now_s) for core in cores) * (1 + self.drift * now_s / 100)

    def spike(self) -> float:
        return self.spike_s if self.spike_every and self._random.randrange(self.spike_every) == 0 else 0.0

    def mean(self, num_cores: int) -> float:
        """Of `factor` over much work done in turn, as tokens are: a slow stretch has room for less of it."""
        fast_share = (self.fast_s / (self.fast_s + self.slow_s)) ** num_cores
        return 1 / (fast_share + (1 - fast_share) / self.slow)

    def _of_core(self, core: int, now_s: float) -> float:
        if self.slow == 1.0:
            return 1.0
        share = self.slow_s / (self.fast_s + self.slow_s)
        switches = self._switches.setdefault(core, [0.0] * (1 + (self._random.random() < share)))
        while switches[-1] <= now_s:
            usual_s = self.fast_s if len(switches) % 2 else self.slow_s
            switches.append(switches[-1] + self._random.expovariate(1 / usual_s))
        return 1.0 if bisect_right(switches, now_s) % 2 else self.slow


class Done:
    def __init__(self, answer: Answer) -> None:
        self.answer = answer

    def result(self) -> Answer:
        return self.answer


class FakeRequest:
    """A measurement that starts now; it is slowed if another lane's is under way."""

    def __init__(self, lane: FakeLane, measurement: Measurement) -> None:
        self.lane, self.measurement, self.contended = lane, measurement, False
        self.start_s = lane.machine.now_s

    def result(self) -> Answer:
        self.lane.machine.under_way.remove(self)
        return self.lane.measured(self.measurement, contended=self.contended, start_s=self.start_s)


@dataclass
class FakeLane:
    """Notes every visit in the machine's `visits`; slowed while another lane is `busy`."""

    name: str
    laws: Laws
    machine: FakeEngine

    def request(self, operation) -> Done | FakeRequest:
        if isinstance(operation, Ping):
            return Done(Answer(None, 0.0, 0.0))
        self.machine.visits.append((self.name, operation.measurement))
        request = FakeRequest(self, operation.measurement)
        for other in self.machine.under_way:
            other.contended = request.contended = True
        self.machine.under_way.append(request)
        return request

    def measured(self, measurement: Measurement, *, contended: bool, start_s: float) -> Answer:
        """What it took from `start_s` on; the machine's time is at least that of its end."""
        machine = self.machine
        law_s = self.seconds(measurement, contended=contended or bool(machine.busy_lanes - {self.name}))
        end_s, machine.now_s = machine.now_s, start_s
        taken = [machine.work(self.name, law_s) for _ in range(measurement.warm_up + measurement.repeats)]
        machine.timed_s += max(0.0, machine.now_s - end_s)
        machine.now_s = max(end_s, machine.now_s)
        now_s = time.perf_counter()
        return Answer(taken[measurement.warm_up :], now_s, now_s)

    @contextmanager
    def busy(self, measurement: Measurement) -> Iterator[list[float]]:
        self.machine.busy_lanes.add(self.name)
        yield []
        self.machine.busy_lanes.remove(self.name)

    def seconds(self, m: Measurement, *, contended: bool) -> float:
        if m.part == "draft_streams":
            return GUESS_S * (1 + m.rows) / self.laws.speed
        if m.part == "prefill":
            return self.laws.prefill_s(m.rows)
        if m.part == "draft_prefill":
            return DRAFT_PREFILL * self.laws.prefill_s(m.rows)
        if m.part == "draft_start":
            return self.laws.start_s(m.rows, m.context)
        if m.part == "draft_step":
            factor = self.laws.step_contended if contended else 1.0
            return factor * self.laws.step_s(m.rows, m.context, with_features=m.with_features)
        return (self.laws.target_contended if contended else 1.0) * self.laws.target_s(
            m.part, m.rows, m.context, m.exit_layer
        )


@dataclass
class FakeEngine:
    """An engine whose draft is right about every other token."""

    laws: dict[str, Laws]
    surprise: float = 1.0
    """Factor on all work of schedules with windows of two: those that calibration checks itself with."""
    config: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(num_layers=NUM_LAYERS, vocab_size=100))
    visits: list[tuple[str, Measurement]] = field(default_factory=list)
    busy_lanes: set[str] = field(default_factory=set)
    under_way: list[FakeRequest] = field(default_factory=list)
    loaded: set[tuple[str, str]] = field(default_factory=set)
    decoded: list[tuple[Schedule, int, int]] = field(default_factory=list)
    weather: Weather = field(default_factory=Weather)
    now_s: float = 0.0
    timed_s: float = 0.0
    """What all that was timed has taken; the rest was decoded."""

    def clock(self) -> float:
        return self.now_s

    def work(self, lane: str, law_s: float) -> float:
        """Seconds of work that by its law takes `law_s`; the time passes."""
        seconds = law_s * self.factor(lane, self.now_s) + self.weather.spike()
        self.now_s += seconds
        return seconds

    def factor(self, lane: str, now_s: float) -> float:
        return self.weather.factor(next(one.cores for one in LANES if one.name == lane), now_s)

    def is_row_invariant(self, lane: str) -> bool:
        return (lane, "target") in self.loaded

    def load_target(self, lane: str) -> FakeLane:
        self.loaded.add((lane, "target"))
        return FakeLane(lane, self.laws[lane], self)

    def load_draft(self, lane: str) -> FakeLane:
        self.loaded.add((lane, "draft"))
        return FakeLane(lane, self.laws[lane], self)

    def generate(
        self,
        schedule: Schedule,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        eos_token_ids: Sequence[int],
        listener: Listener = NOBODY,
    ) -> SimpleNamespace:
        assert tuple(eos_token_ids) == ()
        self.decoded.append((schedule, len(prompt), max_new_tokens))
        trace = FakeRun(self, schedule, len(prompt), listener).decode(max_new_tokens)
        return SimpleNamespace(trace=trace)


class FakeRun:
    """Writes the trace of one decoding, lane work strictly in turn except for mirror's branches."""

    def __init__(self, engine: FakeEngine, schedule: Schedule, prompt_length: int, listener: Listener) -> None:
        self.engine, self.start_s = engine, engine.now_s
        self.at_rest = listener.at_rest or (lambda: None)
        self.schedule = schedule
        self.target = engine.laws[schedule.target_lane]
        self.draft = engine.laws[schedule.draft_lane or schedule.target_lane]
        self.surprise = engine.surprise if schedule.num_speculative_tokens == 2 else 1.0
        self.context = prompt_length - 1
        self.trace = Trace(world="measured")
        self.now_s = 0.0

    def decode(self, max_new_tokens: int) -> Trace:
        left, index = max_new_tokens, 0
        while left:
            committed = min(left, 1 + (index % 2) * min(2, self.schedule.num_speculative_tokens))
            window = Window((1,) * self.schedule.num_speculative_tokens)
            self.play_round(index, len(window.tokens) + 1)
            self.trace.begin_round(self.now_s)
            self.trace.end_round(self.now_s, window, Verdict(committed - 1, 1), committed)
            self.context += committed
            self.now_s += GAP_S
            left, index = left - committed, index + 1
            self.rest()
        self.trace.decode_s = self.now_s
        return self.trace

    def rest(self) -> None:
        """Lanes have no work; what is done now takes the machine's time, and none of the trace's."""
        self.engine.now_s = self.start_s + self.now_s
        self.at_rest()
        self.start_s = self.engine.now_s - self.now_s

    def play_round(self, index: int, rows: int) -> None:
        schedule = self.schedule
        if schedule.method != "mirror":
            for step in range(schedule.num_speculative_tokens):
                step_rows = 3 if schedule.exit_features and step == 0 else 1
                features = step_rows > 1
                seconds = self.draft.step_in_run * self.draft.step_s(step_rows, self.context, with_features=features)
                seconds += self.draft.draft_wake_s if step == 0 else 0.0
                self.span(schedule.draft_lane, Work.ROLLOUT_STEP, seconds, index, step_rows)
            self.span(schedule.target_lane, Work.VERIFY, self.alone_s("verify", rows), index, rows)
            return
        self.span(schedule.target_lane, Work.PREFIX, self.alone_s("prefix", rows), index, rows)
        # one step of the draft begins with the suffix; while it lasts, the suffix advances more slowly
        start_s = self.now_s
        step_s = self.draft.step_contended * self.draft.branch_in_run * self.draft.step_s(8, self.context)
        step_s *= self.factor(schedule.draft_lane)
        suffix_s = self.factor(schedule.target_lane) * self.alone_s("suffix", rows)
        suffix_s += step_s * (1 - 1 / self.target.target_contended)
        self.span(schedule.target_lane, Work.SUFFIX, suffix_s, index, rows, factor=1.0)
        end_s = start_s + self.surprise * step_s
        assert end_s < self.now_s, "the step must end first, or its own slowdown would end too"
        self.trace.spans.append(Span(schedule.draft_lane, Work.BRANCH_STEP, start_s, end_s, index, 8))

    def alone_s(self, part: str, rows: int) -> float:
        return self.target.target_in_run * self.target.target_s(part, rows, self.context, self.schedule.exit_layer)

    def factor(self, lane: str) -> float:
        return self.engine.factor(lane, self.start_s + self.now_s)

    def span(
        self, lane: str, work: Work, seconds: float, index: int, rows: int, *, factor: float | None = None
    ) -> None:
        spike_s = self.engine.weather.spike() if factor is None else 0.0
        slower = self.factor(lane) if factor is None else factor
        end_s = self.now_s + self.surprise * slower * seconds + spike_s
        self.trace.spans.append(Span(lane, work, self.now_s, end_s, index, rows))
        self.now_s = end_s


LANES = split_lanes((0, 1))
