"""Short decodings of arbitrary text: what parts cost in a real run, compared with the profile.

Parts measured in a loop meet warm caches and a lane that does nothing else. Decoding alternates models and waits
for messages. The runs here set the level of the tables (`level_factor`) and, on other schedules, measure how far
off they still are (`residual`). None of them is a run that anybody will ask a prediction for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import fmean, median

from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from hwprofiles.profile import LatencyTable, Profile
from runtime.engine import Engine

_TARGET_WORK = frozenset({Work.VERIFY, Work.PREFIX, Work.SUFFIX})
_DRAFT_WORK = frozenset({Work.ROLLOUT_STEP, Work.BRANCH_STEP, Work.FINISH_STEP})
_STRIDE = 7919
"""Prime, so that the ids of the text visit the whole vocabulary."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A decoded text and how it was made."""

    schedule: Schedule
    prompt_length: int
    trace: Trace

    def contexts(self) -> list[int]:
        """Tokens in the target's cache at every round, and once more after the last."""
        committed = accumulate((entry.num_committed for entry in self.trace.rounds), initial=0)
        return [self.prompt_length - 1 + count for count in committed]


def decode(engine: Engine, schedule: Schedule, contexts: tuple[int, int], num_tokens: int) -> Run:
    """Decode arbitrary text whose contexts lie within the given ones.

    Raises:
        MirrorsdError: a lane or model is not to be had.
    """
    first, last = contexts
    num_tokens = min(num_tokens, last - first)
    length = min(first + 1 + (last - first) // 3, last + 1 - num_tokens)
    vocab_size = engine.config.vocab_size
    prompt = [(place + 1) * _STRIDE % vocab_size for place in range(length)]
    generation = engine.generate(schedule, prompt, max_new_tokens=num_tokens, eos_token_ids=())
    return Run(schedule=schedule, prompt_length=length, trace=generation.trace)


def level_factor(runs: Sequence[Run], lane: str, work: Work, profile: Profile) -> float | None:
    """Time of one kind of work on a lane in the runs, over what the profile predicts; None if no run has any.

    Spans of one round count together: the first step after a verification finds the cache as that left it.
    Of branches only steps of several count, since those of a single one cost what rollouts do.
    """
    works, least_rows = frozenset({work}), 2 if work is Work.BRANCH_STEP else 1
    steps = ([step for step in _expected(run, lane, works, profile) if step[0].rows >= least_rows] for run in runs)
    ratios = [ratio for ratio in map(_taken_over_expected, steps) if ratio is not None]
    return fmean(ratios) if ratios else None


def rollout_level(run: Run, table: LatencyTable) -> float | None:
    """Time of rollouts in a run over the table's time of their steps; None for a run of a single round."""
    steps = _settled_spans(run, run.schedule.draft_lane or "", frozenset({Work.ROLLOUT_STEP}))
    return _taken_over_expected((span, table.at(span.rows, context)) for span, context in steps)


def gaps_s(run: Run) -> list[float]:
    """Times between one verification and the next, in a run that does nothing else."""
    spans = [span for span, _ in _settled_spans(run, run.schedule.target_lane, _TARGET_WORK)]
    return [after.start_s - before.end_s for before, after in pairwise(spans)]


def residual(run: Run, profile: Profile) -> float | None:
    """Time of all work in a run by the profile over what it took, minus one; None for a run of a single round."""
    taken_s = expected_s = 0.0
    for lane in {run.schedule.target_lane, run.schedule.draft_lane or run.schedule.target_lane}:
        for span, seconds in _expected(run, lane, _TARGET_WORK | _DRAFT_WORK, profile):
            taken_s += span.end_s - span.start_s
            expected_s += seconds
    return expected_s / taken_s - 1 if taken_s else None


def span_seconds(schedule: Schedule, span: Span, context: int, profile: Profile) -> float:
    """Seconds of one span by the profile, while the other lane does nothing.

    Raises:
        ProfileError: its part was not measured on its lane.
        OutOfRangeError: its rows or context were not.
    """
    lane = profile.lane(span.lane)
    if span.work in _DRAFT_WORK:
        return lane.draft_s(span.rows, context, with_features=schedule.exit_features)
    if span.work is Work.VERIFY:
        return lane.verify_s(profile.num_layers, span.rows, context)
    assert schedule.exit_layer is not None, "a prefix without an exit"
    if span.work is Work.SUFFIX:
        return lane.suffix_s(profile.num_layers, schedule.exit_layer, span.rows, context)
    return lane.prefix_s(schedule.exit_layer, span.rows, context)


def _taken_over_expected(steps: Iterable[tuple[Span, float]]) -> float | None:
    """The median over rounds, given spans and the seconds they should take; None if there is no span."""
    taken, expected = defaultdict[int, float](float), defaultdict[int, float](float)
    for span, expected_s in steps:
        taken[span.round] += span.end_s - span.start_s
        expected[span.round] += expected_s
    return median(taken[place] / expected[place] for place in taken) if taken else None


def _expected(run: Run, lane: str, works: frozenset[Work], profile: Profile) -> Iterator[tuple[Span, float]]:
    """Spans of a lane, and the seconds they should take, given what the other lane did at the time."""
    schedule = run.schedule
    target, draft = profile.slowdown(schedule.target_lane, schedule.draft_lane or schedule.target_lane)
    factor = target if lane == schedule.target_lane else draft
    others = [span for span in run.trace.spans if span.lane != lane and span.work in _TARGET_WORK | _DRAFT_WORK]
    for span, context in _settled_spans(run, lane, works):
        share = _shared_s(span, others) / (span.end_s - span.start_s)
        yield span, span_seconds(schedule, span, context, profile) / (1 - share + share / factor)


def _settled_spans(run: Run, lane: str, works: frozenset[Work]) -> Iterator[tuple[Span, int]]:
    """Spans of a lane with their contexts; the first round is left out, since it wakes everything up."""
    contexts = run.contexts()
    for span in run.trace.spans:
        if span.lane == lane and span.work in works and span.round > 0:
            yield span, contexts[min(span.round, len(contexts) - 1)]


def _shared_s(span: Span, others: Sequence[Span]) -> float:
    return sum(max(0.0, min(span.end_s, other.end_s) - max(span.start_s, other.start_s)) for other in others)
