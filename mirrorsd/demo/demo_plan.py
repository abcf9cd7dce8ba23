"""Divides a demo's time into stages, and chooses the prompts to record and the schedules to run that fit into it."""

from collections.abc import Callable, Collection, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from costs.prefill import PrefillTimes
from costs.prices import Prices
from decoding.record import PromptRecord
from decoding.schedule import Schedule
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.profile import Profile
from planner.first_of_each import first_of_each
from planner.plan import Plan
from planner.search.search import Candidate
from planner.wording import kind_of

CALIBRATE: Final = "Calibrating this machine"
RECORD: Final = "Recording acceptance"
SEARCH: Final = "Searching in simulation"
RUN: Final = "Running schedules for real"
MORE: Final = "Recording more prompts"
REPORT: Final = "Writing the report"
SEARCH_S: Final = 10.0
REPORT_S: Final = 5.0
_CALIBRATION_SHARE, MOST_CALIBRATION_S = 0.45, 240.0
_RECORD_SHARE, _MORE_SHARE = 0.15, 0.15
NUM_SCHEDULES, NUM_TREES = 9, 2
"""How many schedules `pick_demo_schedules` usually picks without heads, and how many more with heads."""

FAIR_PROMPTS: Final = 2
"""Prompts that all schedules run, which shows the noise of runs; after them, schedules that have lost stop."""
WANTED_PROMPTS: Final = 4
"""Prompts that a schedule should run. Runs show the cost of a round (the record has the rounds); with fewer prompts its
interval is too wide, so fewer schedules are run instead."""
SHORT_CUT: Final = 64
"""Tokens of the first runs: enough rounds to know the cost of one. Later, the remaining schedules run whole texts."""
FIRST_PROMPTS: Final = 16
"""Prompts that are recorded with all drafters, enough to choose schedules by. For further prompts only the drafters in
the answer are recorded; prompt lookup needs only the text."""
_RECORDING_SHARE: Final = 0.4
"""Least share of the time left that is used for recording: known rounds of many prompts tell more than a few runs."""
ENOUGH_PROMPTS, _SHORTEST = 12, 32
"""To record this many prompts, texts are shortened, but not below `_SHORTEST` tokens."""
_LONG_RUNS: Final = 3
"""Runs of whole texts that recording leaves time for: one prompt, by the three schedules that usually remain."""
_LEAST_SCHEDULES: Final = 4
_AROUND_STEPS: Final = 4
"""Plain decoding steps of the anchors between two runs: two on each of two lanes."""
_DURING: Final = 1 + 1 / 3
"""Time of decoding with the anchors during it, over that without them."""
_WARM_UP_S: Final = 1.0
"""Seconds to load what a schedule needs, and to decode a few tokens."""
_SIDE_BY_SIDE: Final = 8
"""Texts that are recorded together in a batch."""
_GROWN_SHARE = 0.25
"""Share of a tree's steps that recording takes: most trees are given up early, once they do not contain the text."""


def expected_stages(time_s: float) -> dict[str, float]:
    """Return the first estimate of the seconds of every stage of a demo that takes `time_s` in all."""
    calibration_s = min(_CALIBRATION_SHARE * time_s, MOST_CALIBRATION_S)
    known = {CALIBRATE: calibration_s, RECORD: _RECORD_SHARE * time_s, SEARCH: SEARCH_S}
    left_s = max(0.0, time_s - sum(known.values()) - _MORE_SHARE * time_s - REPORT_S)
    return known | {RUN: left_s, MORE: _MORE_SHARE * time_s, REPORT: REPORT_S}


class PromptCost(NamedTuple):
    """Seconds to record one more prompt, and to run one of `num_schedules` on it, cut to `SHORT_CUT` or in full."""

    record_s: float
    short_run_s: float
    run_s: float
    num_schedules: int


def prompt_cost(
    profile: Profile,
    *,
    prompt_length: float,
    max_new_tokens: int,
    max_window: int,
    growing: Collection[str] = (),
    num_tree_steps: int = 0,
) -> PromptCost:
    """Return the estimated cost of recording a prompt, and of running every schedule on it.

    Recording decodes several texts in a batch on the fastest lane, rolls the draft out twice from every position, and
    drafts a tree from every position with each of the heads `growing`, in `num_tree_steps` steps. A run is assumed to
    be as slow as plain decoding on the slowest lane (most schedules are faster, the worst slower), plus its anchors.
    """
    fast, slow = (choose(profile.lanes, key=lambda lane: _token_s(profile, lane)) for choose in (min, max))
    step_s = _pass_s(profile, fast, _SIDE_BY_SIDE) / _SIDE_BY_SIDE
    record_s = _prefill_s(profile, fast, prompt_length) + max_new_tokens * step_s
    if fast.draft_step is not None:
        rows = prompt_length + (max_window + 1) * max_new_tokens
        record_s += 2 * rows * fast.draft_step.seconds[-1][0] / fast.draft_step.rows[-1]
    step_s = sum(fast.heads[name].seconds[-1][0] for name in growing)
    record_s += _GROWN_SHARE * max_new_tokens * num_tree_steps * step_s
    num_schedules = NUM_SCHEDULES + (NUM_TREES if fast.heads or fast.streams else 0)
    around_s, token_s = _around_s(profile, slow, prompt_length), _DURING * _token_s(profile, slow)
    short_run_s, run_s = (around_s + count * token_s for count in (min(SHORT_CUT, max_new_tokens), max_new_tokens))
    return PromptCost(record_s, short_run_s, run_s, num_schedules)


