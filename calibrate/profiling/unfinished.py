"""Saves the samples of a running calibration, so that the same calibration can continue after an interruption.

The machine's speed may have changed meanwhile, but each sample is compared with the anchors around it.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final

from calibrate.profiling.samples import Samples, load_samples, samples_beside, save_samples
from calibrate.profiling.task import CalibrationTask
from decoding.errors import ProfileError
from hwprofiles.host import describe_host
from runtime.backends.lane_device import Device

_EVERY_S: Final = 20.0
"""Least time between two writes of all samples: a write takes some hundredths of a second, when no lane is timed."""


class Unfinished:
    """The file with the samples of a running calibration, beside the profile that it will write.

    Args:
        profile: path of the profile; None keeps nothing.
        tell: called with a sentence when a calibration begins with saved samples.
        saved: holds a sentence about the file while it exists, from `begin` on with the `command` that continues.
        command: the command that continues the calibration, in words.
    """

    def __init__(
        self,
        profile: Path | None,
        tell: Callable[[str], object] = lambda _: None,
        saved: list[str] | None = None,
        command: str = "the same command",
    ) -> None:
        """Set up without reading or writing the file, but say whether an earlier calibration left one."""
        self.saved: list[str] = [] if saved is None else saved
        self._path, self._tell = None if profile is None else samples_beside(profile, "unfinished"), tell
        self._sentence = f"What was measured is in {self._path}; {command} goes on from there."
        self._earlier = f"What an earlier calibration measured is still in {self._path}."
        if self._path is not None and self._path.exists():
            self.saved.append(self._earlier)
        self._question = ""
        self._saved_s = time.monotonic()

    def begin(self, task: CalibrationTask) -> Samples:
        """Return the samples that an interrupted calibration of the same task left on this machine, if any."""
        self._question = _question(task)
        if self._path is None or not self._path.exists():
            return Samples()
        try:
            samples = load_samples(self._path, self._question)
        except ProfileError as error:
            self._tell(f"{error}; everything is measured again.")
            return Samples()
        self._say(self._sentence)
        self._tell(f"Going on from {self._path}, what was measured before an interruption. To measure all, delete it.")
        return samples

    def keep(self, samples: Samples) -> None:
        """Write the samples, unless they were written within the last `_EVERY_S`."""
        if time.monotonic() - self._saved_s >= _EVERY_S:
            self.save(samples)

    def save(self, samples: Samples) -> None:
        """Write the samples, if there are any; errors are ignored, since the calibration itself can go on."""
        if self._path is None or not samples.visits:
            return
        with suppress(ProfileError):
            save_samples(samples, self._path, self._question)
            self._say(self._sentence)
        self._saved_s = time.monotonic()

    def remove(self) -> None:
        """Delete the file if it exists: the profile was written, or cannot be fitted to these samples."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        self._say()

    def _say(self, *sentences: str) -> None:
        self.saved[:] = [one for one in self.saved if one not in (self._earlier, self._sentence)] + list(sentences)


def _question(task: CalibrationTask) -> str:
    """Return a hash of all that must be equal for saved samples to be usable.

    That is this machine, the task without its time limit, and the exits that targets are compiled for (they cost time).
    """
    host = describe_host(Device.of_lane(lane.name).name for lane in task.lanes)
    exits = [task.decoded_exit(lane.name) for lane in task.lanes]
    return sha256(repr((replace(task, time_s=None), exits, host)).encode()).hexdigest()
