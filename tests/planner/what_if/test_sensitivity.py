"""What would have to change: sweeps, ties found by bisection, and gains."""

import pytest

from decoding.schedule import Schedule
from hwprofiles.lane_profile import PARTS
from hwprofiles.latency_table import LatencyTable
from planner.search.search import search
from planner.search.space import SearchSpace
from planner.what_if.mixed_record import Mixing
from planner.what_if.sensitivity import (
    ACCEPTANCES,
    DRAFT_SPEEDS,
    NUM_DRAWS,
    analyse,
    best_by_kind,
    shortlist,
    with_speed,
)
from sim.evaluator import Evaluator, predict
from tests.planner.synthetic import (
    EXIT_MIRROR,
    TREES,
    acceptance_record,
    coarse_sweeps,
    machine,
    table,
    with_equal_texts,
)
from tests.sim.worlds.machines import with_overheads

SMALL = SearchSpace(windows=(1, 2, 4), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())


@pytest.fixture(scope="module")
def result():
    return search(SMALL, machine(), acceptance_record())


@pytest.fixture(scope="module")
def found(result):
    return analyse(result, machine(), acceptance_record())


def test_the_shortlist_holds_the_best_of_every_kind(result):
    schedules = shortlist(result)
    best = [result.best(method="mirror", root_source=source) for source in ("exit", "draft", "hybrid")]
    assert {one.schedule for one in (result.winner, *best)} <= set(schedules)
    assert len(schedules) < len(result.candidates)


def test_all_trees_move_as_one_kind():
    space = SMALL.model_copy(update={"methods": ("autoregressive", "medusa", "eagle3"), "tree_sizes": (4, 8)})
    record = acceptance_record(trees=TREES)
    result = search(space, machine(), record)
    assert {schedule.tree_size for schedule in shortlist(result)} == {0, 4, 8}
    found = analyse(result, machine(), record)
    for one in found.sweeps:
        assert set(one.best_tpot_s) == {"plain", "tree"}
        times_s = one.best_tpot_s["tree"]
        assert times_s[one.values.index(one.now)] == pytest.approx(result.best(kind="tree").tpot_s)
        assert list(times_s) == sorted(times_s, reverse=True), "better and faster drafts never slow a tree"
    assert found.sweeps[0].break_evens["plain"].at < found.sweeps[0].now


def test_sweeps_hold_today_and_agree_with_the_search_there(result, found):
    acceptance, draft_speed = found.sweeps
    assert set(acceptance.values) == {*ACCEPTANCES, acceptance.now}
    assert set(draft_speed.values) == {*DRAFT_SPEEDS, 1.0}
    for one in found.sweeps:
        here = one.values.index(one.now)
        for kind, times_s in one.best_tpot_s.items():
            assert times_s[here] == pytest.approx(result.best(kind=kind).tpot_s)


def test_a_better_draft_never_slows_the_best_synchronous_schedule_and_plain_decoding_does_not_care(found):
    for one in found.sweeps:
        times_s = one.best_tpot_s["synchronous"]
        assert list(times_s) == sorted(times_s, reverse=True)
        assert len(set(one.best_tpot_s["plain"])) == 1
        assert "synchronous" not in one.break_evens, "the fastest of today is not asked"


def test_further_texts_of_a_prompt_make_no_break_even_more_certain():
    record = acceptance_record(num_prompts=5)
    with coarse_sweeps():
        once, again = (
            analyse(search(SMALL, machine(), one), machine(), one).sweeps[1].break_evens
            for one in (record, with_equal_texts(record, 3))
        )
    assert once
    assert {kind: pytest.approx(found) for kind, found in once.items()} == again
    assert all(found.low < found.high for found in once.values())


def test_plain_decoding_leads_below_its_break_even_and_not_above():
    record = acceptance_record(num_prompts=3)
    result = search(SMALL, machine(), record)
    acceptance = analyse(result, machine(), record).sweeps[0]
    plain = acceptance.break_evens["plain"]
    assert 0 < plain.at < acceptance.now, "speculation pays on this machine, until acceptance falls"

    def leads(value, seed):
        there = Evaluator(machine(), Mixing(record).at(value, seed=seed))
        times_s = best_by_kind(shortlist(result), there)
        return min(times_s, key=lambda kind: times_s[kind][0]) == "plain"

    seeds = range(NUM_DRAWS)
    assert sum(leads(plain.low, seed) for seed in seeds) >= 0.75 * NUM_DRAWS
    assert 0.25 * NUM_DRAWS <= sum(leads(plain.at, seed) for seed in seeds) <= 0.75 * NUM_DRAWS
    assert sum(leads(plain.high, seed) for seed in seeds) <= 0.25 * NUM_DRAWS


def test_faster_parts_gain_what_they_can_at_most(found):
    gains = found.gains
    assert set(gains) == {"target", "draft", "link"}
    assert all(-1e-9 <= gain <= 0.1 for gain in gains.values())
    assert gains["target"] > gains["draft"] > 0


def test_without_drafting_nothing_is_swept():
    result = search(SearchSpace(methods=("autoregressive",)), machine(), acceptance_record())
    sweeps, gains = analyse(result, machine(), acceptance_record())
    assert (sweeps, len(gains)) == ((), 3)


