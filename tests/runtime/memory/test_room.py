"""What lanes need is set against what the machine has left, before anything is loaded."""

import json
from dataclasses import replace

import pytest

from decoding.errors import MemoryFitError
from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.memory import needs
from runtime.memory.needs import LaneNeed, Room, available_bytes, host_needed
from tests.runtime.engine.schedules import POOLED, speculative
from tests.runtime.memory.test_needs import QWEN3_8B
from tests.runtime.thread_lanes import thread_engine

GIB = 10**9
NEEDS = {"big": LaneNeed(weights=16 * GIB, keys_values=GIB), "small": LaneNeed(weights=GIB, branches=2 * GIB)}


def test_what_fits_is_given_and_what_does_not_is_refused_with_the_numbers():
    Room().take(NEEDS, running=(), available=20 * GIB)
    with pytest.raises(MemoryFitError) as caught:
        Room().take(NEEDS, running=(), available=20 * GIB - 1)
    text = str(caught.value)
    assert text.startswith("20.0 GB more memory needed, 20.0 GB available. lane 'big' 17.0 GB (weights 16.0 GB, ")
    assert "branches 2.0 GB" in text
    assert text.endswith("What helps most: a smaller model, or bfloat16 if this is float32")


@pytest.mark.parametrize(
    ("part", "advice"),
    [("keys_values", "shorter prompts and texts"), ("branches", "fewer roots"), ("working", "shorter windows")],
)
def test_advice_is_about_what_takes_most(part, advice):
    with pytest.raises(MemoryFitError, match=f"What helps most: {advice}"):
        Room().take({"big": LaneNeed(weights=1, **{part: 2})}, running=(), available=2)


def test_what_a_lane_has_taken_is_there_for_its_next_sequence():
    rooms = Room()
    rooms.take(NEEDS, running=(), available=20 * GIB)
    rooms.take(NEEDS, running=("big", "small"), available=0)
    larger = {"big": LaneNeed(weights=16 * GIB, keys_values=2 * GIB)}
    with pytest.raises(MemoryFitError, match=r"1\.0 GB more memory needed, 0\.0 MB available"):
        rooms.take(larger, running=("big", "small"), available=0)
    rooms.take(larger, running=("big", "small"), available=GIB)


def test_a_lane_that_was_lost_has_given_all_back():
    rooms = Room()
    rooms.take(NEEDS, running=(), available=20 * GIB)
    with pytest.raises(MemoryFitError, match="17.0 GB more"):
        rooms.take(NEEDS, running=("small",), available=16 * GIB)


def test_lanes_that_load_at_once_do_not_count_on_the_same_memory(monkeypatch):
    """What is available says nothing of them: neither has filled what it took."""
    monkeypatch.setattr(needs, "available_bytes", lambda: 20 * GIB)
    rooms = Room()
    with rooms.loading("big", running=()):
        rooms.take({"big": NEEDS["big"]}, running=())
        rooms.take({"big": NEEDS["big"]}, running=())  # its process may not run yet
        with rooms.loading("small", running=()):
            rooms.take({"small": NEEDS["small"]}, running=())
        with (
            rooms.loading("other", running=()),
            pytest.raises(MemoryFitError, match=r"1\.0 GB more memory needed, 0\.0 MB avail"),
        ):
            rooms.take({"other": LaneNeed(weights=GIB)}, running=())
    monkeypatch.setattr(needs, "available_bytes", lambda: GIB)
    with rooms.loading("other", running=("big", "small")):
        rooms.take({"other": LaneNeed(weights=GIB)}, running=("big", "small"))
    with rooms.loading("big", running=("small", "other")), pytest.raises(MemoryFitError, match=r"17\.0 GB more"):
        rooms.take({"big": NEEDS["big"]}, running=("small", "other"))  # its process was lost


def test_an_engine_refuses_a_lane_while_another_one_loads(tiny_folders, monkeypatch):
    with Engine(tiny_folders.target, lanes=[LaneSpec(name="big"), LaneSpec(name="small")]) as engine:
        plain = Schedule(method="autoregressive", target_lane="big")
        need = engine.memory_needed(plain, 1)["big"].total
        monkeypatch.setattr(needs, "available_bytes", lambda: 2 * need - 1)

        def load_target(name):
            assert name == "big"
            with pytest.raises(MemoryFitError, match="lane 'small' "):
                engine.load_target("small")
            loaded.append(name)

        loaded = []
        monkeypatch.setattr(engine._lanes, "load_target", load_target)
        engine.load_target("big")
        assert loaded == ["big"]


@pytest.mark.parametrize("schedule", [speculative(), POOLED])
def test_a_later_prompt_is_not_refused_for_what_its_lanes_hold(tiny_folders, monkeypatch, schedule):
    with thread_engine(tiny_folders.target, drafter_folder=tiny_folders.drafter) as engine:
        needed = engine.memory_needed(schedule, 12)

        def available():
            return sum(need.total for lane, need in needed.items() if not engine.lane(lane).is_alive)

        def generate():
            return engine.generate(schedule, [5, 17, 3, 44], max_new_tokens=8, eos_token_ids=())

        monkeypatch.setattr(needs, "available_bytes", available)
        first = generate()
        assert generate().tokens == first.tokens
        engine.lane(schedule.draft_lane).kill("it is to load again")
        assert generate().tokens == first.tokens
        with pytest.raises(MemoryFitError):
            engine.generate(schedule, [5, 17, 3, 44] * 10, max_new_tokens=8)


