"""Which parts of heads, streams and lookups are timed, and that tables are made of exactly these."""

from itertools import pairwise

import pytest

from calibrate.fitting.ratios import Ratio, estimate
from calibrate.profiling.grid import full_effort, quick_effort
from calibrate.profiling.head_parts import HeadParts
from runtime.wire.measurement import Measurement

CONTEXTS = (20, 220)
ANCHOR_S = 40e-3


def parts(method: str, *, quick: bool = True) -> HeadParts:
    effort = (quick_effort if quick else full_effort)(8, CONTEXTS, 32)
    return HeadParts(drafter="d", method=method, effort=effort, most_rows=33, source="a test")


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_steps_of_heads_are_timed_at_every_row_count_of_the_effort(method: str, quick: bool) -> None:
    head = parts(method, quick=quick)
    steps = [one for one in head.measurements() if one.part == "head_step"]
    assert [one.rows for one in steps] == list(head.effort.head_rows)
    assert {one.context for one in steps} == {CONTEXTS[0]}


def test_their_table_states_means_at_the_speed_of_the_anchors_for_any_context() -> None:
    head = parts("medusa")
    found = {
        of: estimate([Ratio(around * (0.1 + 0.01 * of.rows), 0.05) for around in (0.9, 0.9, 1.2)])
        for of in head.measurements()
    }
    table = head.table(found, ANCHOR_S)
    for rows in (1, 4, 16):
        assert table.at(rows, 12345) == pytest.approx(ANCHOR_S * (0.1 + 0.01 * rows))
    assert table.source == "a test"
    assert table.relative_error > 0.05


def test_reading_prompts_is_timed_for_heads_that_read_them() -> None:
    eagle, lookup = parts("eagle3"), parts("prompt_lookup")
    found = {of: estimate([Ratio(0.01 * of.rows, 0.05)]) for of in eagle.measurements()}
    rows = [of.rows for of in found if of.part == "draft_prefill"]
    assert rows == list(eagle.effort.prefill_rows)
    table = eagle.prefill_table(found, ANCHOR_S)
    assert [table.at(count, 0) for count in rows] == pytest.approx([ANCHOR_S * 0.01 * count for count in rows])
    assert {of.part for of in lookup.measurements()} == {"head_step"}
    assert lookup.prefill_table({}, ANCHOR_S) is None


def test_a_lookup_is_one_row_whatever_it_finds() -> None:
    lookup = parts("prompt_lookup")
    (step,) = lookup.measurements()
    assert (step.part, step.rows) == ("head_step", 1)
    table = lookup.table({step: estimate([Ratio(1e-4, 0.05)])}, ANCHOR_S)
    assert table.at(1, 99) == pytest.approx(4e-6)


# Streams


STREAMS = parts("speculative_streaming")


def ratios(verify: list[float], stream: list[float]) -> dict[Measurement, list[Ratio]]:
    without, with_them = dict.fromkeys(STREAMS.measurements())
    return {without: [Ratio(one, 0.05) for one in verify], with_them: [Ratio(one, 0.05) for one in stream]}


def test_streams_are_timed_in_turn_with_the_same_verification_without_them() -> None:
    timed = list(STREAMS.measurements())
    assert [one.part for one in timed] == ["verify_tree", "stream"] * 4
    assert {(one.rows, one.context, one.repeats) for one in timed} == {(6, CONTEXTS[0], 1)}
    assert all(one.part != other.part for one, other in pairwise(timed))


def test_what_streams_add_is_the_mean_difference_and_the_same_for_all_rows() -> None:
    table = STREAMS.streams_table(ratios([1.5, 1.5, 1.5], [1.5 * 1.2, 1.5 * 1.2, 1.5 * 1.5]), ANCHOR_S)
    for rows in (1, 9, 33):
        assert table.at(rows, 500) == pytest.approx(0.3 * 1.5 * ANCHOR_S)


def test_a_machine_that_changed_its_speed_between_pairs_changes_no_difference() -> None:
    """Each verification is compared with its own: what all anchors have in common is no noise of streams."""
    table = STREAMS.streams_table(ratios([1.0, 1.4, 1.2], [1.1, 1.54, 1.32]), ANCHOR_S)
    assert table.at(6, 20) == pytest.approx(0.1 * 1.2 * ANCHOR_S)
    assert table.relative_error == pytest.approx(0.0, abs=1e-9)


def test_their_error_is_that_of_the_difference_and_not_of_the_verification() -> None:
    some = STREAMS.streams_table(ratios([1.0, 1.0], [1.05, 1.15]), ANCHOR_S)
    few = STREAMS.streams_table(ratios([1.0, 1.0], [1.01, 1.02]), ANCHOR_S)
    # two samples 0.1 apart: half of that is the standard error of their mean; t is 6.31
    assert some.relative_error == pytest.approx(6.3138 * 0.05 / 0.1)
    assert few.relative_error == pytest.approx(6.3138 * 0.005 / 0.015)


@pytest.mark.parametrize("added", [0.0, -0.02])
def test_streams_that_seem_to_cost_nothing_have_no_table(added: float) -> None:
    assert STREAMS.streams_table(ratios([1.0, 1.0], [1.125, 0.875 + 2 * added]), ANCHOR_S) is None
