"""Whether two names mean the same model: hub ids, shapes, folders, shipped names. Nothing is fetched or loaded."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from decoding.errors import MirrorsdError, PlanError
from decoding.files import named_path
from hwprofiles.model_shape import ModelShape, model_shape
from runtime.drafters.registry import SHIPPED_FOLDER, TRAINED, shipped_names
from runtime.models.hf_config import CONFIG_FILE, read_object
from runtime.models.model_folder import PREFIX

_VARIANT: Final = re.compile(r"-(instruct|base|chat|it)$")
_COPY: Final = re.compile(r"^shape-(.+)-[0-9a-f]{12}$")
"""Name of the folder that `save_shape` makes for a model of random weights."""


def shape_called(name: str | Path) -> ModelShape:
    """Return a model's shape by the name that plans and runs use, which may be a shipped drafter's."""
    return model_shape(SHIPPED_FOLDER / name if str(name) in shipped_names() else name)


def require_own_head(name: str, target: ModelShape) -> None:
    """Raise `PlanError` for a shipped head of a target of another width; heads of other names fit every target."""
    trained = read_object(SHIPPED_FOLDER / name / CONFIG_FILE, holds="") if name in shipped_names() else {}
    if "target_shape" in trained and trained["target_shape"]["hidden_size"] != target.hidden_size:
        own = trained["speculators_config"]["verifier"]["name_or_path"]
        raise PlanError(f"draft {name!r}: was trained for {own}, not for {target.name}")


def plain_name(name: str | Path) -> str:
    """Return a model's name in lower case, without folders and suffixes such as `-instruct`, which shapes lack."""
    return _VARIANT.sub("", Path(name).name.lower())


def is_same_path(ours: str | None, theirs: str | None) -> bool:
    """Return whether two names are equal or are paths of the same folder."""
    if ours is None or theirs is None:
        return ours is theirs
    one, other = named_path(ours), named_path(theirs)
    try:
        return one == other or one.resolve() == other.resolve()
    except OSError:  # a relative path, but the working folder was deleted
        return False


def is_other_model(ours: str, theirs: str) -> bool | None:
    """Return whether two names mean different models; None if that is not known.

    Models of one name are the same, unless both are folders and their sizes differ. Models of different names are
    different if the shapes of both are known.
    """
    folders = _folder(ours), _folder(theirs)
    names = [ours if folders[0] is None else str(folders[0]), theirs if folders[1] is None else str(folders[1])]
    if is_same_path(*names):
        return False
    shapes = [_shape_or_none(name) for name in names]
    sizes = {(one.num_layers, one.hidden_size) for one in shapes if one is not None}
    called = [_names(name, shape) for name, shape in zip(names, shapes, strict=True)]
    if called[0] & called[1] and (None in folders or len(sizes) < len(names)):
        return False
    return True if len(sizes) == len(names) else None


def _folder(name: str) -> Path | None:
    """Return the model folder that a name means, if there is one; for a training run, the folder with the weights."""
    path = SHIPPED_FOLDER / name if name in shipped_names() else named_path(name)
    return next((one for one in (path, path / TRAINED) if name and (one / CONFIG_FILE).is_file()), None)


def _shape_or_none(name: str) -> ModelShape | None:
    with suppress(MirrorsdError):
        return shape_called(name.removeprefix(PREFIX))
    return None


def _names(name: str, shape: ModelShape | None) -> set[str]:
    """Return the plain names of a model: its own and its shape's; a training run has the name of its folder."""
    path = Path(name.removeprefix(PREFIX))
    called = path.parent.name if path.name == TRAINED and path.parent.name else path.name
    own = set() if shape is None else {plain_name(shape.name)} - {TRAINED}
    return {plain_name(_COPY.sub(r"\1", called)), *own}
