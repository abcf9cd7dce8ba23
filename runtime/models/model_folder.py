"""From what a user calls a model to the Hugging Face folder that holds it.

Only JSON, template and safetensors files are taken from the hub: no code of a repository is downloaded or run. A folder
of which only the shape is there has a `config.json` that says so (`MARK`, with a seed; a folder that merely lost its
weights is an error), and random weights. `shape:PATH` marks a copy.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from decoding.errors import ModelError, ModelFetchError
from decoding.files import named_path, replace_file
from decoding.progress import ReportProgress
from decoding.validation import errors_as
from runtime.models.config import ModelConfig
from runtime.models.embedded import EMBEDDED_MODELS, fetch, ignore_progress, make_cache, models_folder
from runtime.models.hf_config import CONFIG_FILE, MARK, SUPPORTED_ARCHITECTURES, read_object

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DESCRIPTION_FILES = ["*.json", "*.jinja"]
_WEIGHT_FILES = ["*.safetensors"]
_LEFT_OUT = ["*/*", "consolidated*"]
"""Copies of the same weights in other layouts, which some repositories carry."""


class NamedFolder(NamedTuple):
    """A model's folder, and what a user calls it."""

    name: str
    folder: Path


def resolve_model(
    name: str, *, progress: ReportProgress = ignore_progress, check: Callable[[Path], object] = lambda _: None
) -> Path:
    """Return the Hugging Face folder of the model called `name`, fetching it first where that is needed.

    A name is the default model's, a local folder's path, a hub id such as ``owner/model``, or ``shape:PATH`` of a
    config.json or its folder, for random weights. `check` is called with the folder, of a hub id before its weights are
    there. Raises `ModelFetchError` if a download fails, `ModelError` if there is no such model.
    """
    if is_hub_id(name):
        check(described_model(name))
        return _snapshot(name, _DESCRIPTION_FILES + _WEIGHT_FILES)
    folder = _folder_here(name, progress)
    check(folder)
    return folder


def _folder_here(name: str, progress: ReportProgress) -> Path:
    if name in EMBEDDED_MODELS:
        return fetch(EMBEDDED_MODELS[name], progress=progress)
    if name.startswith(PREFIX):
        return shape_folder(name)
    path = named_path(name)
    if path.is_dir() and name:
        ModelConfig.from_folder(path)
        return path
    if (path.exists() and name) or _is_meant_as_path(name, path):
        raise ModelError(_no_folder(name, path))
    raise ModelError(
        f"{name!r} is neither the default model ({', '.join(sorted(EMBEDDED_MODELS))}), nor a folder here, "
        f"nor a hub id of the form owner/model, nor {PREFIX} and the path of a config.json"
    )


def described_model(hub_id: str) -> Path:
    """Return the folder of a hub model's small files, which are fetched before any weights.

    Raises `ModelFetchError` if they cannot be had, `ModelError` if the architecture or the tokenizer is not supported.
    """
    from runtime.models.tokenizer import Tokenizer  # which a model with random weights does without

    folder = _snapshot(hub_id, _DESCRIPTION_FILES)
    ModelConfig.from_folder(folder)
    Tokenizer.from_folder(folder)
    return folder


def is_hub_id(name: str) -> bool:
    """Return whether a name is that of a hub model, as far as one can tell here."""
    path = named_path(name)
    return _HUB_ID.fullmatch(name) is not None and not path.exists() and not _is_meant_as_path(name, path)


def is_model_name(name: str) -> bool:
    """Return whether a name is the default model's, a shape's, or a hub model's as far as one can tell here."""
    return name in EMBEDDED_MODELS or name.startswith(PREFIX) or is_hub_id(name)


def named_model(name: str, *, progress: ReportProgress = ignore_progress) -> NamedFolder:
    """Return `resolve_model`'s folder and what cards call the model: its hub id, or the name of any other's folder."""
    folder = resolve_model(name, progress=progress)  # that of a hub model has a commit's name
    return NamedFolder(name if is_hub_id(name) else folder.absolute().name, folder)


def _is_meant_as_path(name: str, path: Path) -> bool:
    """Return whether a name that leads nowhere can only be a path: then the hub is not asked."""
    return name.startswith((".", "~", "/")) or (len(path.parts) > 1 and Path(path.parts[0]).is_dir())


def _no_folder(name: str, path: Path) -> str:
    files = "config.json, tokenizer.json and *.safetensors"
    if path.suffix.lower() == ".gguf":
        return f"{name}: GGUF files are not read. Use the Hugging Face folder ({files}) that the file was made from"
    if path.exists():
        return f"{name}: is a file; name the folder that holds {files}"
    parent = next(folder for folder in path.absolute().parents if folder.is_dir())
    folders = sorted(folder.name for folder in parent.iterdir() if (folder / CONFIG_FILE).is_file())
    found = f"models in {parent}: {', '.join(folders)}" if folders else f"{parent} holds no model either"
    return f"{name}: there is no such folder; {found}"


def _snapshot(hub_id: str, patterns: list[str]) -> Path:
    from huggingface_hub import errors, snapshot_download  # slow to import, and seldom needed

    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns, ignore_patterns=_LEFT_OUT))
    except errors.GatedRepoError as error:
        msg = f"{hub_id}: the hub gives this model only to those who accepted its terms and are logged in"
        raise ModelFetchError(msg) from error
    except errors.RepositoryNotFoundError as error:
        msg = f"{hub_id}: there is neither a folder of that name here nor a model of that name on the hub"
        raise ModelFetchError(msg) from error
    except Exception as error:  # errors of its HTTP client have another base in every version
        reason = str(error).partition("\n")[0]
        raise ModelFetchError(
            f"{hub_id}: there is no folder of that name here, and the hub's model of that name cannot be downloaded "
            f"({type(error).__name__}: {reason}). Supported architectures: {', '.join(SUPPORTED_ARCHITECTURES)}"
        ) from error


PREFIX: Final = "shape:"
"""Begins the name of a model that is asked for by its shape alone."""
_SEED: Final = 0


def shape_folder(name: str) -> Path:
    """Return the folder of a model with random weights, of the config.json (or its folder) that `shape:PATH` names.

    Raises `ModelError` if there is no such file, it is not supported, or the copy cannot be written.
    """
    path = named_path(name.removeprefix(PREFIX))
    path = path / CONFIG_FILE if path.is_dir() else path
    raw = read_object(path, holds=f"{PREFIX} takes the path of a Hugging Face config.json, or of its folder")
    return save_shape(raw, path.absolute().parent.name, source=str(path))


def save_shape(raw: dict[str, Any], name: str, *, source: str) -> Path:
    """Return a folder in the cache, called `name` and a digest, for a model of this config with random weights.

    Raises `ModelError`, with `source`, for a config that is not supported, or a folder that cannot be written.
    """
    raw = raw | {MARK: _SEED}
    ModelConfig.from_hf(raw, source=source)
    content = json.dumps(raw, indent=2, sort_keys=True).encode() + b"\n"
    folder = models_folder() / f"shape-{name}-{hashlib.sha256(content).hexdigest()[:12]}"
    path = folder / CONFIG_FILE
    if path.is_file():
        return folder
    with errors_as(ModelError, f"{folder}: cannot be written"):
        make_cache()
        replace_file(path, content)
    return folder


def has_random_weights(folder: Path) -> bool:
    """Return whether a model's folder asks for random weights; False for one without a config."""
    path = folder / CONFIG_FILE
    return path.is_file() and MARK in read_object(path, holds="")
