"""A cache on disk, shared by all processes, of compiled graphs and of weights packed for graphs.

A file is written atomically and ends with a digest; a missing or damaged one is made again. The least recently used
files are deleted to make room for new ones.
"""

import hashlib
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from decoding.files import replace_file
from runtime.models.default_model import make_cache, models_folder

_DIGEST: Final = hashlib.sha256
_MOST_BYTES: Final = 40_000_000_000
"""Most bytes of all files, enough for a few models of 8 billion weights in int4 or int8. The cache also takes at most
half of the disk space that would be free without it."""

_Bytes = NDArray[np.uint8]


def compiled_folder() -> Path:
    """Return the folder of the files; it need not exist."""
    return models_folder().parent / "compiled"


def path_of(key: str, suffix: str) -> Path:
    """Return the file of a key."""
    return compiled_folder() / (hashlib.sha256(key.encode()).hexdigest()[:32] + suffix)


def write(path: Path, *parts: memoryview | bytes) -> None:
    """Write the concatenated parts and their digest; raise `OSError` if the disk is full or not writable."""
    make_cache()
    path.parent.mkdir(exist_ok=True)
    digest = _DIGEST()
    for part in parts:
        digest.update(part)
    _make_room(path.parent, sum(memoryview(part).nbytes for part in parts))
    replace_file(path, *parts, digest.digest())


def mapped(path: Path) -> _Bytes:
    """Return the content of a file, memory-mapped; raise `OSError` if the file is missing or damaged."""
    with suppress(OSError):  # a disk that is not writable keeps no order of use
        os.utime(path)
    try:
        whole = np.memmap(path, np.uint8, "c")
    except ValueError as error:
        raise OSError(f"{path} is empty") from error
    content, told = whole[: -_DIGEST().digest_size], whole[-_DIGEST().digest_size :]
    if told.tobytes() != _DIGEST(content.data).digest():
        raise OSError(f"{path} is damaged")
    return content


def kept_block(key: str, num_bytes: int, make: Callable[[], Sequence[NDArray[Any]]]) -> _Bytes:
    """Return the concatenated bytes of the arrays that `make` returns, memory-mapped from disk if possible."""
    path = path_of(key, ".weights")
    with suppress(OSError):
        if len(found := mapped(path)) == num_bytes:
            return found
    parts = [part.reshape(-1).view(np.uint8) for part in make()]
    with suppress(OSError):  # a full or read-only disk costs memory and time, nothing else
        write(path, *(part.data for part in parts))
        return mapped(path)
    return np.concatenate(parts)


def give_back(block: _Bytes) -> None:
    """Free the memory of a memory-mapped file; its bytes are read from disk again when needed."""
    mapping = getattr(block, "_mmap", None)
    if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
        mapping.madvise(mmap.MADV_DONTNEED)


def _make_room(folder: Path, num_bytes: int) -> None:
    """Delete the least recently used files until `num_bytes` more fit; raise `OSError` if they cannot."""
    files = []
    for file in folder.iterdir():
        with suppress(OSError):  # another process made room at the same time
            files.append((file.stat(), file))
    files.sort(key=lambda one: one[0].st_mtime)
    kept = sum(stat.st_size for stat, _ in files)
    total, most = num_bytes + kept, min(_MOST_BYTES, (kept + shutil.disk_usage(folder).free) // 2)
    if num_bytes > most:
        raise OSError(f"{folder} has no room for {num_bytes} bytes")
    for stat, file in files:
        if total <= most:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size
