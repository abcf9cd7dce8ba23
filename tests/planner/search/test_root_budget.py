"""Branches go where rounds end and where the candidates are right."""

import numpy as np
import pytest

from decoding.schedule import Schedule
from planner.search.space import uneven_budget
from sim.acceptance.replay import Replay
from sim.evaluator import predict
from sim.world import simulate
from tests.planner.synthetic import EXIT_MIRROR, acceptance_record, machine


@pytest.mark.parametrize(
    ("num_roots", "most_per_row", "budget"),
    [(1, 3, (1, 0, 0)), (4, 3, (2, 1, 1)), (100, 3, (3, 1, 2)), (4, 1, (1, 1, 1))],
)
def test_budget_follows_the_counts(num_roots, most_per_row, budget):
    ranks = np.array([[9, 4, 1], [5, 0, 0], [2, 2, 0]])
    assert uneven_budget(ranks, num_roots, most_per_row=most_per_row) == budget


@pytest.mark.parametrize(("exit_layer", "with_features"), [(15, False), (20, False), (20, True), (None, False)])
def test_ranks_foretell_the_hits_that_both_simulators_count(exit_layer, with_features):
    record, window = acceptance_record(num_prompts=5), 4
    source = {"root_source": "draft"} if exit_layer is None else {"exit_layer": exit_layer}
    budget = {"num_speculative_tokens": window, "exit_top_k": 0, "roots_per_row": (4, 3, 2, 1, 0)}
    fields = EXIT_MIRROR.model_dump() | {"exit_layer": None, "exit_features": with_features} | budget | source
    schedule = Schedule(**fields)
    ranks = Replay(record).correction_ranks(schedule)
    hits = sum(ranks[row, :budget].sum() for row, budget in enumerate(schedule.roots_per_row))
    traces = simulate(schedule, machine(), record, trace=False)
    assert hits == sum(entry.hit is True for trace in traces for entry in trace.rounds)
    prediction = predict(schedule, machine(), record)
    assert prediction.reuse_rate == pytest.approx(hits / (prediction.num_rounds - len(record.prompts)))
