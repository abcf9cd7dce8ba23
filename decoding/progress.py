"""Callbacks that report progress."""

from collections.abc import Callable

ReportProgress = Callable[[str, float], None]
"""Called with the name of the current step and the share of all work that is done, 0 to 1."""

ReportCount = Callable[[int, int], None]
"""Called with the number of items done and the number of all items."""
