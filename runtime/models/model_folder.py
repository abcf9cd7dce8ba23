"""Finds or fetches the Hugging Face folder of the model that a user names.

Only JSON, template and safetensors files are downloaded from the hub, no code. A model with random weights is a folder
whose `config.json` has the field `MARK` with a seed; `shape:PATH` creates one from another config.json. Without that
field, missing weights are an error.
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
from runtime.models.default_model import EMBEDDED_MODELS, fetch, ignore_progress, make_cache, models_folder
from runtime.models.hf_config import CONFIG_FILE, MARK, SUPPORTED_ARCHITECTURES, read_object

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_DESCRIPTION_FILES = ["*.json", "*.jinja"]
_WEIGHT_FILES = ["*.safetensors"]
_LEFT_OUT = ["*/*", "consolidated*"]
"""Copies of the same weights in other layouts, which some repositories have."""


class NamedFolder(NamedTuple):
    """The folder of a model or drafter, and its name in files and model cards."""

    name: str
    folder: Path


def resolve_model(
    name: str, *, progress: ReportProgress = ignore_progress, check: Callable[[Path], object] = lambda _: None
) -> Path:
    """Return the Hugging Face folder of the model called `name`, fetching it first if needed.

    `name` is the default model's name, the path of a local folder, a hub id such as ``owner/model``, or ``shape:PATH``
    with the path of a config.json or its folder, for random weights. `check` is called with the folder, for a hub id
    before its weights are downloaded. Raises `ModelFetchError` if a download fails, `ModelError` if there is no such
    model.
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
    """Return the folder of a hub model's configuration and tokenizer, fetched without its weights.

    Raises `ModelFetchError` if the download fails, `ModelError` if the architecture or tokenizer is not supported.
    """
    from runtime.models.tokenizer import Tokenizer  # only needed here

    folder = _snapshot(hub_id, _DESCRIPTION_FILES)
    ModelConfig.from_folder(folder)
    Tokenizer.from_folder(folder)
    return folder


def is_hub_id(name: str) -> bool:
    """Return whether a name has the form of a hub id and is no local path."""
    path = named_path(name)
    return _HUB_ID.fullmatch(name) is not None and not path.exists() and not _is_meant_as_path(name, path)


def is_model_name(name: str) -> bool:
    """Return whether a name is the default model's, begins with ``shape:``, or is a hub id (`is_hub_id`)."""
    return name in EMBEDDED_MODELS or name.startswith(PREFIX) or is_hub_id(name)


def named_model(name: str, *, progress: ReportProgress = ignore_progress) -> NamedFolder:
    """Return a model's folder, and its hub id or else its folder's name."""
    folder = resolve_model(name, progress=progress)  # the folder of a hub model is called like its commit
    return NamedFolder(name if is_hub_id(name) else folder.absolute().name, folder)


def _is_meant_as_path(name: str, path: Path) -> bool:
    """Return whether a name that does not exist can only be a path, and no hub id."""
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
    except Exception as error:  # the base class of its HTTP errors differs between versions
        reason = str(error).partition("\n")[0]
        raise ModelFetchError(
            f"{hub_id}: there is no folder of that name here, and the hub's model of that name cannot be downloaded "
            f"({type(error).__name__}: {reason}). Supported architectures: {', '.join(SUPPORTED_ARCHITECTURES)}"
        ) from error


PREFIX: Final = "shape:"
"""Prefix of the name of a model with random weights."""
_SEED: Final = 0


def shape_folder(name: str) -> Path:
    """Return the folder of a model with random weights, for the config.json (or its folder) in `shape:PATH`.

    Raises `ModelError` if the file is missing or not supported, or the new folder cannot be written.
    """
    path = named_path(name.removeprefix(PREFIX))
    path = path / CONFIG_FILE if path.is_dir() else path
    raw = read_object(path, holds=f"{PREFIX} takes the path of a Hugging Face config.json, or of its folder")
    return save_shape(raw, path.absolute().parent.name, source=str(path))


def save_shape(raw: dict[str, Any], name: str, *, source: str) -> Path:
    """Return a folder in the cache, named by `name` and a hash, for a model of this config with random weights.

    Raises `ModelError` if the config, called `source`, is not supported, or the folder cannot be written.
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
    """Return whether a folder is that of a model with random weights; False without a config."""
    path = folder / CONFIG_FILE
    return path.is_file() and MARK in read_object(path, holds="")
