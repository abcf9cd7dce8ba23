"""Bounds in closed form, and no simulated schedule beyond them."""

import pytest

from decoding.errors import ProfileError
from decoding.schedule import Schedule
from planner.search.search import search
from planner.search.space import SearchSpace
from planner.upper_bounds import overlap_bound
from sim.acceptance.replay import Replay
from sim.evaluator import predict
from tests.planner.synthetic import acceptance_record, machine


def mirror(**changes) -> Schedule:
    fields = {
        "method": "mirror",
        "target_lane": "target",
        "draft_lane": "draft",
        "num_speculative_tokens": 4,
        "root_source": "exit",
        "exit_layer": 15,
        "exit_top_k": 4,
        "drafter": "four-layer",
    }
    return Schedule(**(fields | changes))


def test_an_exit_at_half_depth_bounds_below_one_draft_round_and_half():
    # A pass of one row costs 41 ms, five rows 8 % more; the context adds the same share to every part, almost.
    bound = overlap_bound(mirror(), machine(), acceptance_record(), mean_acceptance_length=2.0)
    assert bound.exit_share == pytest.approx((15 * 1.2 + 1.5) / 41)
    assert bound.draft_share == pytest.approx(24 / (41 * 1.08), rel=1e-3)
    share, exit_share = bound.draft_share, bound.exit_share
    assert bound.over_synchronous == pytest.approx((1 + share) / (exit_share + max(1 - exit_share, share)))
    assert bound.over_synchronous <= 2 - exit_share


def test_draft_roots_do_not_wait_for_an_exit():
    schedule = mirror(root_source="draft", exit_layer=None, exit_top_k=0, draft_top_k=4)
    bound = overlap_bound(schedule, machine(), acceptance_record(), mean_acceptance_length=2.0)
    assert (bound.exit_share, bound.over_synchronous) == (0, pytest.approx(1 + bound.draft_share))


def test_a_slow_draft_bounds_by_its_own_time():
    slow = machine(draft_step_s=0.1)
    schedule = mirror(root_source="draft", exit_layer=None, exit_top_k=0, draft_top_k=4)
    bound = overlap_bound(schedule, slow, acceptance_record(), mean_acceptance_length=2.0)
    assert bound.over_synchronous == pytest.approx(1 + 1 / bound.draft_share)


def test_streams_shorten_what_the_draft_takes_alone():
    profile = machine()
    texts, schedule = acceptance_record(num_streams=2), mirror(draft_streams=2)
    guessing = Replay(texts).guessing(schedule)
    rows = [guessing.rows(prompt, at) for prompt, one in enumerate(texts.prompts) for at in range(len(one.text))]
    draft, context = profile.lane("draft"), (texts.contexts.start + texts.contexts.stop - 1) / 2

    def step_s(count):
        return draft.draft_s(count, context) + (draft.draft_streams.at(count - 1, context) if count > 1 else 0.0)

    alone_s = sum(step_s(1) + sum(map(step_s, own)) for own in rows) / len(rows)
    found = overlap_bound(schedule, profile, texts, mean_acceptance_length=2.0)
    verify_s = profile.lane("target").verify_s(profile.num_layers, 5, context)
    assert found.draft_share == pytest.approx(alone_s / verify_s)


def test_shared_memory_sets_a_floor():
    profile = machine()
    target = profile.lane("target")
    heavy = target.model_copy(update={"layer": target.layer.model_copy(update={"bytes_per_call": 7e6})})
    profile = profile.model_copy(update={"lanes": (heavy, *profile.lanes[1:]), "memory_pool_bytes_per_s": 1e10})
    bound = overlap_bound(mirror(), profile, acceptance_record(), mean_acceptance_length=2.0)
    assert bound.memory_floor_s == pytest.approx(30 * 7e6 / 1e10 / 2.0)
    assert overlap_bound(mirror(), machine(), acceptance_record(), mean_acceptance_length=2.0).memory_floor_s is None


def test_no_simulated_mirror_schedule_beats_its_bound():
    record = acceptance_record(acceptance=0.8)
    space = SearchSpace(methods=("mirror",), windows=(1, 3, 6), uneven_roots=(8,), root_sources=("exit", "draft"))
    for candidate in search(space, machine(), record).candidates:
        schedule = candidate.schedule
        in_turn = Schedule(
            method="speculative",
            target_lane=schedule.target_lane,
            draft_lane=schedule.draft_lane,
            num_speculative_tokens=schedule.num_speculative_tokens,
            exit_features=schedule.exit_features,
            drafter=schedule.drafter,
        )
        bound = overlap_bound(schedule, machine(), record, mean_acceptance_length=2.0)
        gain = predict(in_turn, machine(), record).tpot_s / candidate.tpot_s
        # Catching up on accepted tokens costs the synchronous draft a little that the bound does not count.
        assert gain <= bound.over_synchronous * 1.02


def test_a_lane_without_the_cost_is_an_error():
    bare = machine().lane("draft").model_copy(update={"draft_step": None})
    profile = machine()
    profile = profile.model_copy(update={"lanes": (profile.lanes[0], bare, profile.lanes[2])})
    with pytest.raises(ProfileError, match="lane 'draft' has no measured draft_step"):
        overlap_bound(mirror(), profile, acceptance_record(), mean_acceptance_length=2.0)