def recording_s(cost: PromptCost, left_s: float) -> float:
    """Return how many of the `left_s` seconds to record prompts for: what the runs do not need."""
    return max(_RECORDING_SHARE * left_s, left_s - _runs_s(cost))


def enough_s(cost: PromptCost) -> float:
    """Return the seconds in which `ENOUGH_PROMPTS` are recorded and the runs are made."""
    own_s = ENOUGH_PROMPTS * cost.record_s
    return min(own_s / _RECORDING_SHARE, own_s + _runs_s(cost))


def _runs_s(cost: PromptCost) -> float:
    return WANTED_PROMPTS * cost.num_schedules * cost.short_run_s + _LONG_RUNS * cost.run_s


def expected_runs_s(costs: Sequence[float]) -> float:
    """Return the seconds that runs will take, by those of each schedule for a short run, before recording pays more.

    Usually half of the schedules have lost after the first prompts.
    """
    return len(costs) * _WARM_UP_S + (FAIR_PROMPTS + WANTED_PROMPTS) / 2 * sum(costs)


def text_length(cost_of: Callable[[int], PromptCost], longest: int, left_s: float) -> tuple[int, PromptCost]:
    """Return how many tokens to cut texts to (`longest`, or half of it, and so on), and the cost of a prompt then."""
    length, cost = longest, cost_of(longest)
    while length > _SHORTEST and ENOUGH_PROMPTS * cost.record_s > recording_s(cost, left_s):
        length = max(_SHORTEST, length // 2)
        cost = cost_of(length)
    return length, cost


def most_important(candidates: Sequence[Candidate], choice: Candidate) -> list[Candidate]:
    """Order candidates by importance: the best plain one, the recommended one, the fastest of every kind, the rest."""
    by_speed = sorted(candidates, key=lambda one: one.tpot_s)
    best = first_of_each(by_speed, lambda one: kind_of(one.schedule))
    plain = [one for one in best if kind_of(one.schedule) == "plain"]
    chosen = [one for one in candidates if one.schedule == choice.schedule]
    return first_of_each((*plain, *chosen, *best, *candidates), lambda one: one.schedule)


def answering(candidates: Sequence[Candidate]) -> Candidate | None:
    """Return the drafting schedule predicted fastest, which the answer compares with plain decoding, if any."""
    draftings = [one for one in candidates if kind_of(one.schedule) != "plain"]
    return min(draftings, key=lambda one: one.tpot_s, default=None)


def run_s(candidate: Candidate, profile: Profile, prompt: PromptRecord, cut: int) -> float:
    """Return the estimated seconds of a run on a recorded prompt whose text is cut to `cut` tokens, with anchors."""
    slow = max(profile.lanes, key=lambda lane: _token_s(profile, lane))
    decode_s = min(cut, len(prompt.text)) * candidate.tpot_s
    return _DURING * decode_s + _around_s(profile, slow, prompt.prompt_length)


def short_runs_s(plan: Plan, candidates: Sequence[Candidate]) -> list[float]:
    """Return the estimated seconds of each schedule for a run on one of the first prompts, cut to `SHORT_CUT`."""
    prompts = plan.record.prompts[:WANTED_PROMPTS]
    return [fmean(run_s(one, plan.profile, prompt, SHORT_CUT) for prompt in prompts) for one in candidates]


def what_fits(costs: Sequence[float], left_s: float, num_prompts: int) -> int:
    """Return how many schedules, the most important first, can run `num_prompts` each; at least `_LEAST_SCHEDULES`."""
    least = min(_LEAST_SCHEDULES, len(costs))

    def needed_s(count: int) -> float:
        return count * _WARM_UP_S + num_prompts * sum(costs[:count])

    return next((count for count in range(len(costs), least, -1) if needed_s(count) <= left_s), least)


def _token_s(profile: Profile, lane: LaneProfile) -> float:
    return _pass_s(profile, lane, 1)


def _pass_s(profile: Profile, lane: LaneProfile, num_rows: int) -> float:
    assert lane.layer is not None
    rows = min(num_rows, lane.layer.rows[-1])
    return Prices(profile).pass_s(lane.name, rows, lane.layer.contexts[0]) + lane.dispatch_s


def _around_s(profile: Profile, lane: LaneProfile, prompt_length: float) -> float:
    """Return the seconds of a run besides decoding: prefill, and the anchors after it."""
    return _prefill_s(profile, lane, prompt_length) + _AROUND_STEPS * _token_s(profile, lane)


def _prefill_s(profile: Profile, lane: LaneProfile, prompt_length: float) -> float:
    plain = Schedule(method="autoregressive", target_lane=lane.name)
    [seconds] = PrefillTimes(profile, Prices(profile).costs).seconds(plain, [round(prompt_length)])
    return seconds
