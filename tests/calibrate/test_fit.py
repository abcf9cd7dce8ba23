import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.fit import (
    CATCH_UP_ROWS,
    ROLLOUT_ROWS,
    LaneTables,
    Level,
    TargetTimes,
    fit_target,
    grow,
    make_table,
    spread,
)

LAYERS = 12
ROWS = (1, 2, 4, 9)
CONTEXTS = (10, 50, 90)
SECONDS = st.floats(1e-4, 1e-2)


def operations(layer_s, head_s, exit_s, *, noise=lambda: 1.0) -> TargetTimes:
    """Times of operations whose layer takes longer with rows and context."""

    def one_layer(rows: int, context: int) -> float:
        return layer_s * (1 + 0.1 * rows + 1e-4 * rows * (context - 10))

    return TargetTimes(
        verify={(r, c): (LAYERS * one_layer(r, c) + head_s) * noise() for r in ROWS for c in CONTEXTS},
        prefix={e: {r: (e * one_layer(r, 10) + exit_s) * noise() for r in ROWS} for e in (4, 8)},
        suffix={r: ((LAYERS - 8) * one_layer(r, 10) + head_s) * noise() for r in ROWS},
        suffix_layer=8,
    )


def fitted(times: TargetTimes):
    return fit_target(times, LAYERS, CONTEXTS, relative_error=0.01, source="test")


@given(SECONDS, SECONDS, SECONDS)
def test_parts_are_found_again(layer_s: float, head_s: float, exit_s: float) -> None:
    tables = fitted(operations(layer_s, head_s, exit_s))
    assert tables.head.at(4, 10) == pytest.approx(head_s, rel=1e-6, abs=1e-9)
    assert tables.exits[4].at(9, 10) == pytest.approx(exit_s, rel=1e-6, abs=1e-9)
    assert tables.layer.at(2, 90) == pytest.approx(layer_s * (1.2 + 2e-4 * 80), rel=1e-6)


@given(st.randoms(use_true_random=False))
def test_sums_of_parts_are_the_operations_even_if_their_times_are_noisy(random) -> None:
    """Verifications exactly, their halves to within the noise."""
    times = operations(1e-3, 5e-3, 3e-3, noise=lambda: random.uniform(0.97, 1.03))
    tables = fitted(times)
    for rows in ROWS:
        layer_s, head_s = tables.layer.at(rows, 10), tables.head.at(rows, 10)
        assert LAYERS * layer_s + head_s == pytest.approx(times.verify[rows, 10])
        assert (LAYERS - 8) * layer_s + head_s == pytest.approx(times.suffix[rows], rel=0.1)
        for layer, taken in times.prefix.items():
            assert layer * layer_s + tables.exits[layer].at(rows, 10) == pytest.approx(taken[rows], rel=0.1)


def test_heads_and_exits_are_straight_lines_over_the_rows() -> None:
    times = operations(1e-3, 5e-3, 3e-3)
    times.suffix[4] *= 1.01
    tables = fitted(times)
    steps = [tables.head.at(rows + 1, 10) - tables.head.at(rows, 10) for rows in range(1, 9)]
    assert steps == pytest.approx([steps[0]] * 8)
    assert tables.head.at(4, 10) != pytest.approx(5e-3, rel=1e-3)


@pytest.mark.parametrize("suffix_s", [0.0, 9.9])
def test_verification_is_kept_even_if_noise_makes_a_layer_impossible(suffix_s: float) -> None:
    times = TargetTimes(verify={(1, 10): 3.0}, prefix={}, suffix={1: suffix_s}, suffix_layer=8)
    tables = fit_target(times, LAYERS, (10,), relative_error=0, source="test")
    assert 0 <= tables.layer.at(1, 10) <= 3.0 / LAYERS
    assert LAYERS * tables.layer.at(1, 10) + tables.head.at(1, 10) == pytest.approx(3.0)


