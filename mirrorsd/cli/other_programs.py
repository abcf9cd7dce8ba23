"""Says when other programs use the machine while a verb measures it: once during the work, and when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from mirrorsd.cli.console import escaped, say

if TYPE_CHECKING:
    from decoding.progress import ReportProgress
    from hwprofiles.other_use import OtherUse

_LOOK_EVERY_S: Final = 5.0


class OthersWatch:
    """Looks now and then, and says once whether others use the machine."""

    def __init__(
        self, others: OtherUse, *, effect: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Watch `others`; `effect` is what they do to this work, None for less certain times."""
        self._has_warned = False
        self._effects = () if effect is None else (effect,)
        self._others, self._clock = others, clock
        self._looked_s = clock()

    def look(self) -> None:
        """Warn if others used the machine since the last look; no look within `_LOOK_EVERY_S` of one."""
        from hwprofiles.other_use import busy

        if not self._has_warned and self._clock() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = self._clock()
            self.warn(busy(self._others.lately(), *self._effects))

    def warn(self, note: str | None) -> None:
        """Say it, if there is anything to say."""
        if note is not None:
            self._has_warned = True
            say(f"[yellow]{escaped(note)}[/]")

    def on(self, report: ReportProgress) -> ReportProgress:
        """The same report of progress, with a look each time."""

        def report_and_look(step: str, share: float) -> None:
            report(step, share)
            self.look()

        return report_and_look


@contextmanager
def watching_others(*, effect: str | None = None) -> Iterator[OthersWatch]:
    """Watch while the body runs, and say what others used over all when it is done; `effect` as of `OthersWatch`."""
    from hwprofiles.other_use import OtherUse, busy

    others = OtherUse()
    watch = OthersWatch(others, effect=effect)
    yield watch
    watch.warn(busy(others.so_far(), *(() if effect is None else (effect,)), is_over=True))