def test_of_few_prompts_only_the_tokens_are_drawn():
    record = acceptance_record(num_prompts=3)
    acceptance, draft_speed = analyse(search(SMALL, machine(), record), machine(), record).sweeps
    assert acceptance.break_evens["plain"].low < acceptance.break_evens["plain"].high
    assert draft_speed.break_evens["plain"].low == draft_speed.break_evens["plain"].high


def test_only_kinds_that_are_asked_for_have_break_evens(result, found):
    asked = analyse(result, machine(), acceptance_record(), ("mirror",))
    assert all(set(one.break_evens) <= {"mirror"} for one in asked.sweeps)
    assert any("plain" in one.break_evens for one in found.sweeps)
    assert [one.best_tpot_s for one in asked.sweeps] == [one.best_tpot_s for one in found.sweeps]


@pytest.mark.parametrize(
    ("known", "speed", "trees"),
    # A tree or synchronous speculation would pass here as all drafters become worse.
    [(0.9, 1.3, TREES[4:]), (0.75, 1.2, ())],
)
def test_a_worse_draft_lets_only_those_win_that_do_not_use_it(known, speed, trees):
    record = acceptance_record(num_prompts=3, acceptance=known, trees=trees)
    profile = machine(pooled_speed=speed, draft_step_s=0.012 if known == 0.75 else 0.006)
    with coarse_sweeps():
        acceptance, draft_speed = analyse(search(SMALL, profile, record), profile, record).sweeps
    assert {kind for kind, one in acceptance.break_evens.items() if one.at < acceptance.now} <= {"plain"}
    assert {kind for kind, one in draft_speed.break_evens.items() if one.at < 1} <= {"plain", "lookup", "mirror"}
    assert "plain" not in {kind for kind, one in acceptance.break_evens.items() if one.at > acceptance.now}


SYNCHRONOUS = Schedule(
    method="speculative", target_lane="target", draft_lane="draft", num_speculative_tokens=3, drafter="four-layer"
)


@pytest.fixture(scope="module")
def record():
    return acceptance_record(num_prompts=2)


def require_only_halved(schedule, profile, record, part, name):
    before = predict(schedule, profile, record).bottlenecks._asdict()
    after = predict(schedule, with_speed(profile, part, 2.0), record).bottlenecks._asdict()
    assert after.pop(name) == pytest.approx(before.pop(name) / 2)
    assert after == pytest.approx(before)


@pytest.mark.parametrize(("part", "name"), [("target", "target_verify"), ("draft", "draft")])
def test_only_that_part_of_the_time_shrinks(record, part, name):
    require_only_halved(SYNCHRONOUS, machine(), record, part, name)


def test_overheads_belong_to_whoever_does_the_work(record):
    seconds = {"first_step": 3e-3, "first_step:eagle-3": 2e-3}
    seconds |= {"features": 4e-3, "exit": 6e-3}
    lanes = tuple(with_overheads(lane, seconds) for lane in machine().lanes)
    profile = machine().model_copy(update={"lanes": lanes})
    drafting_s = [predict(SYNCHRONOUS, one, record).bottlenecks.draft for one in (profile, machine())]
    assert drafting_s[0] > drafting_s[1]
    require_only_halved(SYNCHRONOUS, profile, record, "draft", "draft")
    halved = {"draft": {"first_step", "first_step:eagle-3"}, "target": {"exit", "features"}, "link": set()}
    for part, keys in halved.items():
        for lane in with_speed(profile, part, 2.0).lanes:
            assert {key for key, one in lane.overheads.items() if one.seconds == seconds[key] / 2} == keys


def reading_machine():
    """A machine on which the target reads a prompt in 5 s, the draft in 3 s, a head in 2 s."""
    read = {
        "prefill": table(5.0, row_growth=0),
        "draft_prefill": table(3.0, row_growth=0),
        "head_prefill": {"eagle-3": table(2.0, row_growth=0)},
        "draft_start": table(1.0),
        "draft_reads": table(1.0),
    }
    profile = machine()
    return profile.model_copy(update={"lanes": tuple(lane.model_copy(update=read) for lane in profile.lanes)})


def test_every_table_of_a_lane_belongs_to_one_of_both():
    profile = reading_machine()
    own = profile.lanes[0]
    faster = [with_speed(profile, part, 2.0).lanes[0] for part in ("target", "draft")]
    for part in PARTS:
        tables = [getattr(lane, part) for lane in (own, *faster)]
        if not isinstance(tables[0], LatencyTable | None):
            tables = [next(iter(one.values())) for one in tables]
        now, *by_part = (one.at(1, 0) for one in tables)
        expected = (now / 2, now) if part in ("layer", "lm_head", "exit", "prefill") else (now, now / 2)
        assert by_part == pytest.approx(expected), part


@pytest.mark.parametrize("part", ["target", "draft", "link"])
def test_a_slower_part_never_helps_and_a_link_gets_both_quicker_and_wider(record, part):
    now = predict(EXIT_MIRROR, machine(), record).tpot_s
    assert predict(EXIT_MIRROR, with_speed(machine(), part, 0.5), record).tpot_s >= now
    link = with_speed(machine(), "link", 2.0).links[0]
    assert (link.latency_s, link.bytes_per_s) == pytest.approx((2.5e-5, 4e9))
