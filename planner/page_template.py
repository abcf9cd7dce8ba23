"""Renders the templates of pages and pictures: sandboxed, with values escaped; an unknown name is an error."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from planner.wording import amount, between, counted, factor, milliseconds, percent, signed_percent

if TYPE_CHECKING:
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

_PICTURES: Final = Path(__file__).with_name("pictures")
_FILTERS: Final = (amount, between, counted, factor, milliseconds, percent, signed_percent)


def rendered(path: Path, *more_filters: Callable[..., str], **values: object) -> str:
    """Return a template file filled with values; it may include files of its folder and of `pictures`.

    A template may use `_FILTERS` and `more_filters`, by the names of the functions.
    """
    return _environment(path.parent, more_filters).get_template(path.name).render(**values)


@cache
def _environment(folder: Path, more_filters: tuple[Callable[..., str], ...]) -> "ImmutableSandboxedEnvironment":
    """Return the environment that caches the compiled templates of a folder."""
    from jinja2 import FileSystemLoader, StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader([folder, _PICTURES]), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= {one.__name__: one for one in (*_FILTERS, *more_filters)}
    return environment


def picture(path: Path, **values: object) -> "Markup":
    """Return the picture that a template draws, as markup to put into a page."""
    from markupsafe import Markup

    return Markup(rendered(path, **values))  # noqa: S704  the template escapes what it shows
