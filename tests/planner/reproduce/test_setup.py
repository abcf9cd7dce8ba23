"""The machine of a published table, and the rate at which stream tokens are right, from the steps of windows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from decoding.schedule import Schedule
from hwprofiles.overrides import with_overrides
from hwprofiles.platform import load_platform
from hwprofiles.sheets import link_sheet
from planner.published.stream_rates import WINDOW, mean_steps, stream_rate
from planner.reproduce.setup import Setup
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts


def on(setup, platform):
    return Setup.of(platform, setup.target, setup.draft)


def test_without_names_the_target_is_on_the_gpus_and_the_draft_on_the_npus(setup):
    assert (setup.target_lane, setup.draft_lane) == ("gpus", "npus")


def test_what_is_unknown_comes_with_the_sheets_value_and_bounds(setup):
    unknowns = {one.name: one for one in setup.unknowns()}
    assert set(unknowns) == {"link_latency_s", "handover_s", "exit_coverage"}
    assert all(one.low < one.datasheet < one.high and one.source for one in unknowns.values())
    latency = link_sheet("unified-memory").latency_s
    handover = unknowns["handover_s"]
    assert (handover.datasheet, handover.low, handover.high) == (latency.value, *latency.span)


def test_constants_are_set_on_every_link_of_their_kind(setup):
    constants = {"link_latency_s": 5e-5, "handover_s": 2e-4, "exit_coverage": 0.8}
    for link in setup.with_constants(constants).links:
        kinds = sorted(end.rstrip("0123456789") for end in link.between)
        assert link.latency_s.value == (5e-5 if kinds == ["gpu", "gpu"] else 2e-4)


def test_no_way_round_by_the_cpu_undercuts_a_handover(setup):
    profile = setup.profile({"link_latency_s": 5e-5, "handover_s": 2e-4, "exit_coverage": 0.8}).profile
    assert profile.link(setup.target_lane, setup.draft_lane).latency_s == 2e-4


def test_one_chip_has_no_link_between_machines(setup):
    names = [one.name for one in on(setup, load_platform("lunar-lake")).unknowns()]
    assert names == ["handover_s", "exit_coverage"]


def test_a_platform_without_an_npu_is_refused(setup):
    with pytest.raises(ConfigError, match="no npu; its devices are gpu, cpu"):
        on(setup, load_platform("h200"))


def test_graphs_are_compiled_for_the_rows_that_occur(setup):
    assert setup.platform.device("npu3").row_buckets == (1, 2, 3, 64, 128, 192)
    assert setup.platform.device("gpu3") == load_platform("m2-ultra-x8").device("gpu3")


def test_no_graph_is_named_where_shapes_are_free(setup):
    platform = with_overrides(load_platform("lunar-lake"), {"npu.static_shapes": "false"})
    assert on(setup, platform).platform.device("npu") == platform.device("npu")


counts = st.integers(1, 9)


@given(counts, st.integers(1, 4))
def test_guesses_never_right_take_a_step_for_each_token_and_those_always_right_the_fewest(num_tokens, num_streams):
    assert mean_steps(0.0, num_tokens, num_streams) == num_tokens
    # three tokens and one stream: after the first step the second token, and with it the third if it was guessed
    assert mean_steps(0.4, 3, 1) == pytest.approx(1 + 0.4 * 1 + 0.6 * 2)
    assert mean_steps(1.0, num_tokens, num_streams) == 1 + -(-(num_tokens - 1) // (1 + num_streams))


@given(counts, st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_better_guesses_never_take_more_steps(num_tokens, num_streams, one, other):
    less, more = sorted((one, other))
    assert mean_steps(more, num_tokens, num_streams) <= mean_steps(less, num_tokens, num_streams) + 1e-9


def test_the_rate_is_the_one_that_gives_the_papers_steps():
    assert mean_steps(stream_rate(), WINDOW, 2) == pytest.approx(3.5)


def test_drawn_windows_take_as_many_steps():
    rate = stream_rate()
    texts = Bernoulli(0.5, stream_rates=(rate, rate), exit_coverage={2: (0.5, 0.6)}, texts=Texts(num_texts=64))
    steps = mean_steps_of(texts)
    assert steps == pytest.approx(3.5, rel=0.02)


def mean_steps_of(texts):
    schedule = Schedule(
        method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=WINDOW, draft_streams=2
    )
    walk = texts.walk(schedule, None)
    counts = texts.guessing(schedule).counts(walk.at)
    return 1 + counts[1].sum(axis=1).mean()
