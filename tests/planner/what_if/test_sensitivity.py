"""What would have to change: sweeps, ties found by bisection, and gains."""

import pytest

from planner.search.search import search
from planner.search.space import SearchSpace
from planner.what_if.sensitivity import ACCEPTANCES, DRAFT_SPEEDS, analyse, best_times, shortlist, sweep
from tests.planner.synthetic import TREES, acceptance_record, machine

SMALL = SearchSpace(windows=(1, 2, 4), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())
GRID = (0.1, 0.3, 0.5, 0.7, 0.9)


def ties(ask, *, now=0.5):
    return sweep("acceptance", ask, now=now, grid=GRID).ties


def test_a_tie_is_found_between_the_values_of_the_sweep():
    found = ties(lambda x: {"synchronous": 1 - x, "plain": 0.63})
    assert found == {"plain": pytest.approx(0.37, abs=0.2 / 2**6)}


def test_the_nearer_of_two_ties_counts():
    # Mirror leads below 0.4 and above 0.8.
    found = ties(lambda x: {"synchronous": 1.0, "mirror": 1.0 + min(x - 0.41, 0.79 - x)})
    assert found["mirror"] == pytest.approx(0.41, abs=0.01)


def test_a_kind_that_passes_the_winner_but_not_a_third_does_not_lead():
    found = ties(lambda x: {"synchronous": x, "mirror": 0.8, "plain": 0.7})
    assert found["plain"] == pytest.approx(0.7, abs=0.01)
    assert found["mirror"] is None


def test_a_kind_that_never_leads_has_no_tie():
    assert ties(lambda x: {"synchronous": 1.0, "mirror": 2.0}) == {"mirror": None}


def test_from_zero_on_a_tie_is_still_found():
    found = ties(lambda x: {"speculative": 1 - x, "autoregressive": 0.63}, now=0.0)
    assert found == {"speculative": pytest.approx(0.37, abs=0.2 / 2**6)}


@pytest.fixture(scope="module")
def result():
    return search(SMALL, machine(), acceptance_record())


@pytest.fixture(scope="module")
def found(result):
    return analyse(result, machine(), acceptance_record())


def test_the_shortlist_holds_the_best_of_every_kind(result):
    schedules = shortlist(result)
    assert result.winner.schedule in schedules
    for source in ("exit", "draft", "hybrid"):
        assert result.best(method="mirror", root_source=source).schedule in schedules
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
    assert found.sweeps[0].ties["plain"] < found.sweeps[0].now


def test_sweeps_hold_today_and_agree_with_the_search_there(result, found):
    acceptance, draft_speed = found.sweeps
    assert set(acceptance.values) == {*ACCEPTANCES, acceptance.now}
    assert set(draft_speed.values) == {*DRAFT_SPEEDS, 1.0}
    for one in found.sweeps:
        here = one.values.index(one.now)
        for kind, times_s in one.best_tpot_s.items():
            assert times_s[here] == pytest.approx(result.best(kind=kind).tpot_s)


def test_plain_decoding_does_not_care_for_the_draft(found):
    for one in found.sweeps:
        assert len(set(one.best_tpot_s["plain"])) == 1


def test_a_better_draft_never_slows_the_best_synchronous_schedule(found):
    for one in found.sweeps:
        times_s = one.best_tpot_s["synchronous"]
        assert list(times_s) == sorted(times_s, reverse=True)


def test_ties_really_are_ties(result, found):
    schedules = shortlist(result)
    tie = found.sweeps[0].ties["plain"]
    assert 0 < tie < found.sweeps[0].now, "speculation pays on this machine, until acceptance falls"
    from planner.what_if.mixed_record import with_acceptance

    times_s = best_times(schedules, machine(), with_acceptance(acceptance_record(), tie))
    others = min(time_s for method, time_s in times_s.items() if method != "plain")
    assert others == pytest.approx(times_s["plain"], rel=0.02)


def test_faster_parts_gain_what_they_can_at_most(found):
    gains = found.gains
    assert set(gains) == {"target", "draft", "link"}
    assert all(-1e-9 <= gain <= 0.1 for gain in gains.values())
    assert gains["target"] > gains["draft"] > 0


def test_without_drafting_nothing_is_swept():
    result = search(SearchSpace(methods=("autoregressive",)), machine(), acceptance_record())
    found = analyse(result, machine(), acceptance_record())
    assert found.sweeps == ()
    assert len(found.gains) == 3


def test_the_fastest_kind_of_today_is_not_asked(found):
    assert "synchronous" not in found.sweeps[0].ties
