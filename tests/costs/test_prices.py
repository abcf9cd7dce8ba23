"""The price of an operation alone on its lane: what calibration asks for is what simulation plays."""

import numpy as np
import pytest

from costs.cost_model import MeasuredCost, Part
from costs.durations import DurationTables
from costs.prices import Prices
from costs.round_plan import STARTS, RoundShape
from costs.ticks import TICK_S
from decoding.errors import OutOfRangeError, ProfileError
from decoding.schedule import MAX_WINDOW
from decoding.trace import Work
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile
from tests.sim.playing import by_rows
from tests.sim.worlds.machines import lane, machine, with_overheads
from tests.sim.worlds.records import TREES
from tests.sim.worlds.schedules import AUTOREGRESSIVE, mirror, speculative, tree

CONTEXT = 4
AT = np.array([CONTEXT], dtype=np.float64)
OVERHEADS = {"first_step": 0.5, "first_step:head": 0.75, "features": 2.5, "features:head": 3.5}


def rising(name: str) -> LaneProfile:
    """A lane whose parts take longer the more rows they have, each by its own amount, with every overhead."""
    parts = ("layer", "lm_head", "draft_step", "draft_step_features", "draft_start")
    tables = {part: by_rows(*range(10 * place, 10 * place + 40)) for place, part in enumerate(parts, 1)}
    exits = dict.fromkeys(lane(name).exit, by_rows(*range(7, 47)))
    return with_overheads(lane(name).model_copy(update=tables | {"exit": exits}), OVERHEADS)


def profile() -> Profile:
    return machine(rising("target"), rising("draft"))


@pytest.mark.parametrize(
    "schedule",
    [
        AUTOREGRESSIVE,
        speculative(3),
        speculative(3, exit_features=True),
        speculative(3, drafter="d", exit_features=True),
        mirror("draft", num_tokens=3),
        mirror("exit", num_tokens=3),
        mirror("exit", num_tokens=3, exit_features=True),
        mirror("hybrid", num_tokens=3),
        speculative(3, draft_lane="target", exit_features=True),
        tree(TREES[4], 4),
        tree(TREES[4], 4, draft_lane="target"),
        tree(TREES[5], 2),
    ],
    ids=str,
)
def test_every_operation_costs_in_a_simulation_what_calibration_compares_runs_with(schedule):
    prices, num_roots = Prices(profile()), sum(schedule.exit_roots_per_row)
    shape = RoundShape(schedule.num_rows - 1, num_roots)
    found = DurationTables(profile(), range(CONTEXT, CONTEXT + 1)).durations(schedule, shape)

    def price(work, rows, *, is_start=False):
        [seconds] = prices.operation_s(schedule, work, rows, AT, is_start=is_start)
        return pytest.approx(seconds, abs=TICK_S)

    for operation, segment_s in zip(found.plan.segments, found.segments_s, strict=True):
        assert segment_s[0] == price(operation.work, operation.rows)
    for rows, first_s in zip(found.plan.first_rows, found.catch_up_s, strict=True):
        assert first_s[0] == price(Work.ROLLOUT_STEP, rows, is_start=True)
    later_s = [price(Work.ROLLOUT_STEP, rows).expected for rows in found.plan.later_rows]
    for first_s, rollout_s in zip(found.catch_up_s, found.rollout_s, strict=True):
        assert rollout_s[0] - first_s[0] == pytest.approx(sum(later_s), abs=len(later_s) * TICK_S)
    for kind, step_s in found.step_s.items():
        work = Work.FINISH_STEP if kind == "one_row" else Work.BRANCH_STEP
        assert step_s[0] == price(work, found.plan.step_rows[kind], is_start=kind in STARTS), kind


def test_overheads_come_once_and_to_their_events_alone():
    bare = Prices(machine(*(one.model_copy(update={"overheads": {}}) for one in profile().lanes)))

    def more_s(schedule, work, rows=2, *, is_start=False):
        asked = schedule, work, rows, AT
        priced, alone = (one.operation_s(*asked, is_start=is_start)[0] for one in (Prices(profile()), bare))
        return pytest.approx(priced - alone)

    features, head = mirror("exit", exit_features=True), tree(TREES[4], 4)
    assert more_s(speculative(exit_features=True, drafter="d"), Work.VERIFY) == 2.5, "no head, by any name"
    assert more_s(features, Work.PREFIX) == 2.5
    assert more_s(head, Work.VERIFY) == 3.5
    assert more_s(speculative(), Work.VERIFY) == more_s(mirror("exit"), Work.PREFIX) == 0
    assert more_s(features, Work.SUFFIX) == more_s(AUTOREGRESSIVE, Work.VERIFY) == 0
    assert more_s(speculative(), Work.ROLLOUT_STEP, is_start=True) == 0.5
    assert more_s(head, Work.ROLLOUT_STEP, is_start=True) == 0.75
    assert more_s(speculative(), Work.ROLLOUT_STEP) == more_s(features, Work.FINISH_STEP) == 0
    for work in (Work.BRANCH_STEP, Work.FINISH_STEP):
        assert more_s(features, work, is_start=True) == more_s(mirror("draft"), work, is_start=True) == 0.5
        assert more_s(features, work) == more_s(mirror("draft"), work) == 0
    other = tree(TREES[5], 2)
    assert more_s(other, Work.VERIFY) == 0
    assert more_s(other, Work.ROLLOUT_STEP, is_start=True) == 0


def test_what_was_not_measured_is_refused_and_named():
    with pytest.raises(OutOfRangeError, match="layer on lane 'target': more than .* rows were not measured"):
        Prices(profile()).operation_s(AUTOREGRESSIVE, Work.VERIFY, 10_000, AT)
    bare = machine(LaneProfile(name="target", device="x", dispatch_s=0, layer=by_rows(1.0, 2.0)))
    with pytest.raises(ProfileError, match="lane 'target' has no measured lm_head; measured there: layer"):
        Prices(bare).operation_s(AUTOREGRESSIVE, Work.VERIFY, 1, AT)


def test_a_step_with_features_is_no_first_step_of_branches():
    measured = LatencyTable(rows=(1, 2), contexts=(0,), seconds=((1.0,), (2.0,)), source="by hand")
    lane = LaneProfile(name="one", device="x", dispatch_s=0, draft_step_features=measured)
    with pytest.raises(ProfileError, match="lane 'one' has no measured draft_start; measured there: draft_step_feat"):
        MeasuredCost(lane).seconds(Part("draft_start"), 1, AT)


@pytest.mark.parametrize(
    ("part", "rows", "option"),
    [
        (Part("draft_step"), 3, "by a larger --max-branches"),
        (Part("draft_start"), 3, "by a larger --max-branches"),
        (Part("layer"), MAX_WINDOW + 1, "by a larger --max-window"),
        (Part("layer"), MAX_WINDOW + 2, None),
        (Part("draft_step"), 0.5, None),
    ],
)
def test_the_option_is_named_that_calibrates_a_wider_grid(part, rows, option):
    measured = LatencyTable(rows=(1, 2), contexts=(0,), seconds=((1.0,), (2.0,)), source="by hand")
    tables = dict.fromkeys(("layer", "draft_step", "draft_start"), measured)
    missing = MeasuredCost(LaneProfile(name="one", device="x", dispatch_s=0, **tables)).missing(part, rows, AT)
    assert missing is not None
    told = f"; calibrate's is wider {option}" if option else ""
    assert missing.partition("; calibrate or import a wider grid")[2] == told
