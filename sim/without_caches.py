"""Copies and pickles of objects that keep results: these are worked out again where they are asked for."""

from typing import Any


class WithoutCaches:
    """A base of classes whose cached properties are functions with results of their own, which no pickle can hold."""

    def __getstate__(self) -> dict[str, Any]:
        """Return all that is no such function."""
        return {name: value for name, value in vars(self).items() if not hasattr(value, "cache_info")}
