"""A faster part makes its own work faster and nothing else."""

import pytest

from decoding.schedule import Schedule
from hwprofiles.lane_profile import PARTS
from hwprofiles.profile import LatencyTable
from planner.what_if.scaled_profile import with_speed
from sim.evaluator import predict
from tests.planner.synthetic import EXIT_MIRROR, TREES, acceptance_record, machine, table
from tests.sim.worlds.machines import with_overheads

SYNCHRONOUS = Schedule(
    method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=3, drafter="four-layer"
)


@pytest.fixture(scope="module")
def record():
    return acceptance_record(num_prompts=2)


@pytest.mark.parametrize(("part", "name"), [("target", "target_verify"), ("draft", "draft")])
def test_only_that_part_of_the_time_shrinks(record, part, name):
    before = predict(SYNCHRONOUS, machine(), record).bottlenecks._asdict()
    after = predict(SYNCHRONOUS, with_speed(machine(), part, 2.0), record).bottlenecks._asdict()
    assert after.pop(name) == pytest.approx(before.pop(name) / 2)
    assert after == pytest.approx(before)


def test_overheads_belong_to_whoever_does_the_work(record):
    seconds = {"rollout_start": 3e-3, "rollout_start:eagle-3": 2e-3, "branch_step": 1e-3}
    seconds |= {"features": 4e-3}
    lanes = tuple(with_overheads(lane, seconds | {"draft_round": 5e-3}) for lane in machine().lanes)
    profile = machine().model_copy(update={"lanes": lanes})
    before = predict(SYNCHRONOUS, profile, record).bottlenecks._asdict()
    after = predict(SYNCHRONOUS, with_speed(profile, "draft", 2.0), record).bottlenecks._asdict()
    assert before["draft"] > predict(SYNCHRONOUS, machine(), record).bottlenecks.draft
    assert after.pop("draft") == pytest.approx(before.pop("draft") / 2)
    assert after == pytest.approx(before)
    halved = {
        "draft": {"rollout_start", "rollout_start:eagle-3", "branch_step"},
        "target": {"features"},
        "link": set(),
    }
    for part, keys in halved.items():
        for lane in with_speed(profile, part, 2.0).lanes:
            assert {key for key, one in lane.overheads.items() if one.seconds == seconds.get(key, 5e-3) / 2} == keys


@pytest.mark.parametrize(
    "drafting",
    [
        {"method": "eagle3", "draft_lane": "both", "drafter": "eagle-3", "tree_top_k": 4, "num_speculative_tokens": 4},
        {"method": "speculative_streaming", "drafter": "streams", "num_speculative_tokens": 3},
    ],
)
def test_heads_and_streams_are_the_draft(drafting):
    record = acceptance_record(num_prompts=2, trees=TREES)
    schedule = Schedule(target_lane="both", tree_size=8, **drafting)
    before = predict(schedule, machine(), record).bottlenecks._asdict()
    after = predict(schedule, with_speed(machine(), "draft", 2.0), record).bottlenecks._asdict()
    assert after.pop("draft") == pytest.approx(before.pop("draft") / 2)
    assert after == pytest.approx(before)


def reading_machine():
    """A machine on which the target reads a prompt in 5 s, the draft in 3 s, a head in 2 s."""
    read = {
        "prefill": table(5.0, row_growth=0),
        "draft_prefill": table(3.0, row_growth=0),
        "head_prefill": {"eagle-3": table(2.0, row_growth=0)},
    }
    profile = machine()
    return profile.model_copy(update={"lanes": tuple(lane.model_copy(update=read) for lane in profile.lanes)})


@pytest.mark.parametrize(
    "drafting",
    [
        {"method": "speculative", "num_speculative_tokens": 3, "drafter": "four-layer"},
        {"method": "eagle3", "drafter": "eagle-3", "tree_top_k": 4, "num_speculative_tokens": 4, "tree_size": 8},
    ],
)
def test_prompts_are_read_faster_too(drafting):
    profile, record = reading_machine(), acceptance_record(num_prompts=2, trees=TREES)
    schedule = Schedule(target_lane="both", draft_lane="both", **drafting)  # one lane: one reads after the other
    prompts_s = {
        part: predict(schedule, with_speed(profile, part, 2.0), record).prefill_s for part in ("target", "draft")
    }
    now_s = predict(schedule, profile, record).prefill_s
    dispatch_s = profile.lane("both").dispatch_s * (2 if schedule.reads_features else 1)
    assert now_s - prompts_s["target"] == pytest.approx(5 / 2, rel=0.01)
    assert prompts_s["target"] + prompts_s["draft"] - now_s == pytest.approx((now_s + dispatch_s) / 2)


def test_every_table_of_a_lane_belongs_to_one_of_both():
    profile = reading_machine()
    own = profile.lanes[0]
    faster = [with_speed(profile, part, 2.0).lanes[0] for part in ("target", "draft")]
    for part in PARTS:
        tables = [getattr(lane, part) for lane in (own, *faster)]
        if not isinstance(tables[0], LatencyTable | None):
            tables = [next(iter(one.values())) for one in tables]
        if tables[0] is not None:
            times = [one.at(1, 0) for one in tables]
            assert sorted(times[1:]) == pytest.approx([times[0] / 2, times[0]]), part


def test_a_link_gets_both_quicker_and_wider():
    link = with_speed(machine(), "link", 2.0).links[0]
    assert (link.latency_s, link.bytes_per_s) == (pytest.approx(2.5e-5), pytest.approx(4e9))


@pytest.mark.parametrize("part", ["target", "draft", "link"])
def test_a_slower_part_never_helps(record, part):
    now = predict(EXIT_MIRROR, machine(), record).tpot_s
    assert predict(EXIT_MIRROR, with_speed(machine(), part, 0.5), record).tpot_s >= now
