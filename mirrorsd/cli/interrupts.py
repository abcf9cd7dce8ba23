"""What Ctrl-C and other wishes to end do in a verb that works for long: they are answered at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

STOPPING: Final = "Stopping."
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""From the keyboard, from another program, and from a terminal that was closed."""


@contextmanager
def answering_signals() -> Iterator[Callable[[], int | None]]:
    """While the body runs, a signal says so, ends the processes of all lanes, and raises `KeyboardInterrupt`.

    Lanes finish their work before they end by themselves, and whoever waits for one would wait for that. What an
    ended lane raises on the way out may hide the `KeyboardInterrupt`, so the function that is given tells which
    signal there was, if any. A second one only does what it usually does. Ignored ones stay ignored.
    """
    came: list[int] = []
    usual = {number: signal.getsignal(number) for number in _SIGNALS}
    answered = [number for number in _SIGNALS if usual[number] in (signal.default_int_handler, signal.SIG_DFL)]
    if threading.current_thread() is not threading.main_thread():
        answered = []

    def restore() -> None:
        for number in answered:
            signal.signal(number, usual[number])

    def answer(number: int, _frame: object) -> None:
        came.append(number)
        restore()
        with suppress(OSError):  # no console: the interrupted code may be about to write itself, or it is gone
            os.write(2, f"\n{STOPPING}\n".encode())
        end_lanes()
        raise KeyboardInterrupt

    for number in answered:
        signal.signal(number, answer)
    try:
        yield lambda: next(iter(came), None)
    finally:
        restore()


def end_lanes() -> None:
    """End all processes that this one has started, where the system tells which; elsewhere they end by themselves."""
    from hwprofiles.other_use import own_processes

    for pid in own_processes()[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
