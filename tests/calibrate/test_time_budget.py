"""So many passes, and fewer if time runs out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.time_budget import Passes


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def made(count: int, end_s: float, durations_s: list[float]) -> tuple[Passes, list[int], float]:
    """(the passes, their numbers, the time when the last one was over)."""
    clock = Clock()
    passes, numbers = Passes(count=count, end_s=end_s, clock=clock), []
    for number in passes:
        numbers.append(number)
        clock.now_s += durations_s[number]
    return passes, numbers, clock.now_s


def test_without_an_end_all_are_made() -> None:
    passes = Passes(count=4)
    assert list(passes) == [0, 1, 2, 3]
    assert passes.num_done == 4


@pytest.mark.parametrize(
    ("end_s", "durations_s", "num_done"),
    [
        (30.0, [10.0, 10.0, 10.0, 10.0], 3),
        (29.9, [10.0, 10.0, 10.0, 10.0], 2),
        (25.0, [5.0, 12.0, 1.0, 1.0], 2),
        (0.0, [10.0, 1.0, 1.0, 1.0], 1),
    ],
)
def test_another_one_is_begun_if_it_would_be_over_in_time(end_s, durations_s, num_done) -> None:
    passes, numbers, _ = made(4, end_s, durations_s)
    assert numbers == list(range(num_done))
    assert passes.num_done == num_done


@given(
    count=st.integers(1, 8), end_s=st.floats(0, 100), durations_s=st.lists(st.floats(0.1, 30), min_size=8, max_size=8)
)
def test_there_is_always_one_and_the_time_is_overrun_by_no_more_than_one_grew_longer(count, end_s, durations_s) -> None:
    passes, numbers, over_s = made(count, end_s, durations_s)
    assert 1 <= passes.num_done == len(numbers) <= count
    if passes.num_done > 1:
        last_s = durations_s[numbers[-1]]
        one_before_s = durations_s[numbers[-1] - 1]
        assert over_s <= end_s + max(0.0, last_s - one_before_s) + 1e-9


@given(end_s=st.floats(0, 100), later_s=st.floats(0, 100), duration_s=st.floats(0.1, 30))
def test_more_time_never_means_fewer(end_s, later_s, duration_s) -> None:
    durations_s = [duration_s] * 6
    assert made(6, end_s, durations_s)[0].num_done <= made(6, end_s + later_s, durations_s)[0].num_done
