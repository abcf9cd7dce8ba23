"""Names that the shell completes: what ships for an option's value. Nothing here loads a model or torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Completer = Callable[[str], list[str]]


def shapes(incomplete: str) -> list[str]:
    """Return the shipped model shapes that begin so."""
    from hwprofiles.model_shape import shipped_models

    return _beginning(incomplete, shipped_models())


def platforms(incomplete: str) -> list[str]:
    """Return the shipped platforms that begin so."""
    from hwprofiles.sheets import shipped_names

    return _beginning(incomplete, shipped_names("platform"))


def targets(incomplete: str) -> list[str]:
    """Return the embedded model, and the shipped shapes as models with random weights."""
    from mirrorsd.cli.options import DEFAULT_TARGET

    return _beginning(incomplete, (DEFAULT_TARGET, *(f"shape:{name}" for name in shapes(""))))


def drafters(incomplete: str) -> list[str]:
    """Return the draft models, heads and exit adapters that ship; after a comma the next one of a list."""
    from runtime.drafters.shipped import shipped_names

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(last, (*shipped_names(), "none"))]


def _beginning(incomplete: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
