"""Calibration: measures the lanes of this machine with given models, and makes a `Profile`.

`passes` times parts, pairs of lanes and short decodings, all between anchors. `fitted_profile` turns the samples, as
ratios to anchors, into tables, levels and errors. The samples are saved with the profile.
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
    """A profile, and the samples that it was fitted to."""

    profile: Profile
    samples: Samples

    def save(self, path: Path) -> Profile:
        """Write the samples, and the profile that names their file; return the profile as written.

        Raises `ConfigError` if the profile cannot be written, and `ProfileError` if the samples cannot; in this case
        the profile is written without them.
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
    """Run a calibration; `Profile.calibration_s` is how long it took, including the loading of models.

    Samples in `unfinished` from an interrupted run of the same task are not measured again; new ones are stored there
    until it is removed. `Profile.notes` says what was measured less often than wanted for lack of time.

    Raises:
        ConfigError: the contexts are no range.
        LaneError: a lane was lost.
        ModelError: a model cannot be loaded.
        ProfileError: the fitted time of a necessary part is zero.
    """
    start_s = clock()
    unfinished = unfinished or Unfinished(None)
    measuring = Measuring(engine, task, progress, clock, unfinished)
    try:
        measuring.run_passes()
        profile = measuring.profile_by(partial(fitted_profile, task))
    except ProfileError:  # a calibration that continued from these samples would fail by the same noise
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
    """Say how many timings are from before an interruption."""
    kept, num_visits = measuring.num_kept, len(measuring.samples.visits)
    if kept:
        yield f"Calibration was interrupted: {kept} of {num_visits} timings are from before, each by its own anchors."


def _in_words(rows: Mapping[str, RowInvariance]) -> Iterator[str]:
    """Describe how exact the text on each tested lane is, except for plainly exact lanes."""
    for found in sorted({found for found in rows.values() if not found.is_plain}):
        lanes = ", ".join(name for name, one in rows.items() if one == found)
        yield f"Text on {lanes} is {found}."
