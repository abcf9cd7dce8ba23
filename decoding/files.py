"""Writes files atomically, and reads files from elsewhere within limits of size."""

import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import stat
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from decoding.errors import ConfigError, cut, shown

MAX_BYTES: Final = 16 << 20
"""Default limit on the size of a file that is read."""
_MOST_TIMES_SMALLER: Final = 100
"""Largest compression ratio that is read: our files have about 5, a zip bomb about 1000."""
_SMALL_BYTES: Final = 1 << 20
"""Files that unpack to less are read whatever their compression ratio."""
_ESCAPE: Final = re.compile(rb"\\u[dD]")
"""Beginning of the JSON escape of a surrogate."""
_MOST_OF_A_NAME: Final = 40
"""Characters of a file's name that the name of its temporary file repeats; a name has at most 255 bytes."""


def expanded(path: str | Path) -> Path:
    """Return the path with `~` expanded, or unchanged if that user or home is unknown."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises there


def named_path(name: str | Path) -> Path:
    """Return the path that a user named, with `~` expanded; it need not exist.

    Raises `ConfigError` if no file can have that name, or the home that its `~` stands for is unknown.
    """
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{shown(str(name))} cannot be a path ({cut(str(error), 100)})") from error
    return path


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file, or of a pipe or device, which may be endless.

    Raises `OSError`; `ValueError` for more than `max_bytes` or an impossible path.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"larger than the {max_bytes:,} bytes that are read")
    return content


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return the text of a UTF-8 file; errors as in `read_bytes`, and `ValueError` if it is not UTF-8."""
    return read_bytes(path, max_bytes).decode("utf-8")


def is_gzipped(path: Path) -> bool:
    """Return whether the name of a file ends in `.gz`, in either case."""
    return path.suffix.lower() == ".gz"


def read_compressed(path: Path, max_bytes: int) -> bytes:
    """Return the unpacked bytes of a gzip file.

    Raises `OSError`; `ValueError` for more than `most_unpacked` bytes, or a file that is damaged or not gzip.
    """
    most = most_unpacked(path.stat().st_size, max_bytes)
    try:
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"damaged ({error})") from error
    if len(content) > most:
        raise ValueError(f"more than {most:,} bytes, unpacked")
    return content


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def most_unpacked(num_packed: int, max_bytes: int) -> int:
    """Return how many bytes a compressed file of `num_packed` bytes may unpack to, at most `max_bytes`."""
    return min(max_bytes, max(_SMALL_BYTES, _MOST_TIMES_SMALLER * num_packed))


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises `ValueError` for invalid JSON, infinite numbers, NaN, unpaired surrogates, repeated keys and texts nested
    too deep.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_object)
        if _ESCAPE.search(text if isinstance(text, bytes) else text.encode()):
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text holds half a pair of surrogates, which is no character") from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {name[:40]!r} is repeated")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        raise ValueError(f"{digits[:40]} is too large a number")
    return number


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write the concatenated parts to a temporary file next to `path`, sync it to disk, then rename it to `path`.

    Missing parent folders are created. A symbolic link is kept and its destination replaced; permissions are kept. A
    device or a pipe is written to directly.

    Raises:
        OSError: it cannot be written; `path` is then unchanged and the temporary file removed.
    """
    place, found = _place(path)
    if found is not None and not stat.S_ISREG(found.st_mode):
        with place.open("wb", buffering=0) as stream:
            stream.writelines(parts)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{place.name[:_MOST_OF_A_NAME]}."
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=prefix, delete=False) as file:
        scratch = Path(file.name)
        try:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
            scratch.chmod(_usual_mode() if found is None else stat.S_IMODE(found.st_mode))
            scratch.replace(place)
        except BaseException:  # KeyboardInterrupt too
            scratch.unlink(missing_ok=True)
            raise


def require_writable(path: Path) -> None:
    """Raise `ConfigError` if `replace_file` could not write to `path`, so that long work need not begin."""
    try:
        place, found = _place(path)
        if found is None or stat.S_ISREG(found.st_mode):
            _try_to_write(place)
        elif stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder; name a file")
        elif not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})") from error


@contextmanager
def reserved(folder: Path, num_bytes: int) -> Iterator[None]:
    """Reserve `num_bytes` on a folder's disk during the body, for results that are written after it.

    Raises `ConfigError` if there is not enough room or the folder is not writable. Where a system cannot reserve space,
    the room is not checked.
    """
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    try:
        file = tempfile.TemporaryFile(dir=nearest)  # noqa: SIM115  has no name, so its space is freed even if we crash
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror or error})") from error
    with file:
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, num_bytes)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                msg = f"{folder}: no room for results, which are given {num_bytes >> 20} MB ({error.strerror})"
                raise ConfigError(msg) from error
        yield


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other runs during the body; raise `ConfigError` if another run holds the lock.

    A missing folder is created, and removed again if it stays empty. On a disk without locks, such as some network
    disks, nothing is locked.
    """
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror or error})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise ConfigError(f"{folder}: another run is writing into it; name another --out") from error
    except OSError:  # the disk has no locks
        pass
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # the folder is not empty
                folder.rmdir()  # before the lock is released, so that no other run has it yet
        os.close(descriptor)


def _place(path: Path) -> tuple[Path, os.stat_result | None]:
    """Return the file that a path leads to through symbolic links, and its status or None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        found = None
    if found is None or stat.S_ISREG(found.st_mode):
        path = Path(os.path.realpath(path))
    return path, found


def _try_to_write(place: Path) -> None:
    """Create an unnamed file in the nearest existing folder, and look up the missing names; raise `OSError`."""
    folder, missing = place.parent, [place.name]
    while not folder.exists():
        missing.append(folder.name)
        folder = folder.parent
    for name in missing:
        with suppress(FileNotFoundError):  # other errors, such as a name that is too long, are raised
            (folder / name).lstat()
    with tempfile.TemporaryFile(dir=folder):
        pass


def _usual_mode() -> int:
    """Return the permissions of a newly created file; those of temporary files are more restrictive."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
