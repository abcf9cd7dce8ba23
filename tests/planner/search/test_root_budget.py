"""Branches go where rounds end and where the candidates are right."""

import numpy as np
import pytest

from decoding.record import AcceptanceRecord, PromptRecord
from decoding.schedule import Schedule
from planner.search.space import correction_ranks, uneven_budget
from sim.evaluator import predict
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine


def hand_made() -> AcceptanceRecord:
    """Text 10 11 12 13 14 15; the draft is right about 11 and 14 only, and a wrong draft says 99."""
    text = np.array([10, 11, 12, 13, 14, 15], dtype=np.int32)
    rollouts = np.array([[99, 99], [11, 99], [99, 99], [99, 99], [14, 99], [99, 99]], dtype=np.int32)
    exits = np.array([[99, 10, 5], [11, 5, 6], [99, 5, 12], [13, 99, 5], [14, 5, 6], [5, 6, 7]], dtype=np.int32)
    prompt = PromptRecord(
        name="by hand",
        category="",
        prompt_length=3,
        text=text,
        rollouts=rollouts,
        feature_rollouts=np.zeros((0, 2), dtype=np.int32),
        alternatives=exits[:, :2],
        exits={7: exits},
    )
    return AcceptanceRecord(
        target="t", drafter="d", dtype="float32", max_window=2, max_new_tokens=6, exit_layers=(7,), prompts=(prompt,)
    )


def test_ranks_leave_the_drafted_token_out_and_count_candidates_that_hold_the_correction():
    def counts(window, exit_layer):
        return correction_ranks(hand_made(), window, with_features=False, exit_layer=exit_layer).tolist()

    # Rounds: at 0 nothing stands (10 is next best after 99), at 1 one stands and 12 is third with 99 first,
    # at 3 nothing stands and 13 is first; the round at 4 is the last and asks for nothing.
    assert counts(2, 7) == [[2, 0, 0], [0, 1, 0], [0, 0, 0]]
    assert counts(2, None) == [[2, 0], [0, 0], [0, 0]], "the draft's own candidates miss it"
    # At 1 the whole window of one stands: its row has no drafted token, so 12 keeps rank 2.
    assert counts(1, 7)[1] == [0, 0, 1]


@pytest.mark.parametrize(
    ("num_roots", "most_per_row", "budget"),
    [(1, 3, (1, 0, 0)), (4, 3, (2, 1, 1)), (100, 3, (3, 1, 2)), (4, 1, (1, 1, 1))],
)
def test_budget_follows_the_counts(num_roots, most_per_row, budget):
    ranks = np.array([[9, 4, 1], [5, 0, 0], [2, 2, 0]])
    assert uneven_budget(ranks, num_roots, most_per_row=most_per_row) == budget


def test_budget_covers_at_least_what_an_even_one_of_its_size_does():
    record = acceptance_record(num_prompts=6)
    for window in (2, 4, 8):
        ranks = correction_ranks(record, window, with_features=False, exit_layer=20)
        budget = uneven_budget(ranks, 2 * (window + 1), most_per_row=8)
        assert sum(row[:count].sum() for row, count in zip(ranks, budget, strict=True)) >= ranks[:, :2].sum()


@pytest.mark.parametrize(("exit_layer", "with_features"), [(15, False), (20, False), (20, True), (None, False)])
def test_ranks_foretell_the_hits_that_both_simulators_count(exit_layer, with_features):
    record, window = acceptance_record(num_prompts=5), 4
    ranks = correction_ranks(record, window, with_features=with_features, exit_layer=exit_layer)
    schedule = Schedule(
        method="mirror",
        target_lane="target",
        draft_lane="draft",
        num_speculative_tokens=window,
        root_source="draft" if exit_layer is None else "exit",
        exit_layer=exit_layer,
        exit_features=with_features,
        roots_per_row=(4, 3, 2, 1, 0),
        drafter="four-layer",
    )
    hits = sum(ranks[row, :budget].sum() for row, budget in enumerate(schedule.roots_per_row))
    traces = simulate(schedule, machine(), record, trace=False)
    assert hits == sum(entry.hit is True for trace in traces for entry in trace.rounds)
    prediction = predict(schedule, machine(), record)
    assert prediction.reuse_rate == pytest.approx(hits / (prediction.num_rounds - len(record.prompts)))
