import pytest

from hwprofiles.other_use import Use
from mirrorsd.demo.busy import busy

BUSY = Use(programs=0.84, host=0.31, num_cores=2)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_quiet_machine_is_not_warned_of_and_a_busy_one_with_its_numbers(is_over):
    assert busy(None, is_over=is_over) is None
    assert busy(Use(programs=0.05, host=0.05, num_cores=2), is_over=is_over) is None
    assert "0.8 of the 2 cores and the host of this virtual machine 0.3" in busy(BUSY, is_over=is_over)
    assert busy(BUSY, is_over=is_over).endswith(": what is measured is less certain than on a quiet machine.")
    assert busy(BUSY, "it takes longer", is_over=is_over).endswith(": it takes longer.")
