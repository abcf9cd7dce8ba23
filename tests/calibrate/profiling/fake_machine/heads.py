"""The machine made of laws with heads and streams: steps take longer in a run, where the target empties the cache."""

from dataclasses import dataclass, field
from types import SimpleNamespace

from decoding.messages import Verdict, Window
from decoding.trace import Trace, Work
from runtime.lanes.sequence_lanes import Listener
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.engine import FakeEngine
from tests.calibrate.profiling.fake_machine.lanes import FakeLane
from tests.calibrate.profiling.fake_machine.laws import GAP_S
from tests.calibrate.profiling.fake_machine.runs import FakeRun

STREAMS_S = 4e-3
LEVEL = 1.5


@dataclass
class HeadLane(FakeLane):
    """Holds one head at a time."""

    def seconds(self, m: Measurement, *, contended: bool) -> float:
        if m.part == "head_step":
            return self.machine.head_s(self.machine.heads_loaded[self.name], m.rows) / self.laws.speed
        if m.part in ("verify_tree", "stream"):
            streams_s = STREAMS_S / self.laws.speed if m.part == "stream" else 0.0
            assert m.part == "verify_tree" or self.name in self.machine.streams_loaded
            return self.laws.target_s("verify", m.rows, m.context, None) + streams_s
        return super().seconds(m, contended=contended)


@dataclass
class HeadEngine(FakeEngine):
    """Heads take `base_s` and a bit for every row, and in a run `level_of` the lane times that."""

    base_s: dict[str, float] = field(default_factory=lambda: {"eagle": 2e-3, "medusa": 1e-3})
    level_of: dict[str, float] = field(default_factory=dict)
    heads_loaded: dict[str, str] = field(default_factory=dict)
    streams_loaded: set[str] = field(default_factory=set)
    loads: list[tuple[str, str]] = field(default_factory=list)

    def head_s(self, drafter: str, rows: int) -> float:
        return self.base_s[drafter] * (1 + 0.1 * rows)

    def load_target(self, lane: str) -> HeadLane:
        self.loaded.add((lane, "target"))
        return HeadLane(lane, self.laws[lane], self)

    def load_draft(self, lane: str, drafter: str | None = None) -> HeadLane:
        self.loads.append((lane, drafter or "draft"))
        self.heads_loaded[lane] = drafter or "draft"
        self.loaded.add((lane, "draft"))
        return HeadLane(lane, self.laws[lane], self)

    def load_streams(self, lane: str, drafter: str) -> HeadLane:
        self.loads.append((lane, drafter))
        self.streams_loaded.add(lane)
        return HeadLane(lane, self.laws[lane], self)

    def generate(self, schedule, prompt, *, max_new_tokens, eos_token_ids, listener) -> SimpleNamespace:
        if not schedule.is_tree:
            return super().generate(
                schedule, prompt, max_new_tokens=max_new_tokens, eos_token_ids=eos_token_ids, listener=listener
            )
        self.decoded.append((schedule, len(prompt), max_new_tokens))
        trace = TreeRun(self, schedule, len(prompt), listener).decode(max_new_tokens)
        return SimpleNamespace(trace=trace)


class TreeRun(FakeRun):
    """Every round commits one token: nothing of an arbitrary text is accepted."""

    def __init__(self, engine: HeadEngine, schedule, prompt_length: int, listener: Listener) -> None:
        super().__init__(engine, schedule, prompt_length, listener)
        self.engine = engine

    def decode(self, max_new_tokens: int) -> Trace:
        schedule, speed = self.schedule, self.draft.speed
        window = Window((1,) * schedule.tree_size, parents=(-1,) * schedule.tree_size)
        for index in range(max_new_tokens):
            steps = (1, schedule.tree_top_k, schedule.tree_top_k) if schedule.tree_top_k else (1,)
            for level, rows in enumerate(steps if schedule.draft_lane else ()):
                wake_s = 0.0 if level else self.draft.first_step_s
                step_s = wake_s + (
                    self.engine.level_of.get(schedule.draft_lane, LEVEL)
                    * self.engine.head_s(schedule.drafter, rows)
                    / speed
                )
                self.span(schedule.draft_lane, Work.ROLLOUT_STEP, step_s, index, rows)
            rows = schedule.tree_size + 1
            work, added_s = Work.VERIFY, 0.0
            if schedule.draft_lane is None:
                work, added_s = Work.STREAM, self.target.target_in_run * STREAMS_S / self.target.speed
            self.span(schedule.target_lane, work, self.first_s("verify", rows) + added_s, index, rows)
            self.trace.begin_round(self.now_s)
            self.trace.end_round(self.now_s, window, Verdict(0, 1), 1)
            self.context += 1
            self.now_s += GAP_S
        self.trace.decode_s = self.now_s
        return self.trace
