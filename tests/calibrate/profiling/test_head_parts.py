"""Which parts of heads, streams and lookups are timed, and that tables are made of exactly these."""

import pytest

from calibrate.fitting.ratios import Ratio
from calibrate.profiling.lane_parts import HeadParts
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.calibration.asked import CONTEXTS, task

ANCHOR_S = 40e-3


def parts(method: str, *, quick: bool = True) -> HeadParts:
    return HeadParts(task(heads={"d": method}, quick=quick), "d")


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_steps_and_prompts_of_heads_are_timed_and_their_tables_hold_at_any_context(method, quick):
    head = parts(method, quick=quick)
    timed = head.measurements()
    steps = [one for one in timed if one.part == "head_step"]
    assert [one.rows for one in steps] == ([1, 4, 8, 16] if quick else [1, 2, 3, 4, 6, 8, 12, 16])
    assert {one.context for one in steps} == {CONTEXTS[0]}
    ratios = {of: [Ratio(around * (0.1 + 0.01 * of.rows), 0.05) for around in (0.9, 0.9, 1.2)] for of in timed}
    tables = head.tables(ratios, ANCHOR_S)
    for rows in (1, 4, 16):
        assert tables["heads"].at(rows, 12345) == pytest.approx(ANCHOR_S * (0.1 + 0.01 * rows))
    assert tables["heads"].relative_error > 0.05
    prompts = [one.rows for one in timed if one.part == "draft_prefill"]
    assert prompts == ([20, 220] if quick else [20, 120, 220])
    for rows in prompts:
        assert tables["head_prefill"].at(rows, 0) == pytest.approx(ANCHOR_S * (0.1 + 0.01 * rows))


def test_a_lookup_is_one_row_whatever_it_finds():
    lookup = parts("prompt_lookup")
    (step,) = lookup.measurements()
    assert (step.part, step.rows) == ("head_step", 1)
    tables = lookup.tables({step: [Ratio(1e-4, 0.05)]}, ANCHOR_S)
    assert tables.keys() == {"heads"}
    assert tables["heads"].at(1, 99) == pytest.approx(4e-6)


# Streams


STREAMS = parts("speculative_streaming")


def ratios(verify: list[float], stream: list[float]) -> dict[Measurement, list[Ratio]]:
    without, with_them = dict.fromkeys(STREAMS.measurements())
    return {without: [Ratio(one, 0.05) for one in verify], with_them: [Ratio(one, 0.05) for one in stream]}


def test_streams_are_timed_in_turn_with_the_same_verification_without_them():
    timed = STREAMS.measurements()
    assert [one.part for one in timed] == ["verify_tree", "stream"] * 4
    assert {(one.rows, one.context, one.repeats) for one in timed} == {(6, CONTEXTS[0], 1)}


def test_what_streams_add_is_the_mean_difference_and_the_same_for_all_rows():
    table = STREAMS.tables(ratios([1.5, 1.5, 1.5], [1.5 * 1.2, 1.5 * 1.2, 1.5 * 1.5]), ANCHOR_S)["streams"]
    for rows in (1, 9, 33):
        assert table.at(rows, 500) == pytest.approx(0.3 * 1.5 * ANCHOR_S)


def test_a_machine_that_changed_its_speed_between_pairs_changes_no_difference():
    """Each verification is compared with its own: what all anchors have in common is no noise of streams."""
    table = STREAMS.tables(ratios([1.0, 1.4, 1.2], [1.1, 1.54, 1.32]), ANCHOR_S)["streams"]
    assert table.at(6, 20) == pytest.approx(0.1 * 1.2 * ANCHOR_S)
    assert table.relative_error == pytest.approx(0.0, abs=1e-9)


def test_their_error_is_that_of_the_difference_and_not_of_the_verification():
    some = STREAMS.tables(ratios([1.0, 1.0], [1.05, 1.15]), ANCHOR_S)["streams"]
    few = STREAMS.tables(ratios([1.0, 1.0], [1.01, 1.02]), ANCHOR_S)["streams"]
    # two samples 0.1 apart: half of that is the standard error of their mean; t is 6.31
    assert some.relative_error == pytest.approx(6.3138 * 0.05 / 0.1)
    assert few.relative_error == pytest.approx(6.3138 * 0.005 / 0.015)


@pytest.mark.parametrize("added", [0.0, -0.02])
def test_streams_that_seem_to_cost_nothing_have_no_table(added):
    assert STREAMS.tables(ratios([1.0, 1.0], [1.125, 0.875 + 2 * added]), ANCHOR_S) == {}
