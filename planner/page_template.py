"""Templates of pages: sandboxed and escaped; an unknown name is an error."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from jinja2 import FileSystemLoader, StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

_PICTURES: Final = Path(__file__).with_name("pictures")


def page_template(path: Path, filters: Mapping[str, Callable[..., str]]) -> Template:
    """Return a file's template, which may include others of its folder and of `pictures`, with filters by name."""
    environment = ImmutableSandboxedEnvironment(
        loader=FileSystemLoader([path.parent, _PICTURES]), autoescape=True, undefined=StrictUndefined
    )
    environment.filters |= filters
    return environment.get_template(path.name)
