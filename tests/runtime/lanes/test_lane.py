"""A lane's process is where it was told to be, does what it is asked in order, and ends with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from decoding.errors import ConfigError, LaneDiedError, LaneError, LaneTimeoutError
from runtime.lanes.lane import Lane, LaneSpec
from runtime.lanes.lane_set import LaneSet
from runtime.target.target_model import TargetModel
from runtime.wire.measurement import Measurement
from runtime.worker.process import thread_environment
from runtime.worker.server import LaneServer
from runtime.worker.timing import TargetParts
from tests.runtime.forked import started_lane
from tests.runtime.unknown import Unknown
from tests.tiny_models import tiny_target

ROOT = Path(__file__).parents[3]
ON_LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")


@pytest.fixture(scope="module")
def lanes(tiny_folders):
    specs = [LaneSpec(name="big", cores=(min(os.sched_getaffinity(0)),)), LaneSpec(name="small", num_threads=2)]
    folders = {"target": tiny_folders.target, "drafter": tiny_folders.feature_drafter, "exits": tiny_folders.exits}
    lanes = LaneSet(specs, dtype="float32", **folders)
    lanes.load_target("big")
    lanes.load_draft("small")
    yield lanes
    lanes.close()


@pytest.fixture
def sleeper(monkeypatch):
    """A lane that has not yet loaded anything."""
    monkeypatch.setattr(Lane, "start", started_lane)
    lane = Lane(LaneSpec(name="sleeper"))
    lane.start()
    yield lane
    lane.close()


def environment_of(lane):
    path, content = Path(f"/proc/{lane.process_id}/environ"), b""
    while not content:  # a process that has just been started has none for a moment
        content = path.read_bytes()
    return dict(entry.split("=", 1) for entry in content.decode().split("\0") if "=" in entry)


@ON_LINUX
def test_a_lane_is_pinned_and_told_its_threads(lanes):
    assert os.sched_getaffinity(lanes["big"].process_id) == {min(os.sched_getaffinity(0))}
    assert os.sched_getaffinity(lanes["small"].process_id) == os.sched_getaffinity(0)
    assert environment_of(lanes["big"])["OMP_NUM_THREADS"] == "1"
    assert environment_of(lanes["small"])["MKL_NUM_THREADS"] == "2"
    assert "GLIBC_TUNABLES" in environment_of(lanes["small"])


@ON_LINUX
@pytest.mark.parametrize(
    ("num_threads", "given", "expected"),
    [
        (2, {}, {"GOMP_SPINCOUNT": "3000"}),
        (1, {}, {}),
        (2, {"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        (2, {"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "passive"}),
    ],
)
def test_threads_of_a_lane_sleep_after_a_while_unless_the_user_has_decided(monkeypatch, num_threads, given, expected):
    names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    lane = Lane(LaneSpec(name="waiting", num_threads=num_threads))
    lane.start()
    found = environment_of(lane)
    assert {name: found[name] for name in names if name in found} == expected
    lane.kill("the test is over")


def test_memory_of_a_lane_is_in_huge_pages_unless_the_user_has_decided():
    assert thread_environment(1, {"HOME": "/"})["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert thread_environment(1, {"GLIBC_TUNABLES": "glibc.cpu.x=1"})["GLIBC_TUNABLES"] == "glibc.cpu.x=1"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_numpy_has_no_threads_in_a_lane_that_would_spin_on_its_cores():
    code = "import os, numpy; numpy.ones((2048, 512)) @ numpy.ones(512); print(len(os.listdir('/proc/self/task')))"
    environment = {**os.environ, **thread_environment(8, {})}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "1"


def test_the_parent_of_lanes_needs_no_torch():
    code = "import sys, runtime.engine; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_answers_come_in_any_order_they_are_waited_for(sleeper):
    first, second = sleeper.request(LaneServer.ping), sleeper.request(LaneServer.ping)
    later = second.result()
    assert first.result().end_s <= later.start_s


def test_the_failure_of_what_has_no_answer_is_told_by_the_next_one(sleeper):
    sleeper.post(Unknown.dance)
    with pytest.raises(LaneError, match="no operation 'Unknown.dance'"):
        sleeper.request(LaneServer.ping).result()
    assert sleeper.request(LaneServer.ping).result()


def test_waiting_has_an_end(sleeper):
    os.kill(sleeper.process_id, signal.SIGSTOP)
    reply = sleeper.request(LaneServer.ping)
    with pytest.raises(LaneTimeoutError, match=r"'sleeper' has not answered for 0\.05 s"):
        reply.result(timeout_s=0.05)
    os.kill(sleeper.process_id, signal.SIGCONT)
    assert reply.result()


def test_a_killed_lane_says_so_to_whoever_waits(sleeper):
    sleeper.request(LaneServer.ping).result()
    os.kill(sleeper.process_id, signal.SIGKILL)
    with pytest.raises(LaneDiedError, match=r"its process ended \(exit code -9\)"):
        sleeper.request(LaneServer.ping).result()
    assert not sleeper.is_alive
    sleeper.post(LaneServer.ping)  # into the void
    sleeper.start()
    assert sleeper.request(LaneServer.ping).result()


def test_an_interrupt_from_the_keyboard_is_left_to_the_parent(lanes):
    os.kill(lanes["small"].process_id, signal.SIGINT)
    assert lanes["small"].request(LaneServer.ping).result()


def test_a_lane_ends_with_its_parent():
    code = (
        "import os; from runtime.lanes.lane import Lane, LaneSpec; from runtime.worker.server import LaneServer; "
        "lane = Lane(LaneSpec(name='orphan')); lane.start(); "
        "lane.request(LaneServer.ping).result(); print(lane.process_id, flush=True); os.kill(os.getpid(), 9)"
    )
    # the lane inherits the pipe of this output, which ends only when the lane has ended too
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert found.returncode == -signal.SIGKILL
    assert int(found.stdout) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "num_threads is 0"),
        ({"num_threads": 10**9}, "num_threads is 1000000000, it must be 1 to 1024"),
        ({"cores": (0, 9999)}, "9999.*not all among those available"),
    ],
)
def test_impossible_lanes_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        LaneSpec(name="odd", **options)


def test_lanes_choose_the_same_kernels_by_device_threads_ranks_and_kind_of_core(monkeypatch):
    monkeypatch.setattr("runtime.lanes.lane.chosen_by", lambda cores: ["a CPU"])
    one = LaneSpec(name="one")
    assert one.kernels == LaneSpec(name="other").kernels
    for other in (LaneSpec(name="one", num_threads=2), LaneSpec(name="one-2ranks"), LaneSpec(name="one", dtype="int8")):
        assert one.kernels != other.kernels
    first = (min(os.sched_getaffinity(0)),)
    monkeypatch.setattr("runtime.lanes.lane.chosen_by", lambda cores: ["another CPU" if cores else "a CPU"])
    assert one.kernels != LaneSpec(name="one", cores=first).kernels
    monkeypatch.setattr("runtime.lanes.lane.chosen_by", lambda cores: [])
    assert one.kernels != LaneSpec(name="other").kernels


def test_lanes_have_names_of_their_own(tiny_folders):
    specs = [LaneSpec(name="same"), LaneSpec(name="same")]
    with pytest.raises(ConfigError, match="share a name"):
        LaneSet(specs, target=tiny_folders.target, drafter=None, exits=None, dtype="float32")


# Measuring


@pytest.mark.parametrize(
    ("lane", "options"),
    [
        *(("big", {"part": part, "rows": 3, "exit_layer": 2}) for part in ("verify", "verify_tree", "lm_head", "exit")),
        ("small", {"part": "draft_step", "rows": 6, "num_alternatives": 4}),
        ("small", {"part": "draft_step", "rows": 7, "num_proposals": 4, "with_features": True}),
        ("small", {"part": "head_step", "rows": 5}),
    ],
)
def test_every_part_can_be_timed(lanes, lane, options):
    seconds = lanes[lane].measure(Measurement(**options, context=20, repeats=4))
    assert len(seconds) == 4
    assert all(0 < each < 10 for each in seconds)


@pytest.mark.parametrize(("tree_size", "depth"), [(1, 1), (2, 1), (7, 3), (64, 6)])
def test_a_path_of_a_timed_tree_is_moved_after_the_text(tree_size, depth):
    model, moved = TargetModel.of(tiny_target()), []
    prepared = TargetParts(model, Measurement(part="verify_tree", rows=tree_size + 1, context=20)).prepare()
    prepared.before()
    model.cache.gather = lambda slots, destination: moved.append((slots, destination))
    prepared.run()
    slots, destination = moved[-1]
    assert (slots[-1], destination, len(slots)) == (20 + tree_size, 21, depth)


@pytest.mark.parametrize(("part", "layers"), [("lm_head", 4), ("exit", 4), ("verify", 0)])
def test_layers_before_a_head_or_an_exit_are_passed_outside_the_clock(part, layers):
    model, passed = TargetModel.of(tiny_target()), []
    advance = model.advance
    model.advance = lambda rows, stop: passed.append(stop) or advance(rows, stop)
    prepared = TargetParts(model, Measurement(part=part, rows=3, context=20, exit_layer=2)).prepare()
    for _ in range(2):
        passed.clear()
        prepared.before()
        assert passed == [layers] * bool(layers)
        prepared.run()
        assert passed == [layers or 4]
        assert model.cache.cursor >= 20 or part == "exit"


def test_a_lane_can_be_kept_busy_while_another_is_timed(lanes):
    step = Measurement(part="draft_step", rows=4, context=10)
    with lanes["small"].busy(step) as meanwhile:
        lanes["big"].measure(Measurement(part="verify", rows=3, context=20, repeats=20))
    assert len(meanwhile) >= 1
    assert len(lanes["small"].measure(step)) == 1


@pytest.mark.parametrize(
    ("lane", "measurement", "message"),
    [
        ("small", Measurement(part="verify"), "loaded no target"),
        ("big", Measurement(part="draft_step"), "loaded no draft"),
        ("big", Measurement(part="exit"), "without an exit_layer"),
        ("big", Measurement(part="lunch"), "part 'lunch' is unknown; known: verify, verify_tree"),
    ],
)
def test_what_cannot_be_timed_is_refused(lanes, lane, measurement, message):
    with pytest.raises(LaneError, match=message):
        lanes[lane].measure(measurement)
