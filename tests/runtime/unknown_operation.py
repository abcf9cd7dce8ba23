"""An operation that no lane has."""

from runtime.wire.operations import Operation


class Dance(Operation[None]):
    pass
