"""A base class whose pickles and copies omit cached functions; the caches are built again on first use."""

from typing import Any


class WithoutCaches:
    """Base of classes with cached properties that hold an `lru_cache` function, which cannot be pickled."""

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes except cached functions."""
        return {name: value for name, value in vars(self).items() if not hasattr(value, "cache_info")}
