"""Runs a method in the real world: every handle it yields is waited for, and its reply sent back."""

from __future__ import annotations

from typing import Any

from decoding.lanes import MethodFlow


def drive(flow: MethodFlow) -> None:
    """Run a method to its end; what a handle raises comes out here."""
    try:
        handle: Any = next(flow)
        while True:
            handle = flow.send(handle.result())
    except StopIteration:
        return
    finally:
        flow.close()
