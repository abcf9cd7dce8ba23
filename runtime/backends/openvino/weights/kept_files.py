"""Files made once for all processes: compiled graphs, and weights in the form that graphs hold.

A file is written whole or not at all and ends with a digest, so it is there and right, or it is made again. Those that
were not used for longest make room for new ones.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from decoding.files import replace_file
from runtime.models.embedded import make_cache, models_folder

_DIGEST: Final = hashlib.sha256
_AT_ONCE: Final = 1 << 20
"""Bytes that are read at once to be looked at."""
_MOST_BYTES: Final = 40_000_000_000
"""Of all files: a few models of 8 billion weights in int4 or int8."""


def compiled_folder() -> Path:
    """Where they are kept; it need not exist."""
    return models_folder().parent / "compiled"


def path_of(key: str, suffix: str) -> Path:
    """The file of what a key tells from everything else."""
    return compiled_folder() / (hashlib.sha256(key.encode()).hexdigest()[:32] + suffix)


def write(path: Path, *parts: memoryview | bytes) -> None:
    """Write a file of these parts one after the other; raise `OSError` if the disk is full or cannot be written."""
    make_cache()
    path.parent.mkdir(exist_ok=True)
    digest = _DIGEST()
    for part in parts:
        digest.update(part)
    _make_room(path.parent, sum(memoryview(part).nbytes for part in parts))
    replace_file(path, *parts, digest.digest())


def read(path: Path) -> bytes:
    """Return what was written to a file; raise `OSError` if it is not there, or damaged."""
    with _opened(path) as (file, num_bytes):
        return file.read(num_bytes)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A file that is being used, at its beginning, and the number of its bytes; raises `OSError` if it is damaged."""
    os.utime(path)
    with path.open("rb") as file:
        left = num_bytes = os.fstat(file.fileno()).st_size - _DIGEST().digest_size
        digest = _DIGEST()
        while left > 0 and (piece := file.read(min(left, _AT_ONCE))):
            digest.update(piece)
            left -= len(piece)
        if file.read() != digest.digest():
            raise OSError(f"{path} is damaged")
        file.seek(0)
        yield file, num_bytes


class KeptBytes:
    """Bytes in memory or mapped from a file."""

    def __init__(self, memory: np.ndarray, mapping: mmap.mmap | None = None) -> None:
        self.memory, self._mapping = memory, mapping

    @property
    def is_mapped(self) -> bool:
        """Whether the bytes are on disk."""
        return self._mapping is not None

    def give_back(self) -> None:
        """Let go of the memory that a file's bytes are in; who reads them again has them from disk again."""
        if self._mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED)


def kept_block(key: str, num_bytes: int, make: Callable[[], Sequence[np.ndarray]]) -> KeptBytes:
    """Return the bytes of the arrays that `make` returns, from disk if they were made before and it can be written."""
    path = path_of(key, ".weights")
    if (found := _mapped(path, num_bytes)) is not None:
        return found
    parts = [part.reshape(-1).view(np.uint8) for part in make()]
    with suppress(OSError):  # a full or read-only disk costs memory and time, nothing else
        write(path, *(part.data for part in parts))
        if (found := _mapped(path, num_bytes)) is not None:
            return found
    return KeptBytes(np.concatenate(parts))


def _mapped(path: Path, num_bytes: int) -> KeptBytes | None:
    try:
        with _opened(path) as (file, num_found):
            if num_found != num_bytes:
                return None
            mapping = mmap.mmap(file.fileno(), num_bytes, access=mmap.ACCESS_COPY)
    except OSError:
        return None
    return KeptBytes(np.frombuffer(mapping, np.uint8), mapping)


def _make_room(folder: Path, num_bytes: int) -> None:
    files = []
    for file in folder.iterdir():
        with suppress(OSError):  # another process made room at the same time
            files.append((file.stat(), file))
    files.sort(key=lambda one: one[0].st_mtime)
    total = num_bytes + sum(stat.st_size for stat, _ in files)
    for stat, file in files:
        if total <= _MOST_BYTES:
            return
        file.unlink(missing_ok=True)
        total -= stat.st_size
