import pytest

from mirrorsd.demo.busy import busy_note


@pytest.mark.parametrize(("load", "num_cores"), [(0.0, 1), (0.3, 1), (0.6, 2), (2.0, 8)])
def test_a_quiet_machine_is_not_spoken_of(load, num_cores):
    assert busy_note(num_cores, load) is None


def test_a_busy_machine_is():
    note = busy_note(2, 1.44)
    assert note.startswith("This machine was busy (load average 1.4 on 2 cores) when this began")
