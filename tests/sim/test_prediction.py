from __future__ import annotations

from math import hypot, sqrt

import numpy as np
import pytest

from decoding.schedule import Schedule
from hwprofiles.profile import LatencyTable, LinkProfile
from sim.acceptance.acceptance_model import DrawnAcceptance
from sim.evaluator import predict
from sim.prediction import Bottlenecks
from tests.sim.worlds import AUTOREGRESSIVE, TREES, lane, machine, mirror, prompt, record, speculative, tree

TEXTS = record(prompt("1010111", "0100000"))


def spread(table: LatencyTable | None, relative_error: float) -> LatencyTable:
    assert table is not None
    return table.model_copy(update={"relative_error": relative_error})


def test_what_streams_add_to_a_pass_counts_as_drafting() -> None:
    profile = machine(lane("target", dispatch_s=2, streams=4), round_overhead_s=1)
    found = predict(tree(TREES[-1], 7), profile, DrawnAcceptance(0, hit_rate=0, num_tokens=5))
    assert found.bottlenecks == Bottlenecks(target_verify=5 * 11, draft=5 * 4, overhead=5 * 3)
    assert found.target_busy_s == 5 * 15


def test_bottlenecks_of_a_run_by_hand() -> None:
    """The run of `test_world_by_hand.test_mirror_from_the_exit`."""
    link = LinkProfile(lanes=("target", "draft"), latency_s=1, bytes_per_s=48, source="by hand")
    profile = machine(lane("target", dispatch_s=2), lane("draft", dispatch_s=4), links=(link,), round_overhead_s=1)
    found = predict(mirror("exit"), profile, TEXTS)
    # three rounds' dispatches and driver times, three handings over of a window
    overhead = 3 * (2 + 1) + 3 * 4
    assert found.bottlenecks == Bottlenecks(target_prefix=15, target_suffix=21, draft=2, fallback=2, overhead=overhead)
    assert found.decode_s == 61
    assert (found.num_tokens, found.num_rounds, found.num_accepted_tokens) == (7, 3, 4)
    assert found.mean_acceptance_length == 7 / 3
    assert found.reuse_rate == 0.5


def test_waiting_for_the_exit_message_is_the_channels_fault() -> None:
    link = LinkProfile(lanes=("target", "draft"), latency_s=10, bytes_per_s=1e18, source="by hand")
    found = predict(mirror("exit"), machine(links=(link,)), TEXTS)
    # it arrives 15 s into rounds that are committed after 12 s
    assert found.bottlenecks.channel == 2 * 3


@pytest.mark.parametrize("schedule", [AUTOREGRESSIVE, speculative()])
def test_one_prompt_and_exact_tables_leave_the_machines_error(schedule: Schedule) -> None:
    found = predict(schedule, machine(relative_error=0.1), TEXTS)
    assert found.tpot_s_low == pytest.approx(found.tpot_s * 0.9)
    assert found.tpot_s_high == pytest.approx(found.tpot_s * 1.1)


def test_spread_of_the_tables_counts_by_share_of_the_time() -> None:
    target, draft = lane("target"), lane("draft", draft_step=2)
    target = target.model_copy(update={"layer": spread(target.layer, 0.22)})
    draft = draft.model_copy(update={"draft_step": spread(draft.draft_step, 0.5)})
    # of 15 s a round, 10 in layers and 4 in draft steps
    found = predict(speculative(), machine(target, draft, relative_error=0.1), TEXTS)
    assert found.relative_error == pytest.approx(hypot(0.1, (10 * 0.22 + 4 * 0.5) / 15))


def test_sampling_error_of_two_prompts() -> None:
    texts = record(prompt("1111"), prompt("000000"))
    # 13 s a round: two rounds for four tokens, six for six
    times, tokens = np.array([2 * 13.0, 6 * 13.0]), np.array([4, 6])
    ratio = times.sum() / tokens.sum()
    residuals = times - ratio * tokens
    standard_error = sqrt(2 / 1 * (residuals**2).sum()) / tokens.sum()
    found = predict(speculative(), machine(), texts)
    assert found.tpot_s == pytest.approx(ratio)
    assert found.relative_error == pytest.approx(1.96 * standard_error / ratio)


def test_a_lower_bound_is_never_below_zero() -> None:
    found = predict(AUTOREGRESSIVE, machine(relative_error=3), TEXTS)
    assert (found.tpot_s_low, found.tpot_s_high) == (0, 4 * found.tpot_s)


def test_a_prediction_names_its_sources() -> None:
    assert predict(AUTOREGRESSIVE, machine(), TEXTS).source == "replay of 1 recorded prompts; by hand"
