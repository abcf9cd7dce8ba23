"""Callbacks that report progress."""

from collections.abc import Callable

ReportProgress = Callable[[str, float], None]
"""Called along the way with the name of the step under way and the share that is done, 0 to 1."""

ReportCount = Callable[[int, int], None]
"""Called along the way with the number of things done and the number of all things."""