def test_growth_with_the_context_is_a_reading_of_keys_and_a_share_of_every_row() -> None:
    base_s = {1: 1.0, 2: 2.0, 5: 3.0}
    times = {(rows, 10): seconds for rows, seconds in base_s.items()}
    times |= {(rows, 50): base_s[rows] + 40 * (0.01 + 0.002 * rows) for rows in (1, 5)}
    table = grow(times, (1, 2, 5), (10, 50))
    assert [line[0] for line in table] == [1.0, 2.0, 3.0]
    assert [line[1] - line[0] for line in table] == pytest.approx([40 * (0.01 + 0.002 * rows) for rows in base_s])


def test_one_noisy_size_cannot_bend_the_growth_alone() -> None:
    times = {(rows, context): 1.0 for rows in (1, 4, 9) for context in (10, 50)} | {(1, 50): 1.3}
    (one_row, *_) = grow(times, (1, 4, 9), (10, 50))
    assert 1.0 < one_row[1] < 1.15


def test_a_longer_context_never_takes_less() -> None:
    assert grow({(1, 10): 1.0, (1, 50): 0.9}, (1,), (10, 50)) == [[1.0, 1.0]]
    falling = {(1, 10): 1.0, (1, 50): 1.4, (5, 10): 2.0, (5, 50): 2.0}
    assert all(line[1] >= line[0] for line in grow(falling, (1, 5), (10, 50)))


def test_spread_is_half_the_central_half_over_the_median() -> None:
    assert spread([[1.0, 2.0, 3.0, 4.0, 5.0]]) == pytest.approx(1 / 3)
    assert spread([[2.0, 2.0, 2.0, 99.0, 2.0]]) == 0
    assert spread([[1.0, 2.0, 3.0, 4.0, 5.0], [7.0, 7.0]]) == pytest.approx(1 / 6)
    assert spread([[1.0]]) == spread([]) == 0


@given(st.lists(st.lists(SECONDS, min_size=1, max_size=9), min_size=1, max_size=4), st.floats(0.1, 10))
def test_spread_has_no_unit_and_no_order(samples: list[list[float]], factor: float) -> None:
    scaled = [[seconds * factor for seconds in reversed(taken)] for taken in samples]
    assert spread(scaled) == pytest.approx(spread(samples), abs=1e-12)
    assert spread(samples) >= 0


# Levels


def flat(rows: tuple[int, ...], seconds: float = 1.0):
    return make_table(rows, (10,), [[seconds]] * len(rows), relative_error=0.01, source="test")


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_every_table_is_brought_to_the_level_of_its_work(
    target: float, step: float, features_step: float, branch_step: float
) -> None:
    """Steps of more rows than a rollout ever feeds are branches; with features a rollout may feed more."""
    rows = tuple(range(1, CATCH_UP_ROWS + 3))
    parts = fitted(operations(1e-3, 5e-3, 3e-3))
    tables = LaneTables(target=parts, draft_step=flat(rows), draft_step_features=flat(rows))
    level = Level(target=target, step=step, features_step=features_step, branch_step=branch_step)
    levelled = tables.levelled(level)
    assert levelled.target.layer.at(4, 50) == pytest.approx(target * parts.layer.at(4, 50))
    assert levelled.target.head.at(2, 10) == pytest.approx(target * parts.head.at(2, 10))
    assert levelled.target.exits[4].at(9, 10) == pytest.approx(target * parts.exits[4].at(9, 10))
    for count in rows:
        assert levelled.draft_step.at(count, 10) == (step if count <= ROLLOUT_ROWS else branch_step)
        assert levelled.draft_step_features.at(count, 10) == (features_step if count <= CATCH_UP_ROWS else branch_step)
    assert levelled.draft_step.relative_error == 0.01
    assert levelled.draft_step.source == "test"


def test_a_lane_without_a_draft_stays_without() -> None:
    levelled = LaneTables(target=fitted(operations(1e-3, 5e-3, 3e-3))).levelled(Level(step=2.0, branch_step=3.0))
    assert levelled.draft_step is levelled.draft_step_features is None


def test_a_table_holds_what_it_is_given() -> None:
    table = make_table([1, 3], [10, 20], [[1.0, 2.0], [3.0, 5.0]], relative_error=0.1, source="a test")
    assert (table.at(1, 20), table.at(3, 10), table.at(2, 15)) == (2.0, 3.0, 2.75)
    assert (table.relative_error, table.source) == (0.1, "a test")
