"""A clock that stands still between what a test sets."""

from dataclasses import dataclass


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self):
        return self.now_s
