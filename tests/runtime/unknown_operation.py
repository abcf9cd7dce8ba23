"""An operation that no lane has."""

from dataclasses import dataclass

from runtime.wire.operations import Operation


@dataclass(frozen=True, kw_only=True, slots=True)
class Dance(Operation[None]):
    name = "dance"
