"""Decodings on the machine made of laws: traces as lanes would leave them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from decoding.messages import Verdict, Window
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from runtime.lanes.sequence_lanes import Listener
from tests.calibrate.profiling.fake_machine.laws import GAP_S, STEP_LEVEL

if TYPE_CHECKING:
    from tests.calibrate.profiling.fake_machine.engine import FakeEngine


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
        if self.schedule.is_tree:
            return self.decode_trees(max_new_tokens)
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

    def decode_trees(self, max_new_tokens: int) -> Trace:
        """Every round commits one token: nothing of an arbitrary text is accepted by a tree."""
        schedule, engine = self.schedule, self.engine
        rows = schedule.tree_size + 1
        window = Window((1,) * schedule.tree_size, parents=(-1,) * schedule.tree_size)
        steps = (1, schedule.tree_top_k, schedule.tree_top_k) if schedule.tree_top_k else (1,)
        for index in range(max_new_tokens):
            for level, step_rows in enumerate(steps if schedule.draft_lane else ()):
                factor = engine.level_of.get(schedule.draft_lane, STEP_LEVEL)
                step_s = factor * engine.head_s(schedule.drafter, step_rows) / self.draft.speed
                step_s += 0.0 if level else self.draft.first_step_s
                self.span(schedule.draft_lane, Work.ROLLOUT_STEP, step_s, index, step_rows)
            work, added_s = Work.VERIFY, 0.0
            if schedule.draft_lane is None:
                work, added_s = Work.STREAM, self.target.target_in_run * engine.streams_s / self.target.speed
            self.span(schedule.target_lane, work, self.first_s("verify", rows) + added_s, index, rows)
            self.trace.begin_round(self.now_s)
            self.trace.end_round(self.now_s, window, Verdict(0, 1), 1)
            self.context += 1
            self.now_s += GAP_S
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
                seconds += self.draft.first_step_s if step == 0 else 0.0
                self.span(schedule.draft_lane, Work.ROLLOUT_STEP, seconds, index, step_rows)
            self.span(schedule.target_lane, Work.VERIFY, self.first_s("verify", rows), index, rows)
            return
        if not schedule.exit_features:
            last_s = self.draft.step_in_run * self.draft.step_s(1, self.context)
            self.span(schedule.draft_lane, Work.BRANCH_STEP, last_s, index, 1)
        prefix_s = self.first_s("prefix", rows) + self.target.prefix_more_s / self.target.speed
        self.span(schedule.target_lane, Work.PREFIX, prefix_s, index, rows)
        # one step of the draft begins with the suffix; while it lasts, the suffix advances more slowly
        start_s = self.now_s
        step_s = self.factor(schedule.draft_lane) * self.draft.branch_s(8, self.context)
        suffix_s = self.factor(schedule.target_lane) * self.alone_s("suffix", rows)
        suffix_s += step_s * (1 - 1 / self.target.target_contended)
        self.span(schedule.target_lane, Work.SUFFIX, suffix_s, index, rows, factor=1.0)
        end_s = start_s + self.surprise * step_s
        assert end_s < self.now_s, "the step must end first, or its own slowdown would end too"
        self.trace.spans.append(Span(schedule.draft_lane, Work.BRANCH_STEP, start_s, end_s, index, 8))

    def first_s(self, part: str, rows: int) -> float:
        return self.alone_s(part, rows) + self.target.replying_s(self.schedule)

    def alone_s(self, part: str, rows: int) -> float:
        in_run = self.target.target_in_run * (self.target.several_in_run if rows > 1 else 1.0)
        return in_run * self.target.target_s(part, rows, self.context, self.schedule.exit_layer)

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
