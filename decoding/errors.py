"""Errors a user can meet, in one tree. Broken invariants of our own are plain ``assert``s, not members of it.

::

    MirrorsdError                   catch this to catch them all
     ├── ConfigError                a YAML file, schedule, setting or argument is wrong
     ├── ProfileError               a device, link or platform profile is wrong or missing
     │    └── OutOfRangeError       a question outside the range that was measured
     ├── PlanError                  no schedule satisfies what was asked
     ├── RecordError                an acceptance record is wrong, or does not cover the question
     ├── TraceError                 a trace is wrong, or two traces cannot be compared
     ├── ModelError                 a model cannot be had or used
     │    ├── ModelFetchError       it could not be downloaded or placed in the cache
     │    ├── ModelFormatError      its files are missing, damaged or contradictory
     │    └── UnsupportedModelError its files are sound, but of a family that is not supported
     ├── TrainingError              data, recipe or state of a training run is wrong
     └── LaneError                  a lane could not do its work
          ├── LaneDiedError         its process ended or its device failed
          └── LaneTimeoutError      it did not answer in time

A message names the file (where there is one), the value found, and the valid ones.
"""

from collections.abc import Sequence


class MirrorsdError(Exception):
    """Base of every error that a user's input, files or machine can cause."""


class ConfigError(MirrorsdError):
    """A YAML file, schedule, setting or argument is wrong."""


class ProfileError(MirrorsdError):
    """A device, link or platform profile is wrong or missing."""


class OutOfRangeError(ProfileError):
    """A question lies outside the range that was measured; nothing is extrapolated silently."""


class PlanError(MirrorsdError):
    """No schedule satisfies what was asked."""


class RecordError(MirrorsdError):
    """An acceptance record is wrong, or does not cover the schedule to be replayed."""


class TraceError(MirrorsdError):
    """A trace is wrong, or two traces cannot be compared."""


class ModelError(MirrorsdError):
    """A model cannot be had or used."""


class ModelFetchError(ModelError):
    """A model could not be downloaded or placed in the cache."""


class ModelFormatError(ModelError):
    """A model's files are missing, damaged or contradict each other."""


class UnsupportedModelError(ModelError):
    """A model's files are sound, but of a family that is not supported."""


class TrainingError(MirrorsdError):
    """The data, the recipe or the state of a training run is wrong."""


class LaneError(MirrorsdError):
    """A lane could not do its work."""


class LaneDiedError(LaneError):
    """A lane's process ended, or its device failed.

    `tokens` holds the new tokens committed until then, if a sequence was being decoded.
    """

    def __init__(self, message: str, *, tokens: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.tokens = tuple(tokens)


class LaneTimeoutError(LaneError):
    """A lane did not answer in time."""
