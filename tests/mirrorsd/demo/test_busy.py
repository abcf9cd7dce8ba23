import pytest

from hwprofiles.other_use import Use
from mirrorsd.demo.busy import busy_meanwhile, busy_now, weak_answer

BUSY = Use(programs=0.84, host=0.31, num_cores=2)


@pytest.mark.parametrize("warning", [busy_now, busy_meanwhile, weak_answer])
def test_a_quiet_machine_is_not_warned_of_and_a_busy_one_with_its_numbers(warning):
    assert warning(None) is None
    assert warning(Use(programs=0.05, host=0.05, num_cores=2)) is None
    assert "0.8 of the 2 cores and the host of this virtual machine 0.3" in warning(BUSY)
    assert "less certain than on a quiet machine" in warning(BUSY)


def test_work_that_measures_no_time_says_what_it_suffers():
    assert busy_now(BUSY, "it takes longer").endswith(": it takes longer.")
