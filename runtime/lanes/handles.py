"""What verbs of the real world return: something to wait for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Pending:
    """Work under way in a lane."""

    result: Callable[[], Any]
    """Waits for the reply and returns it."""
