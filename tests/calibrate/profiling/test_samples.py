"""All that was timed is kept, and a profile can be made of it again."""

import gzip
from dataclasses import replace
from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrate.profiling.calibration import calibrate
from calibrate.profiling.fitted_profile import fitted_profile
from calibrate.profiling.samples import Cell, Samples, Visit, load_samples, save_samples
from decoding.errors import ProfileError
from hwprofiles.profile import load_profile
from runtime.wire.measurement import Measurement
from tests.calibrate.profiling.fake_machine.asked import HEADS, machine, task
from tests.calibrate.profiling.fake_machine.engine import LANES
from tests.calibrate.profiling.fake_machine.weather import Weather

TASK = task(exit_features=(1, 3), num_streams=1, heads=HEADS, time_s=200.0)


@pytest.fixture(scope="module")
def made():
    engine = machine(weather=Weather(seed=1, slow=1.4, drift=0.1), step_in_run=1.2)
    return calibrate(engine, TASK, clock=engine.clock)


# Files


def test_samples_survive_their_file(made, tmp_path):
    save_samples(made.samples, tmp_path / "s.json.gz")
    assert load_samples(tmp_path / "s.json.gz") == made.samples
    assert made.samples.num_passes > 1
    assert all(made.samples.dispatch_s[lane.name] for lane in LANES)
    save_samples(load_samples(tmp_path / "s.json.gz"), tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == (tmp_path / "s.json.gz").read_bytes()


def test_a_profile_made_of_the_saved_samples_is_the_one_that_was_written(made, tmp_path):
    written = made.save(tmp_path / "p.yaml")
    assert load_profile(tmp_path / "p.yaml") == written
    assert written.samples == "p.samples.json.gz"
    assert written == made.profile.model_copy(update={"samples": written.samples})
    again = fitted_profile(TASK, load_samples(tmp_path / "p.samples.json.gz"))
    assert again == written.model_copy(
        update={"host": again.host, "calibration_s": 0.0, "samples": None, "is_row_invariant": None}
    )


def test_profiles_whose_names_differ_after_a_dot_keep_samples_of_their_own(made, tmp_path):
    names = {"llama-3.1": "llama-3.1", "llama-3.2": "llama-3.2", "llama-3.yaml": "llama-3"}
    for name, own in names.items():
        assert made.save(tmp_path / name).samples == f"{own}.samples.json.gz"


def test_a_profile_is_a_function_of_its_samples(made):
    slower = [replace(visit, before_s=1.1 * visit.before_s) for visit in made.samples.visits]
    once, twice = (fitted_profile(TASK, made.samples) for _ in range(2))
    assert once == twice
    assert fitted_profile(TASK, replace(made.samples, visits=slower)) != once


DAMAGED = {
    "nothing": b"",
    "no gzip": b'{"format": "mirrorsd-samples-1"}',
    "no JSON": gzip.compress(b"{"),
    "another format": gzip.compress(b'{"format": "mirrorsd-samples-0", "samples": {}}'),
    "no samples": gzip.compress(b'{"format": "mirrorsd-samples-1"}'),
    "another type": gzip.compress(b'{"format": "mirrorsd-samples-1", "samples": {"visits": 3}}'),
    "no text": gzip.compress(b"\xff\xfe"),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_file_of_something_else_is_refused(content, tmp_path):
    path = tmp_path / "s.json.gz"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="s.json.gz: not a readable file of a calibration's samples"):
        load_samples(path)


@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: data[:99] + b"x" + data[100:]])
def test_a_file_that_was_cut_or_changed_is_refused(damage, made, tmp_path):
    path = tmp_path / "s.json.gz"
    save_samples(made.samples, path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ProfileError, match="not a readable file"):
        load_samples(path)


def test_a_file_that_is_not_there_or_cannot_be_written_is_named(tmp_path):
    with pytest.raises(ProfileError, match="none.json.gz: not a readable file"):
        load_samples(tmp_path / "none.json.gz")
    (tmp_path / "file").touch()
    with pytest.raises(ProfileError, match=r"s.json.gz: cannot be written"):
        save_samples(Samples(), tmp_path / "file" / "s.json.gz")


# What they say


CELL = Cell("a", Measurement(part="verify", rows=1, context=10, repeats=3))


@given(st.lists(st.floats(1.0, 1.9), min_size=1, max_size=9))
def test_a_visit_is_the_mean_of_its_repeats_over_that_of_its_anchors(seconds):
    ratio = Visit(CELL, tuple(seconds), 2.0, 3.0, 0.0).ratio
    assert ratio.value == pytest.approx(sum(seconds) / len(seconds) / 2.5)
    assert ratio.doubt == pytest.approx(log(1.5) / 2, rel=0.02)


@pytest.mark.parametrize("seconds", [(1.0, 99.0), (99.0, 1.0, 1.0), (1.0, 1.0, 99.0, 99.0)])
def test_a_spike_counts_as_twice_the_usual(seconds):
    spikes = seconds.count(99.0)
    assert Visit(CELL, seconds, 1.0, 1.0, 0.0).ratio.value == pytest.approx(1 + spikes / len(seconds))


def test_ratios_are_those_of_all_visits_of_a_cell():
    other = Cell("a", CELL.measurement, "eagle")
    visits = [Visit(cell, (seconds,), 1.0, 1.0, 0.0) for cell, seconds in ((CELL, 1.0), (other, 2.0), (CELL, 3.0))]
    samples = Samples(visits=visits)
    assert {cell: [one.value for one in found] for cell, found in samples.ratios().items()} == {
        CELL: [1.0, 3.0],
        other: [2.0],
    }