def test_drafters_that_a_lane_keeps_are_counted_beside_the_one_that_drafts(tiny_folders, monkeypatch):
    first, second = (
        speculative(drafter=str(folder)) for folder in (tiny_folders.drafter, tiny_folders.feature_drafter)
    )
    monkeypatch.setattr(needs, "available_bytes", lambda: None)
    with thread_engine(tiny_folders.target) as engine:

        def generate(schedule):
            engine.generate(schedule, [5, 17, 3, 44], max_new_tokens=8, eos_token_ids=())

        generate(first)
        here, there = (engine.memory_needed(schedule, 12)["small"] for schedule in (first, second))
        missing = here.weights + there.total - here.total
        monkeypatch.setattr(needs, "available_bytes", lambda: missing - 1)
        with pytest.raises(MemoryFitError, match="lane 'small' "):
            generate(second)
        monkeypatch.setattr(needs, "available_bytes", lambda: missing)
        generate(second)
        monkeypatch.setattr(needs, "available_bytes", lambda: 0)
        generate(first)  # both are there


@pytest.fixture
def gpu_engine(tmp_path, monkeypatch):
    """An engine of 8 billion weights, with a lane of a GPU that is not there, and of cores."""
    monkeypatch.setattr("runtime.lanes.lane.require_device", lambda _: None)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))

    def made(dtype="bfloat16"):
        return Engine(tmp_path, lanes=[LaneSpec(name="cuda:0"), LaneSpec(name="cpu0")], dtype=dtype)

    return made


def test_of_a_gpus_models_this_machine_holds_matrices_while_they_are_put_together(gpu_engine, monkeypatch):
    """Keys and values, and weights once they are there, are in the GPU's memory, which nobody asks for here."""
    engine = gpu_engine()
    monkeypatch.setattr(needs, "available_bytes", lambda: 14 * GIB)
    plain = Schedule(method="autoregressive", target_lane="cuda:0")
    needed = engine.memory_needed(plain, 40_000)
    assert needed["cuda:0"].keys_values > 5 * GIB
    joined = 36 * ((32 + 2 * 8) * 128 + 2 * 12_288) * 4096  # queries with keys and values, gate with value
    expected = {"cuda:0": LaneNeed(weights=2 * joined, process=needs.PROCESS_BYTES)}
    assert host_needed(engine.config, needed, "bfloat16") == expected
    engine.take_room(plain, 40_000)
    with pytest.raises(MemoryFitError, match="lane 'cpu0' 16"):
        engine.take_room(Schedule(method="autoregressive", target_lane="cpu0"), 1)
    with pytest.raises(MemoryFitError, match="lane 'cuda:0' 3"):  # all of them are widened
        gpu_engine("float32").take_room(plain, 1)
    drawn = replace(engine.config, random_seed=0)  # windows onto one block
    assert host_needed(drawn, needed, "bfloat16")["cuda:0"].weights == 0


def test_where_nobody_knows_the_memory_nothing_is_refused(monkeypatch):
    monkeypatch.setattr(needs, "available_bytes", lambda: None)
    Room().take(NEEDS, running=())


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A system with 8,000 kB available, and a container without a limit."""
    (tmp_path / "meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:   8000 kB\n")
    monkeypatch.setattr(needs, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(needs, "_CGROUP", tmp_path)
    return tmp_path


def test_a_container_may_have_less_than_the_machine(system):
    assert available_bytes() == 8000 * 1024
    (system / "memory.max").write_text("max\n")
    (system / "memory.current").write_text("500000\n")
    (system / "memory.stat").write_text("anon 400000\ninactive_file 70000\nactive_file 30000\n")
    assert available_bytes() == 8000 * 1024
    (system / "memory.max").write_text("1000000\n")
    assert available_bytes() == 600_000


def test_an_engine_refuses_before_it_starts_a_lane(tiny_folders, monkeypatch):
    monkeypatch.setattr(needs, "available_bytes", lambda: 1000)
    lanes = [LaneSpec(name="big"), LaneSpec(name="small")]
    with Engine(tiny_folders.target, lanes=lanes, drafter_folder=tiny_folders.drafter) as engine:
        split = Schedule(method="speculative", target_lane="big", draft_lane="small", num_speculative_tokens=2)
        with pytest.raises(MemoryFitError, match="lane 'big' .*; lane 'small' "):
            engine.generate(split, [1, 2, 3], max_new_tokens=4)
        with pytest.raises(MemoryFitError, match="lane 'big' "):
            engine.load_target("big")
        assert not any(engine.lane(name).is_alive for name in ("big", "small"))
