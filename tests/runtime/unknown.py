"""An operation that no lane has."""

from runtime.wire.operations import operation


class Unknown:
    @operation
    def dance(self) -> None:
        pass
