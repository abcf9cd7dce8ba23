import pytest

from mirrorsd.demo.busy import note_on


@pytest.mark.parametrize(("load", "num_cores"), [(0.0, 1), (0.3, 1), (0.6, 2), (2.0, 8)])
def test_a_quiet_machine_is_not_spoken_of(load, num_cores):
    assert note_on(load, num_cores) is None


def test_a_busy_machine_is():
    note = note_on(1.44, 2)
    assert note.startswith("This machine was busy (load average 1.4 on 2 cores) when this began")
