"""Calibration: measures every lane of this machine with these models, and writes it down as a `Profile`.

Passes time parts, pairs of lanes and short decodings in turn, each between anchors of its lane (`passes`); their
samples are kept with the profile; ratios to anchors become tables, levels and errors (`fitted_profile`).
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from calibrate.profiling.fitted_profile import fitted_profile
from calibrate.profiling.passes import Measuring
from calibrate.profiling.samples import Samples, samples_beside, save_samples
from calibrate.profiling.task import CalibrationTask
from calibrate.profiling.unfinished import Unfinished
from decoding.errors import ProfileError
from decoding.progress import ReportProgress
from hwprofiles.profile import Profile, save_profile
from runtime.engine import Engine
from runtime.wire.operations import RowInvariance
from runtime.wire.stops import working_s


class Calibration(NamedTuple):
    """A profile, and all that it was made from."""

    profile: Profile
    samples: Samples

    def save(self, path: Path) -> Profile:
        """Write both, the samples next to the profile, which names them; return the profile as written.

        Raises `ConfigError` if the profile cannot be written, `ProfileError` if the samples cannot be: then the
        profile is there without them.
        """
        samples_path = samples_beside(path, "samples")
        try:
            save_samples(self.samples, samples_path)
        except ProfileError:
            save_profile(self.profile, path)
            raise
        profile = self.profile.model_copy(update={"samples": samples_path.name})
        save_profile(profile, path)
        return profile


def calibrate(
    engine: Engine,
    task: CalibrationTask,
    progress: ReportProgress = lambda _step, _share: None,
    *,
    unfinished: Unfinished | None = None,
    clock: Callable[[], float] = working_s,
) -> Calibration:
    """Measure everything; `Profile.calibration_s` is how long it took, loading the models included.

    What `unfinished` has of the same calibration is not measured again; it keeps what is measured until it is removed.
    Where the task's time ran short, `Profile.notes` lists what was measured less often than wanted.

    Raises:
        ConfigError: the contexts are no range.
        LaneError: a lane was lost.
        ModelError: a model cannot be loaded.
        ProfileError: a part that every schedule needs came out as costing nothing.
    """
    start_s = clock()
    unfinished = unfinished or Unfinished(None)
    measuring = Measuring(engine, task, progress, clock, unfinished)
    try:
        measuring.run_passes()
        profile = measuring.profile_by(partial(fitted_profile, task))
    except ProfileError:  # the same noise would spoil the next one
        unfinished.remove()
        raise
    except BaseException:  # an interrupt from the keyboard, or a lost lane
        unfinished.save(measuring.samples)
        raise
    facts = {
        "is_row_invariant": all(found.is_invariant for found in measuring.rows.values()),
        "calibration_s": measuring.earlier_s + clock() - start_s,
        "notes": (*_in_words(measuring.rows), *_on_kept(measuring), *profile.notes),
    }
    progress("done", 1.0)
    return Calibration(profile.model_copy(update=facts), measuring.samples)


def _on_kept(measuring: Measuring) -> Iterator[str]:
    """Say what was measured before an interruption."""
    kept, num_visits = measuring.num_kept, len(measuring.samples.visits)
    if kept:
        yield f"Calibration was interrupted: {kept} of {num_visits} timings are from before, each by its own anchors."


def _in_words(rows: Mapping[str, RowInvariance]) -> Iterator[str]:
    """Say of each tested lane how exact it is, inexact ones first, and what that took."""
    for found in sorted({found for found in rows.values() if not found.is_plain}):
        lanes = ", ".join(name for name, one in rows.items() if one == found)
        yield f"Text on {lanes} is {found}."
