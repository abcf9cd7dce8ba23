"""What Ctrl-C does in a verb that works for long: it is answered at once, and nothing is waited for."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

STOPPING: Final = "Stopping."


@contextmanager
def answering_ctrl_c() -> Iterator[Callable[[], bool]]:
    """While the body runs, Ctrl-C says so, ends the processes of all lanes, and raises `KeyboardInterrupt`.

    Lanes finish their work before they end by themselves, and whoever waits for one would wait for that. What an
    ended lane raises on the way out may hide the `KeyboardInterrupt`, so the function that is given tells whether
    there was one. A second Ctrl-C only raises.
    """
    pressed = threading.Event()
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or usual is not signal.default_int_handler:
        yield pressed.is_set
        return

    def answer(_number: int, _frame: object) -> None:
        pressed.set()
        signal.signal(signal.SIGINT, usual)
        # no console: the interrupted code may be about to write itself
        os.write(2, f"\n{STOPPING}\n".encode())
        end_lanes()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, answer)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, usual)


def end_lanes() -> None:
    """End all processes that this one has started, where the system tells which; elsewhere they end by themselves."""
    from hwprofiles.other_use import own_processes

    for pid in own_processes()[1:]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
