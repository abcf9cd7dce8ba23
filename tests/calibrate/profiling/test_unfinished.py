"""A calibration that was interrupted goes on where it was, if it is asked the same again."""

from collections import Counter

import numpy as np
import pytest

from calibrate.profiling.calibration import calibrate
from calibrate.profiling.samples import Samples, load_samples
from calibrate.profiling.unfinished import Unfinished
from decoding.errors import ProfileError
from tests.calibrate.profiling.fake_machine.asked import HEADS, machine, task

TASK = task(heads=HEADS, time_s=1.0)
"""Of one pass."""


class Interrupts:
    """A clock that interrupts the calibration at a moment."""

    def __init__(self, engine, at_s):
        self._engine, self._at_s = engine, at_s

    def __call__(self):
        if self._engine.clock() >= self._at_s:
            raise KeyboardInterrupt
        return self._engine.clock()


@pytest.fixture(scope="module")
def whole():
    engine = machine()
    return calibrate(engine, TASK, clock=engine.clock)


def interrupted(path, at_s, asked=TASK):
    """What is there after an interruption, and the sentences about it."""
    engine, unfinished = machine(), Unfinished(path)
    with pytest.raises(KeyboardInterrupt):
        calibrate(engine, asked, unfinished=unfinished, clock=Interrupts(engine, at_s))
    return unfinished.saved


def resumed(path, asked=TASK, **options):
    """(calibration, seconds that it took itself, what it told, its file)."""
    engine, told = machine(), []
    unfinished = Unfinished(path, told.append)
    made = calibrate(engine, asked, unfinished=unfinished, clock=engine.clock, **options)
    return made, engine.clock(), told, unfinished


def resumed_till_it_times(path, timed):
    """Go on, note the progress at the first timing, and stop there."""

    def progress(step, share):
        if step == "timing parts":
            timed.append(share)
            raise KeyboardInterrupt

    resumed(path, progress=progress)


def counts(samples: Samples):
    """How often everything was measured."""
    visits = Counter(visit.cell for visit in samples.visits)
    runs = Counter((run.schedule, run.is_check) for run in samples.runs)
    return visits, runs


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7])
def test_an_interrupted_calibration_goes_on_and_measures_nothing_of_its_first_pass_twice(tmp_path, whole, share):
    path, total_s = tmp_path / "p-0.6b", whole.profile.calibration_s
    (sentence,) = interrupted(path, share * total_s)
    assert str(tmp_path / "p-0.6b.unfinished.json.gz") in sentence
    made, own_s, (told,), unfinished = resumed(path)
    assert "before an interruption" in told
    assert own_s == pytest.approx((1 - share) * total_s, abs=0.1 * total_s)
    assert made.profile.calibration_s == pytest.approx(total_s, rel=0.1)
    assert any("Calibration was interrupted" in note for note in made.profile.notes)
    (visits, runs), (all_visits, all_runs) = counts(made.samples), counts(whole.samples)
    assert (visits.keys(), runs.keys()) == (all_visits.keys(), all_runs.keys())
    assert not visits - all_visits, "there may be fewer: of streams, where some were timed"
    again = runs - all_runs
    found = {(schedule.drafter, is_check) for schedule, is_check in again}
    assert found <= {(None, False)}, "decoded again, with the time that was left"
    assert set(again.values()) <= {1}, "and no more than once"
    assert {one.pair for one in made.samples.together} == {one.pair for one in whole.samples.together}
    assert [one.at_s for one in made.samples.anchors] == sorted(one.at_s for one in made.samples.anchors)
    for lane, wanted in zip(made.profile.lanes, whole.profile.lanes, strict=True):
        assert np.array(lane.layer.seconds) == pytest.approx(np.array(wanted.layer.seconds), rel=0.01)
    unfinished.remove()
    assert not list(tmp_path.iterdir())


def test_its_progress_begins_with_what_was_kept(tmp_path, whole):
    shares = []
    for share in (0.05, 0.15):
        interrupted(tmp_path / "p.yaml", share * whole.profile.calibration_s)
        timed = []
        with pytest.raises(KeyboardInterrupt):
            resumed_till_it_times(tmp_path / "p.yaml", timed)
        shares += timed
    assert 0.0 < shares[0] < shares[1]


