"""So many passes, and fewer if time runs out."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.time_budget import passes_until


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def made(count: int, end_s: float, durations_s: list[float]) -> tuple[list[int], float]:
    """(numbers of the passes, the time when the last one was over)."""
    clock, numbers = Clock(), []
    for number in passes_until(end_s, count, clock):
        numbers.append(number)
        clock.now_s += durations_s[number]
    return numbers, clock.now_s


@pytest.mark.parametrize(
    ("end_s", "durations_s", "num_done"),
    [
        (inf, [10.0, 10.0, 10.0, 10.0], 4),
        (30.0, [10.0, 10.0, 10.0, 10.0], 3),
        (29.9, [10.0, 10.0, 10.0, 10.0], 2),
        (25.0, [5.0, 12.0, 1.0, 1.0], 2),
        (0.0, [10.0, 1.0, 1.0, 1.0], 1),
    ],
)
def test_another_one_is_begun_if_it_would_be_over_in_time(end_s, durations_s, num_done) -> None:
    assert made(4, end_s, durations_s)[0] == list(range(num_done))


@given(
    count=st.integers(1, 8), end_s=st.floats(0, 100), durations_s=st.lists(st.floats(0.1, 30), min_size=8, max_size=8)
)
def test_there_is_always_one_and_the_time_is_overrun_by_no_more_than_one_grew_longer(count, end_s, durations_s) -> None:
    numbers, over_s = made(count, end_s, durations_s)
    assert 1 <= len(numbers) <= count
    if len(numbers) > 1:
        last_s = durations_s[numbers[-1]]
        one_before_s = durations_s[numbers[-1] - 1]
        assert over_s <= end_s + max(0.0, last_s - one_before_s) + 1e-9


def test_where_none_is_asked_for_the_first_one_too_is_begun_in_time_only() -> None:
    assert list(passes_until(-0.1, 3, lambda: 0.0, least=0)) == []
    assert list(passes_until(0.1, 3, lambda: 0.0, least=0)) == [0, 1, 2]


@given(end_s=st.floats(0, 100), later_s=st.floats(0, 100), duration_s=st.floats(0.1, 30))
def test_more_time_never_means_fewer(end_s, later_s, duration_s) -> None:
    durations_s = [duration_s] * 6
    assert len(made(6, end_s, durations_s)[0]) <= len(made(6, end_s + later_s, durations_s)[0])
