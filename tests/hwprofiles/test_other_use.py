"""Against a made-up /proc: what others used is what the cores worked less what we did."""

import os
import time

import pytest

from hwprofiles.other_use import Counters, OtherUse, Use, busy, own_processes, read_counters, usable_cores

TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Machine:
    """A clock and counters that a test moves."""

    def __init__(self):
        self.now_s, self.counters = 100.0, Counters(1000.0, 50.0, 3.0)

    def passes(self, seconds, *, working=0.0, own=0.0, stolen=0.0):
        self.now_s += seconds
        before = self.counters
        self.counters = Counters(before.working + working, before.own + own, before.stolen + stolen)

    def watch(self):
        return OtherUse(lambda: self.counters, num_cores=2, clock=lambda: self.now_s)


@pytest.fixture
def box():
    return Machine()


@pytest.mark.parametrize(
    ("passed", "programs", "host"),
    [
        ({"working": 15, "own": 15}, 0.0, 0.0),
        ({"working": 15, "own": 10, "stolen": 2}, 0.5, 0.2),
        ({"working": 5, "own": 6}, 0.0, 0.0),
    ],
    ids=["our own work", "others and the host", "a process that ends unseen"],
)
def test_our_own_work_is_not_that_of_others_and_that_of_the_host_is_told_apart(box, passed, programs, host):
    others = box.watch()
    box.passes(10, **passed)
    found = others.so_far()
    assert found == Use(programs=pytest.approx(programs), host=pytest.approx(host), num_cores=2)
    assert found.share == pytest.approx((programs + host) / 2)


def test_lately_is_since_it_was_last_asked_and_so_far_since_the_start(box):
    others = box.watch()
    box.passes(10, working=20, own=10)
    assert others.lately().programs == pytest.approx(1.0)
    box.passes(10, working=10, own=10)
    assert others.lately().programs == 0
    assert others.so_far().programs == pytest.approx(0.5)


def test_nothing_is_said_of_a_moment(box):
    others = box.watch()
    box.passes(0.05, working=0.05)
    assert others.lately() is None
    box.passes(0.95, working=0.95)
    assert others.lately().programs == pytest.approx(1.0), "the moment before is part of it"


def test_counters_that_never_move_or_are_not_there_tell_nothing(box):
    others = box.watch()
    box.passes(10)
    assert others.so_far() is None
    assert OtherUse(lambda: None, num_cores=2, clock=iter([0.0, 9.0]).__next__).so_far() is None


@pytest.mark.parametrize(
    ("programs", "host", "num_cores", "expected"),
    [(0.1, 0.0, 2, False), (0.2, 0.0, 2, True), (0.1, 0.1, 2, True), (0.2, 0.0, 16, False), (0.6, 0.0, 16, True)],
)
def test_what_a_quiet_machine_shows_is_not_noticeable(programs, host, num_cores, expected):
    assert Use(programs, host, num_cores).is_noticeable == expected


@pytest.fixture
def proc(tmp_path):
    """Two of our cores and a foreign one; we, a child, its child, and a stranger."""
    core = usable_cores()[0]
    lines = [f"cpu{core} 100 20 30 4000 50 6 7 8 90 0", "cpu99999 9 9 9 9 9 9 9 9 9 9", "intr 1", "btime 5"]
    (tmp_path / "stat").write_text("\n".join(lines) + "\n")

    def process(pid, parent, name, times):
        folder = tmp_path / str(pid)
        folder.mkdir()
        before = " ".join(["0"] * 9)
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {before} {' '.join(map(str, times))} 20 0\n")

    process(os.getpid(), 1, "python", (1, 2, 3, 4))
    process(9_000_001, os.getpid(), "a lane) S 7 (", (10, 20, 30, 40))
    process(9_000_002, 9_000_001, "its child", (100, 0, 0, 0))
    process(9_000_003, 1, "stranger", (5000, 0, 0, 0))
    return tmp_path


def test_counters_are_of_our_cores_and_of_this_process_and_its_descendants(proc):
    assert own_processes(proc) == (os.getpid(), 9_000_001, 9_000_002)
    found = read_counters(proc)
    assert found.working == pytest.approx((100 + 20 + 30 + 6 + 7) * TICK_S)
    assert found.stolen == pytest.approx(8 * TICK_S)
    assert found.own == pytest.approx((10 + 100 + 100) * TICK_S)


def test_without_proc_nothing_is_known(tmp_path):
    assert read_counters(tmp_path / "none") is None
    assert own_processes(tmp_path / "none") == (os.getpid(),)


@pytest.mark.skipif(read_counters() is None, reason="this system has no counters")
def test_what_this_process_works_is_its_own():
    before, start_s = read_counters(), time.process_time()
    while time.process_time() - start_s < 0.3:
        pass
    after = read_counters()
    assert after.own - before.own > 0.25
    assert after.working - before.working > 0.25


BUSY = Use(programs=0.84, host=0.31, num_cores=2)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_quiet_machine_is_not_warned_of_and_a_busy_one_with_its_numbers(is_over):
    assert busy(None, is_over=is_over) is None
    assert busy(Use(programs=0.05, host=0.05, num_cores=2), is_over=is_over) is None
    assert "0.8 of the 2 cores and the host of this virtual machine 0.3" in busy(BUSY, is_over=is_over)
    assert busy(BUSY, is_over=is_over).endswith(": what is measured is less certain than on a quiet machine.")
    assert busy(BUSY, "it takes longer", is_over=is_over).endswith(": it takes longer.")
