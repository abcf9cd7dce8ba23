"""Constants that were fitted once and are kept in a YAML file, with what they were fitted to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from decoding.errors import ConfigError
from decoding.files import named_path
from decoding.yaml_file import StrictModel, load_yaml, save_yaml
from hwprofiles.bounds import RelativeError
from planner.reproduce.reproduction import Reproduction
from planner.reproduce.setup import ConstantName, Constants, Machine

DATASHEET: Final = "datasheet"
_FOLDER: Final = Path(__file__).parent
Positive = Annotated[float, Field(gt=0)]


class StoredConstants(StrictModel):
    """Constants of a platform by name, the published table that they were fitted to, and the error over its cells."""

    platform: str
    fitted_to: str
    mean_abs_error: RelativeError
    num_cells: Annotated[int, Field(ge=1, le=10**6)]
    constants: dict[ConstantName, Positive]


def shipped_constants() -> tuple[str, ...]:
    """Return names of the files that come with the product: those of platforms."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def load_constants(name: str, machine: Machine) -> tuple[Constants, str]:
    """Constants of a machine by `datasheet`, a shipped file's name or a path, and where they are from.

    What a file leaves out is taken from data sheets; `ConfigError` where a value is not physical on this machine.
    """
    if name == DATASHEET:
        return machine.datasheet(), "data sheets and nearest measurements"
    shipped = name in shipped_constants()
    path = _FOLDER / f"{name}.yaml" if shipped else named_path(name)
    if not path.is_file():
        names = ", ".join((DATASHEET, *shipped_constants()))
        raise ConfigError(f"no file of constants is called {name!r}; there are {names}, or give a YAML file's path")
    found = load_yaml(path, StoredConstants)
    values = machine.datasheet()
    for unknown in machine.unknowns():
        value = found.constants.get(unknown.name, unknown.datasheet)
        if not unknown.low <= value <= unknown.high:
            msg = f"{path}: {unknown.name} is {value:g}, physical are {unknown.low:g} to {unknown.high:g}"
            raise ConfigError(msg)
        values[unknown.name] = value
    return values, f"fitted to {found.fitted_to}, {found.num_cells} cells, on {found.platform}"


def default_constants(platform: str) -> str:
    """Return what stands in for a fit on a platform: constants that were fitted to it before, else its data sheets."""
    return platform if platform in shipped_constants() else DATASHEET


def save_constants(found: Reproduction, path: Path) -> None:
    """Keep the constants of a fit; `ConfigError` where they were not fitted, or the file cannot be written."""
    if not found.fitted or found.mean_abs_error is None:
        raise ConfigError("only constants that were fitted are kept (not --save-constants with --no-fit)")
    stored = StoredConstants(
        platform=found.setup.machine.platform.name,
        fitted_to=f"{found.table.source}, {found.setup.target} with {found.setup.draft}",
        mean_abs_error=round(found.mean_abs_error, 4),
        num_cells=sum(cell.error is not None for cell in found.cells),
        constants={name: float(f"{value:.4g}") for name, value in found.constants.items()},
    )
    save_yaml(stored.model_dump(mode="json"), path)