def test_after_a_whole_pass_no_other_is_begun_for_which_there_is_no_time(tmp_path, whole):
    interrupted(tmp_path / "p.yaml", 0.95 * whole.profile.calibration_s)
    made, own_s, *_ = resumed(tmp_path / "p.yaml")
    assert made.samples.num_passes == 1
    assert own_s < 0.4 * whole.profile.calibration_s, "passes of the target alone"


def test_passes_that_were_made_are_not_made_again(tmp_path):
    asked = task(time_s=1000.0)
    engine = machine()
    total = calibrate(engine, asked, clock=engine.clock).samples
    interrupted(tmp_path / "p.yaml", 0.6 * engine.clock(), asked)
    kept = load_kept(tmp_path / "p.yaml", asked)
    made, *_ = resumed(tmp_path / "p.yaml", asked)
    assert 0 < kept.num_passes < total.num_passes == made.samples.num_passes


def load_kept(path, asked):
    return Unfinished(path).begin(asked)


@pytest.mark.parametrize("changes", [{"max_window": 5}, {"contexts": (20, 221)}, {"target": "u"}, {"quick": False}])
def test_what_answers_another_question_is_not_used(tmp_path, changes):
    interrupted(tmp_path / "p.yaml", 20.0)
    told = []
    assert Unfinished(tmp_path / "p.yaml", told.append).begin(task(heads=HEADS, **changes)) == Samples()
    assert "of other models, lanes or options" in told[0]
    assert load_kept(tmp_path / "p.yaml", task(heads=HEADS, time_s=7.0)).visits, "another time is the same question"


def test_an_earlier_file_is_told_before_it_is_read_and_until_it_is_replaced(tmp_path):
    (goes_on,) = interrupted(tmp_path / "p.yaml", 20.0)
    own, other = Unfinished(tmp_path / "p.yaml"), Unfinished(tmp_path / "p.yaml", saved=["Models are there."])
    still = f"What an earlier calibration measured is still in {tmp_path / 'p.unfinished.json.gz'}."
    assert own.saved == [still], "a calibration may end while it loads models"
    samples = own.begin(TASK)
    assert own.saved == [goes_on]
    other.begin(task(max_window=5))
    assert other.saved == ["Models are there.", still]
    other.save(samples)
    assert other.saved == ["Models are there.", goes_on]
    other.remove()
    assert other.saved == ["Models are there."]


def test_what_another_machine_measured_is_not_used(tmp_path, monkeypatch):
    interrupted(tmp_path / "p.yaml", 20.0)
    monkeypatch.setattr("calibrate.profiling.unfinished.describe_host", lambda _: {"cpu_model": "another"})
    assert load_kept(tmp_path / "p.yaml", TASK) == Samples()


def test_a_damaged_file_is_told_and_everything_is_measured(tmp_path, whole):
    (tmp_path / "p.unfinished.json.gz").write_bytes(b"torn")
    made, _, (told,), _ = resumed(tmp_path / "p.yaml")
    assert "not a readable file" in told
    assert counts(made.samples) == counts(whole.samples)


def test_samples_are_written_while_they_come_and_are_no_finished_ones(tmp_path, monkeypatch):
    monkeypatch.setattr("calibrate.profiling.unfinished._EVERY_S", 0.0)
    *_, unfinished = resumed(tmp_path / "p.yaml")
    assert len(unfinished.saved) == 1
    with pytest.raises(ProfileError, match="interrupted"):
        load_samples(tmp_path / "p.unfinished.json.gz")


def test_samples_that_no_profile_comes_out_of_are_not_gone_on_from(tmp_path, monkeypatch):
    def refused(*_):
        raise ProfileError("it was noise that was timed; calibrate again")

    monkeypatch.setattr("calibrate.profiling.unfinished._EVERY_S", 0.0)
    monkeypatch.setattr("calibrate.profiling.calibration.fitted_profile", refused)
    with pytest.raises(ProfileError, match="noise"):
        resumed(tmp_path / "p.yaml")
    assert not list(tmp_path.iterdir())


def test_a_disk_that_cannot_be_written_ends_no_calibration(tmp_path):
    (tmp_path / "file").write_text("")
    assert interrupted(tmp_path / "file" / "p.yaml", 20.0) == []
