"""Short decodings of arbitrary text: what parts cost in a real run, compared with the profile.

Parts measured in a loop meet warm caches and a lane that does nothing else. Decoding alternates models and waits
for messages. Some of the runs here set the level of the tables, others check what comes out. None of them is a run
that anybody will ask a prediction for. Every one is made between anchors of its lanes, and compared at their speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import fmean

from calibrate.fitting.ratios import Ratio
from calibrate.profiling.anchors import Anchors
from calibrate.profiling.run_anchors import RunAnchors, decode_with_anchors
from calibrate.profiling.samples import Run
from decoding.schedule import Schedule
from decoding.trace import Span, Trace, Work
from hwprofiles.profile import LaneProfile, Profile
from runtime.engine import Engine
from runtime.lanes.sequence_lanes import Listener

TARGET_WORK = frozenset({Work.VERIFY, Work.PREFIX, Work.SUFFIX, Work.STREAM})
DRAFT_WORK = frozenset({Work.ROLLOUT_STEP, Work.BRANCH_STEP, Work.FINISH_STEP})
_BRANCHING = frozenset({Work.BRANCH_STEP})
_IN_A_ROW = frozenset({Work.ROLLOUT_STEP, Work.FINISH_STEP})
_LEAST_FIRST = 0.1
"""Of a step: nothing takes less, and levels are ratios, which are above zero."""
_STRIDE = 7919
"""Prime, so that the ids of the text visit the whole vocabulary."""


def decode(
    engine: Engine,
    anchors: Anchors,
    schedule: Schedule,
    contexts: tuple[int, int],
    num_tokens: int,
    *,
    is_check: bool = False,
) -> Run:
    """Decode arbitrary text whose contexts lie within the given ones, with anchors before, in between and after.

    Raises:
        MirrorsdError: a lane or model is not to be had.
    """
    first, last = contexts
    num_tokens = min(num_tokens, last - first)
    length = min(first + 1 + (last - first) // 3, last + 1 - num_tokens)
    vocab_size = engine.config.vocab_size
    prompt = [(place + 1) * _STRIDE % vocab_size for place in range(length)]

    def generate(listener: Listener) -> Trace:
        made = engine.generate(schedule, prompt, max_new_tokens=num_tokens, eos_token_ids=(), listener=listener)
        return made.trace

    at_s = anchors.now_s
    trace, taken = decode_with_anchors(anchors, schedule, generate)
    return Run(schedule, length, trace, taken, is_check=is_check, at_s=at_s)


def level(run: Run, lane: str, works: Collection[Work], profile: Profile) -> Ratio | None:
    """Time of some kinds of work on a lane in a run, over what the profile has for it at the speed of the anchors.

    None if there is none.
    """
    steps = list(_expected(run, lane, works, profile))
    expected_s = sum(seconds for _, seconds in steps)
    if not expected_s:
        return None
    seconds, own = sum(span.end_s - span.start_s for span, _ in steps), profile.lane(lane).step_anchor
    if own is not None and len(run.anchors.steps) > 1 and DRAFT_WORK.issuperset(works):
        return run.against_steps(seconds).over(expected_s / own.seconds)
    return run.against_anchors(lane, seconds).over(expected_s / _anchor_s(profile, lane))


def draft_over_target(run: Run, profile: Profile) -> list[float]:
    """Of every round of a run in which both lanes work at once: what steps of branches took, next to the target's pass.

    Both over what the profile has for them; but for the first round, and for ones without any such step.
    """
    paces = []
    for lane, works in ((run.schedule.draft_lane, _BRANCHING), (run.schedule.target_lane, TARGET_WORK)):
        spans = list(_expected(run, lane, works, profile)) if lane is not None else []
        taken, expected = defaultdict[int, float](float), defaultdict[int, float](float)
        for span, seconds in spans:
            taken[span.round] += span.end_s - span.start_s
            expected[span.round] += seconds
        paces.append({number: taken[number] / seconds for number, seconds in expected.items()})
    draft, target = paces
    return [pace / target[number] for number, pace in draft.items() if number in target]


def alone_s(run: Run, lane: str, works: Collection[Work], profile: Profile) -> list[float]:
    """What the profile has for every span of some kinds of work on a lane in a run, while other lanes do nothing."""
    settled = _settled_spans(run, lane, works)
    return [span_seconds(run.schedule, span, context, profile) for span, context in settled]


def whole(run: Run, profile: Profile) -> tuple[Ratio, dict[str, float]] | None:
    """`level` of all work of a run, and the shares of its expected time by lane and model.

    None for a single round, and for streams that were left out. Shares have keys such as `target cpu0` and
    `draft cpu1`.
    """
    if run.schedule.traits.drafts_itself and run.schedule.drafter not in profile.lane(run.schedule.target_lane).streams:
        return None
    parts = dict[str, tuple[Ratio, float]]()
    for role, lane, works in _roles(run.schedule):
        found = level(run, lane, works, profile)
        if found is not None:
            parts[f"{role} {lane}"] = found, sum(seconds for _, seconds in _expected(run, lane, works, profile))
    total_s = sum(seconds for _, seconds in parts.values())
    if not total_s:
        return None
    value = sum(ratio.value * seconds for ratio, seconds in parts.values()) / total_s
    doubt = sum(ratio.doubt * seconds for ratio, seconds in parts.values()) / total_s
    return Ratio(value, doubt), {name: seconds / total_s for name, (_, seconds) in parts.items()}


def compare(runs: Iterable[Run], profile: Profile) -> dict[Schedule, list[tuple[Ratio, dict[str, float]]]]:
    """`whole` of all runs by their schedules; those without any are left out."""
    found = defaultdict[Schedule, list[tuple[Ratio, dict[str, float]]]](list)
    for run in runs:
        compared = whole(run, profile)
        if compared is not None:
            found[run.schedule].append(compared)
    return found


def gaps_s(run: Run) -> list[float]:
    """Times between one verification and the next, in a run that does nothing else."""
    spans = [span for span, _ in _settled_spans(run, run.schedule.target_lane, TARGET_WORK)]
    return [after.start_s - before.end_s for before, after in pairwise(spans)]


def first_step(run: Run, lane: str, profile: Profile, step_s: float) -> Ratio | None:
    """The first steps of a run's rollouts on a lane, at the pace of its later ones: 1 + what they take more / `step_s`.

    Both are compared with the profile, so their rows may differ. None for rollouts of one step each, and for none.
    """
    starts, steps = _rollout_starts(run.trace), list(_expected(run, lane, (Work.ROLLOUT_STEP,), profile))
    later = [step for step in steps if step[0].start_s not in starts]
    if not later or len(later) == len(steps):
        return None
    pace = sum(span.end_s - span.start_s for span, _ in later) / sum(expected_s for _, expected_s in later)
    more_s = [(span.end_s - span.start_s) / pace - expected_s for span, expected_s in steps if span.start_s in starts]
    return Ratio(max(_LEAST_FIRST, 1 + fmean(more_s) / step_s), run.against_anchors(lane, step_s).doubt)


def resized_step(run: Run, lane: str, profile: Profile, step_s: float) -> Ratio | None:
    """Steps of a draft model after ones of other rows, at the pace of those after as many: like `first_step`.

    None for a run that has not both.
    """
    starts, resized = _rollout_starts(run.trace), _resized(run.trace)
    steps = [step for step in _expected(run, lane, _IN_A_ROW, profile) if step[0].start_s not in starts]
    after_others = [step for step in steps if step[0].start_s in resized]
    if not after_others or len(after_others) == len(steps):
        return None
    alike = [step for step in steps if step[0].start_s not in resized]
    pace = sum(span.end_s - span.start_s for span, _ in alike) / sum(expected_s for _, expected_s in alike)
    more_s = [(span.end_s - span.start_s) / pace - expected_s for span, expected_s in after_others]
    return Ratio(max(_LEAST_FIRST, 1 + fmean(more_s) / step_s), run.against_anchors(lane, step_s).doubt)


def span_seconds(
    schedule: Schedule,
    span: Span,
    context: int,
    profile: Profile,
    *,
    starts_rollout: bool = False,
    is_resized: bool = False,
) -> float:
    """Seconds of one span by the profile, while the other lane does nothing.

    Raises:
        ProfileError: its part was not measured on its lane.
        OutOfRangeError: its rows or context were not.
    """
    lane = profile.lane(span.lane)
    if span.work in DRAFT_WORK:
        head = None if schedule.traits.has_draft_model else schedule.drafter or ""
        wake_s = lane.rollout_wake_s(head) if starts_rollout else 0.0
        if span.work is Work.BRANCH_STEP:
            wake_s = lane.branch_wake_s + (lane.start_wake_s if starts_branches(schedule, span) else 0.0)
        elif is_resized and head is None:
            wake_s += lane.resize_s
        if head is None:
            return _draft_seconds(schedule, span, context, lane) + wake_s
        return lane.heads[head].at(span.rows, context) + wake_s
    wake_s = lane.wake_s if schedule.draft_lane not in (None, schedule.target_lane) else 0.0
    if schedule.reads_features:
        wake_s += profile.features_s(lane.name, schedule.drafter)
    verify_s = lane.verify_s(profile.num_layers, span.rows, context)
    if span.work is Work.VERIFY:
        return verify_s + wake_s
    if span.work is Work.STREAM:
        return verify_s + lane.streams[schedule.drafter or ""].at(span.rows, context)
    assert schedule.exit_layer is not None, "a prefix without an exit"
    if span.work is Work.SUFFIX:
        return lane.suffix_s(profile.num_layers, schedule.exit_layer, span.rows, context)
    return lane.prefix_s(schedule.exit_layer, span.rows, context) + wake_s


def slowdowns_in(anchors: RunAnchors, schedule: Schedule, profile: Profile) -> tuple[float, float]:
    """What target and draft cost each other in a run: as calibrated, times what its anchors at once say has changed."""
    pair = schedule.target_lane, schedule.draft_lane or schedule.target_lane
    known, now, then = profile.slowdown(*pair), anchors.slowdown(schedule), profile.anchor_slowdown(*pair)
    if now is None or then is None:
        return known
    return known[0] * now[0] / then[0], known[1] * now[1] / then[1]


def starts_branches(schedule: Schedule, span: Span) -> bool:
    """Whether a step of branches reads the window with features too: then it has more rows than there are roots."""
    is_branching = span.work is Work.BRANCH_STEP and schedule.exit_features
    return is_branching and span.rows > sum(schedule.exit_roots_per_row)


def outside_s(run: Run) -> list[float]:
    """What rounds took outside of lanes, for a run in which target and draft take turns; but for the first."""
    inside = defaultdict[int, float](float)
    for span in run.trace.spans:
        inside[span.round] += span.end_s - span.start_s
    ends = [one.end_s for one in run.trace.rounds]
    return [end_s - start_s - inside[number] for number, (start_s, end_s) in enumerate(pairwise(ends), 1)]


def _draft_seconds(schedule: Schedule, span: Span, context: int, lane: LaneProfile) -> float:
    """A step of a draft model: of a text, or of branches, the first of which with features reads the window too."""
    if span.work is not Work.BRANCH_STEP:
        return lane.draft_s(span.rows, context, with_features=schedule.exit_features)
    if starts_branches(schedule, span):
        return lane.start_s(span.rows, context)
    return lane.draft_s(span.rows, context)


def _roles(schedule: Schedule) -> Iterator[tuple[str, str, frozenset[Work]]]:
    yield "target", schedule.target_lane, TARGET_WORK
    if schedule.draft_lane is not None:
        yield "draft", schedule.draft_lane, DRAFT_WORK


def _expected(run: Run, lane: str, works: Collection[Work], profile: Profile) -> Iterator[tuple[Span, float]]:
    """Spans of a lane, and the seconds they should take, given what the other lane did at the time."""
    schedule = run.schedule
    factor = slowdowns_in(run.anchors, schedule, profile)[0 if lane == schedule.target_lane else 1]
    others = [span for span in run.trace.spans if span.lane != lane and span.work in TARGET_WORK | DRAFT_WORK]
    starts, resized = _rollout_starts(run.trace), _resized(run.trace)
    for span, context in _settled_spans(run, lane, works):
        share = _shared_s(span, others) / (span.end_s - span.start_s)
        alone_s = span_seconds(
            schedule, span, context, profile, starts_rollout=span.start_s in starts, is_resized=span.start_s in resized
        )
        yield span, alone_s / (1 - share + share / factor)


def _settled_spans(run: Run, lane: str, works: Collection[Work]) -> Iterator[tuple[Span, int]]:
    """Spans of a lane with their contexts; the first round is left out, since it wakes everything up."""
    contexts = run.contexts()
    for span in run.trace.spans:
        if span.lane == lane and span.work in works and span.round > 0:
            yield span, contexts[min(span.round, len(contexts) - 1)]


def _rollout_starts(trace: Trace) -> set[float]:
    """When the first step of every rollout began."""
    starts: dict[int, float] = {}
    for span in trace.spans:
        if span.work is Work.ROLLOUT_STEP:
            starts.setdefault(span.round, span.start_s)
    return set(starts.values())


def _resized(trace: Trace) -> set[float]:
    """When steps of rollouts and of finishing began that follow ones of other rows; a rollout's first is none."""
    starts, resized = _rollout_starts(trace), set[float]()
    drafting = [span for span in trace.spans if span.work in DRAFT_WORK]
    for before, span in pairwise(sorted(drafting, key=lambda one: one.start_s)):
        if span.work in _IN_A_ROW and span.start_s not in starts and span.rows != before.rows:
            resized.add(span.start_s)
    return resized


def _shared_s(span: Span, others: Sequence[Span]) -> float:
    return sum(max(0.0, min(span.end_s, other.end_s) - max(span.start_s, other.start_s)) for other in others)


def _anchor_s(profile: Profile, lane: str) -> float:
    anchor = profile.lane(lane).anchor
    assert anchor is not None, "a calibration without anchors"
    return anchor.seconds
