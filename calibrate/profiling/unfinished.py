"""What a calibration has measured is kept while it runs: should it be interrupted, the same one goes on from there.

Nothing of it is taken at its speed then: every measurement has anchors of its own around it.
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
"""Between two times that all samples are written: it takes some hundredths of a second, in which no lane is timed."""


class Unfinished:
    """A file of samples beside a profile to be, there from the first samples until the profile is; None keeps nothing.

    `saved` has a sentence about it meanwhile, with the `command` that goes on; `tell` is given one when a calibration
    begins with what was kept.
    """

    def __init__(
        self,
        profile: Path | None,
        tell: Callable[[str], object] = lambda _: None,
        saved: list[str] | None = None,
        command: str = "the same command",
    ) -> None:
        """Prepare; nothing is read or written."""
        self.saved: list[str] = [] if saved is None else saved
        self._path, self._tell = None if profile is None else samples_beside(profile, "unfinished"), tell
        self._sentence = f"What was measured is in {self._path}; {command} goes on from there."
        self._question = ""
        self._saved_s = time.monotonic()

    def begin(self, task: CalibrationTask) -> Samples:
        """Return what an interrupted calibration measured for the same task, on this machine; none without one."""
        self._question = _question(task)
        if self._path is None or not self._path.exists():
            return Samples()
        try:
            samples = load_samples(self._path, self._question)
        except ProfileError as error:
            self._tell(f"{error}; everything is measured again.")
            return Samples()
        self._tell(f"Going on from {self._path}, what was measured before an interruption. To measure all, delete it.")
        return samples

    def keep(self, samples: Samples) -> None:
        """Write the samples unless that was done just now."""
        if time.monotonic() - self._saved_s >= _EVERY_S:
            self.save(samples)

    def save(self, samples: Samples) -> None:
        """Write the samples, if there are any; a full disk costs only that they are lost with an interruption."""
        if self._path is None or not samples.visits:
            return
        with suppress(ProfileError):
            save_samples(samples, self._path, self._question)
            if self._sentence not in self.saved:
                self.saved.append(self._sentence)
        self._saved_s = time.monotonic()

    def remove(self) -> None:
        """Delete the file, if there is one: the profile is there, or does not come out of these samples."""
        if self._path is not None:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        if self._sentence in self.saved:
            self.saved.remove(self._sentence)


def _question(task: CalibrationTask) -> str:
    """Return what has to be the same for samples to be of use.

    That is this machine, the task but for its time, and the exits that targets are compiled for: cuts take time.
    """
    host = describe_host(Device.of_lane(lane.name).name for lane in task.lanes)
    exits = [task.decoded_exit(lane.name) for lane in task.lanes]
    return sha256(repr((replace(task, time_s=None), exits, host)).encode()).hexdigest()
