"""Progress on stderr: the step, the share done, the time left, and warnings about other programs on the machine.

A terminal shows a moving bar; a file or a pipe gets a line now and then.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from decoding.progress import ReportProgress
from mirrorsd.cli.console import escaped, messages, say

if TYPE_CHECKING:
    from hwprofiles.other_use import OtherUse
    from mirrorsd.demo.stages import StageReport

_LINE_EVERY_S: Final = 15.0
_NEVER_DONE: Final = 0.999
"""The most a bar shows: rich stops the clock of a full bar, but the work may go on with a next step."""


@contextmanager
def task(title: str) -> Iterator[ReportProgress]:
    """Show the progress of one task; the body reports it to the yielded function."""
    with _bar() as update:
        yield lambda step, share: update(f"{title}: {step.partition(',')[0]}", f"{title}: {step}", share)


@contextmanager
def stages() -> Iterator[Callable[["StageReport"], None]]:
    """Show a progress bar for a job of several stages."""
    with _bar() as update:

        def report(now: "StageReport") -> None:
            head = f"[{now.number}/{now.num_stages}] {now.stage}"
            update(head, f"{_left(now.left_s)} left, {head}: {now.step}", now.share)

        yield report


@contextmanager
def _bar() -> Iterator[Callable[[str, str, float], None]]:
    """Yield a function that takes (heading, text, share); a line is printed for a new heading, or after some time."""
    if not messages().is_terminal:
        yield _lines()
        return
    from rich import progress
    from rich.table import Column

    # The text gets the remaining width, so that a narrow terminal cuts words and not numbers.
    text_column = progress.TextColumn(
        "{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")
    )
    columns = (
        progress.TaskProgressColumn(),
        progress.BarColumn(bar_width=16),
        progress.TimeElapsedColumn(),
        text_column,
    )
    with progress.Progress(*columns, console=messages(), transient=True, expand=True) as bar:
        row = bar.add_task("starting", total=1.0)
        yield lambda _, text, share: bar.update(row, description=escaped(text), completed=min(share, _NEVER_DONE))


def _lines() -> Callable[[str, str, float], None]:
    printed, printed_s = "", 0.0

    def update(heading: str, text: str, share: float) -> None:
        nonlocal printed, printed_s
        now_s = time.monotonic()
        if heading != printed or now_s - printed_s >= _LINE_EVERY_S:
            printed, printed_s = heading, now_s
            say(f"{share:4.0%} {escaped(text)}")

    return update


def _left(seconds: float) -> str:
    """Return a rounded duration, since the estimate is rough."""
    return f"about {max(1, round(seconds / 5)) * 5} s" if seconds < 90 else f"about {seconds / 60:.0f} min"


_LOOK_EVERY_S: Final = 5.0


class OthersWatch:
    """Checks now and then whether other programs use the machine, and warns once; `said` has the warnings."""

    def __init__(
        self, others: "OtherUse", *, effect: str | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Watch `others`; `effect` says what they do to this work, None for the default (times are less certain)."""
        self.said: list[str] = []
        self._effects = () if effect is None else (effect,)
        self._others, self._clock = others, clock
        self._looked_s = clock()

    def look(self) -> None:
        """Warn if others used the machine since the last look, which must be `_LOOK_EVERY_S` ago."""
        from hwprofiles.other_use import busy

        if not self.said and self._clock() - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = self._clock()
            self.warn(busy(self._others.lately(), *self._effects))

    def sum_up(self) -> None:
        """Warn of what others used in all; say what that does to the work unless a warning has."""
        from hwprofiles.other_use import busy

        self.warn(busy(self._others.so_far(), *((None,) if self.said else self._effects), is_over=True))

    def warn(self, note: str | None) -> None:
        """Print and keep a warning, if there is one."""
        if note is not None:
            self.said.append(note)
            say(f"[yellow]{escaped(note)}[/]")

    def on(self, report: ReportProgress) -> ReportProgress:
        """Return `report` with a look at other programs at every step."""

        def report_and_look(step: str, share: float) -> None:
            report(step, share)
            self.look()

        return report_and_look


@contextmanager
def watching_others(*, effect: str | None = None) -> Iterator[OthersWatch]:
    """Watch while the body runs, and warn at its end of what others used in all; `effect` as in `OthersWatch`."""
    from hwprofiles.other_use import OtherUse

    watch = OthersWatch(OtherUse(), effect=effect)
    yield watch
    watch.sum_up()
