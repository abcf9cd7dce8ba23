"""What two lanes cost each other is a state of the machine: where it has changed since calibration, that is said."""

from dataclasses import replace

import pytest

from calibrate.profiling.run_anchors import RunAnchors
from decoding.schedule import Schedule
from hwprofiles.profile import Contention
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.outcome import changed_slowdowns
from mirrorsd.compare.runs import Measured
from planner.plan import make_plan
from planner.search.search import rank
from planner.search.space import SearchSpace
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.planner.synthetic import DRAFT_MIRROR, acceptance_record, machine

SPACE = SearchSpace(windows=(2, 3), uneven_roots=())
PLAIN = Schedule(method="autoregressive", target_lane="target")


def sentences(then, *now):
    """Of runs whose anchors at once took so many times those alone, on a machine where that was `then` before."""
    record = acceptance_record(num_prompts=max(1, len(now)), num_tokens=20)
    entry = Contention(lanes=("target", "draft"), slowdown=(1.0, 1.0), anchor_slowdown=then, source="a test")
    profile = machine().model_copy(update={"contention": (entry,)})
    plan = make_plan(SPACE, profile, record)
    candidates = rank([PLAIN, DRAFT_MIRROR], profile, record).candidates
    plain, mirror = made_up_runs([PLAIN, DRAFT_MIRROR], profile, record).runs
    taken = [RunAnchors({"target": (2.0,), "draft": (3.0,)}, ((2.0 * one, 3.0 * other),)) for one, other in now]
    if taken:
        mirror = tuple(replace(run, anchors=own) for run, own in zip(mirror, taken, strict=True))
    rows = {PLAIN: plain, DRAFT_MIRROR: mirror}
    measured = Measured(runs=tuple(rows[candidate.schedule] for candidate in candidates))
    return list(changed_slowdowns(judge_runs(candidates, measured, plan), profile))


def test_a_change_is_said_with_both_numbers():
    (found,) = sentences((1.0, 1.1), (1.5, 1.6), (1.7, 1.6))
    assert found.startswith("target and draft slowed each other by 1.60× and 1.60× in the runs, by 1× and 1.10× in ")


@pytest.mark.parametrize("now", [[(1.05, 1.15)], [(1.0, 1.0), (1.0, 1.3)], []])
def test_nothing_is_said_of_what_stayed_nearly_as_it_was_or_of_what_nobody_looked_at(now):
    assert sentences((1.0, 1.1), *now) == []


def test_nothing_is_said_where_calibration_did_not_look():
    assert sentences(None, (1.6, 1.6)) == []
