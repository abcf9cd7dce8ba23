"""Operations are taken apart so that their parts add up to them again."""

from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from calibrate.fitting.fit import TargetTimes, fit_target, grow, slots_between
from calibrate.fitting.ratios import Estimate
from hwprofiles.latency_table import LatencyTable

LAYERS = 12
ROWS = (1, 2, 4, 9)
CONTEXTS = (10, 50, 90)
SLOTS = {context: context for context in CONTEXTS}
SECONDS = st.floats(1e-4, 1e-2)


def once(seconds: float) -> Estimate:
    """Of a single visit."""
    return Estimate(value=seconds, variance=0.03**2, scatter=0.0, num=1)


def seconds_of(times):
    return {size: once(seconds) for size, seconds in times.items()}


def operations(layer_s, head_s, exit_s, *, noise=lambda: 1.0) -> TargetTimes:
    """Times of operations whose layer takes longer with rows and context."""

    def one_layer(rows: int, context: int) -> float:
        return layer_s * (1 + 0.1 * rows + 1e-4 * rows * (context - 10))

    return TargetTimes(
        verify={(r, c): once((LAYERS * one_layer(r, c) + head_s) * noise()) for r in ROWS for c in CONTEXTS},
        lm_head={r: head_s * noise() for r in ROWS},
        exits={r: exit_s * noise() for r in ROWS},
    )


class Tables(NamedTuple):
    layer: LatencyTable
    lm_head: LatencyTable
    exits: LatencyTable


def fitted(times: TargetTimes) -> Tables:
    return Tables(*fit_target(times, num_layers=LAYERS, anchor=None, slots=SLOTS, error=0.0, source="test"))


@given(SECONDS, SECONDS, SECONDS)
def test_parts_are_found_again(layer_s, head_s, exit_s):
    tables = fitted(operations(layer_s, head_s, exit_s))
    assert tables.lm_head.at(4, 10) == pytest.approx(head_s, rel=1e-6, abs=1e-9)
    assert tables.exits.at(9, 10) == pytest.approx(exit_s, rel=1e-6, abs=1e-9)
    assert tables.layer.at(2, 90) == pytest.approx(layer_s * (1.2 + 2e-4 * 80), rel=1e-6)


@given(st.randoms(use_true_random=False))
def test_sums_of_parts_are_the_operations_even_if_the_parts_are_noisy(random):
    times = operations(1e-3, 5e-3, 3e-3, noise=lambda: random.uniform(0.97, 1.03))
    tables = fitted(times)
    for rows in ROWS:
        layer_s, head_s = tables.layer.at(rows, 10), tables.lm_head.at(rows, 10)
        assert LAYERS * layer_s + head_s == pytest.approx(times.verify[rows, 10].value)
        assert head_s == pytest.approx(times.lm_head[rows], rel=0.1)
        assert tables.exits.at(rows, 10) == pytest.approx(times.exits[rows], rel=0.1)


def test_verification_is_kept_even_if_noise_makes_a_layer_impossible():
    tables = fitted(TargetTimes(verify={(1, 10): once(3.0)}, lm_head={1: 9.9}, exits={}))
    assert tables.exits is None
    assert (tables.layer.at(1, 10), tables.lm_head.at(1, 10)) == (0.0, 3.0)


def test_growth_with_the_context_is_a_reading_of_keys_and_a_share_of_every_row():
    base_s = {1: 1.0, 2: 2.0, 5: 3.0}
    times = {(rows, 10): seconds for rows, seconds in base_s.items()}
    times |= {(rows, 50): base_s[rows] + 40 * (0.01 + 0.002 * rows) for rows in (1, 5)}
    table = grow(seconds_of(times), (1, 2, 5), {10: 10, 50: 50})
    assert [line[0] for line in table] == [1.0, 2.0, 3.0]
    assert [line[1] - line[0] for line in table] == pytest.approx([40 * (0.01 + 0.002 * rows) for rows in base_s])


def test_a_table_has_both_sides_of_every_jump_of_the_slots_and_grows_with_them_alone():
    slots = slots_between({10, 50, 90}, lambda context: 64 if context < 30 else 96 if context < 80 else 128)
    assert slots == {10: 64, 29: 64, 30: 96, 50: 96, 79: 96, 80: 128, 90: 128}
    times = {(1, 10): 1.0, (1, 90): 1.4, (4, 10): 2.0, (4, 90): 2.8}
    table = grow(seconds_of(times), (1, 4), slots, ((1, 50), 1.2))
    assert table == [pytest.approx([1, 1, 1.2, 1.2, 1.2, 1.4, 1.4]), pytest.approx([2, 2, 2.4, 2.4, 2.4, 2.8, 2.8])]


def test_where_every_position_has_a_slot_nothing_jumps():
    assert slots_between({10, 50, 90}, lambda context: context + 1) == {10: 11, 50: 51, 90: 91}


@given(SECONDS, SECONDS, SECONDS)
def test_a_time_without_noise_is_met_whatever_noisy_times_around_it_say(first_s, last_s, known_s):
    times = {(1, 10): first_s, (1, 90): last_s, (4, 10): 2e-2, (4, 90): 3e-2}
    one_row, more_rows = grow(seconds_of(times), (1, 4), SLOTS, ((1, 50), known_s))
    assert one_row[1] == pytest.approx(known_s)
    for line in (one_row, more_rows):
        assert all(after >= before * (1 - 1e-9) for before, after in pairwise(line))


@given(SECONDS, SECONDS, SECONDS)
def test_it_is_met_where_no_longer_context_has_more_slots(first_s, last_s, known_s):
    times = {(1, 10): first_s, (1, 90): last_s}
    slots = slots_between({10, 50, 90}, lambda context: 64 if context < 30 else 128)
    (line,) = grow(seconds_of(times), (1,), slots, ((1, 50), known_s))
    assert dict(zip(slots, line, strict=True))[50] == pytest.approx(known_s)
    assert all(after >= before * (1 - 1e-9) for before, after in pairwise(line))


@example({(1, 10): 0.00390625}, 0.00390625)  # a pass that is all head
@given(st.dictionaries(st.sampled_from([(r, c) for r in ROWS for c in CONTEXTS]), SECONDS), SECONDS)
def test_no_table_falls_with_rows_or_context_whatever_a_single_visit_says(changed, head_s):
    times = operations(1e-3, head_s, 3e-3)
    times.verify.update(seconds_of(changed))
    tables = fitted(times)
    for table in tables:
        for line in (*zip(*table.seconds, strict=True), *table.seconds):
            assert all(after >= before * (1 - 1e-9) - 1e-15 for before, after in pairwise(line))


def test_a_fall_that_visits_agree_on_stands_and_is_the_layers():
    times = operations(1e-3, 5e-3, 3e-3)
    for context in CONTEXTS:
        slow = times.verify[4, context]
        times.verify[4, context] = Estimate(value=2 * slow.value, variance=1e-4, scatter=1.0, num=3)
        times.verify[9, context] = Estimate(value=times.verify[9, context].value, variance=1e-4, scatter=1.0, num=3)
    tables = fitted(times)
    assert LAYERS * tables.layer.at(4, 10) + tables.lm_head.at(4, 10) == pytest.approx(times.verify[4, 10].value)
    assert LAYERS * tables.layer.at(9, 10) + tables.lm_head.at(9, 10) == pytest.approx(times.verify[9, 10].value)
    assert tables.lm_head.at(9, 10) >= tables.lm_head.at(4, 10)
