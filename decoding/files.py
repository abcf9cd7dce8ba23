"""Writes files whole or not at all, and reads files from elsewhere within limits."""

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
"""Largest file that is read, unless its reader says otherwise."""
_MOST_TIMES_SMALLER: Final = 100
"""Most bytes unpacked per byte packed: our files are packed to a fifth, and only a bomb to a thousandth."""
_SMALL_BYTES: Final = 1 << 20
"""Files that unpack to less are read however well they are packed."""
_ESCAPE: Final = re.compile(rb"\\u[dD]")
"""Beginning of the escape of a surrogate."""
_MOST_OF_A_NAME: Final = 40
"""Characters of a file's name that its scratch file's name repeats: a name has 255 bytes at most."""


def expanded(path: str | Path) -> Path:
    """Return a path with `~` written out; as it is where the system knows no such user, or no home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  Path.expanduser raises there


def named_path(name: str | Path) -> Path:
    """Return the path that a user named, `~` written out; it need not exist.

    Raises `ConfigError` where no file system could hold a file of that name, or nobody has that home.
    """
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{shown(str(name))} cannot be a path ({cut(str(error), 100)})") from error
    return path


def read_bytes(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the bytes of a file, or of whatever else can be read from a path: some devices have no end.

    Raises `OSError`, and `ValueError` for more than `max_bytes` and for what is no path.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"larger than the {max_bytes:,} bytes that are read")
    return content


def read_text(path: Path, max_bytes: int = MAX_BYTES) -> str:
    """Return a text file in UTF-8; errors as in `read_bytes`, and a `ValueError` where it is no UTF-8."""
    return read_bytes(path, max_bytes).decode("utf-8")


def is_gzipped(path: Path) -> bool:
    """Return whether a file is gzipped by its name, in letters of either case."""
    return path.suffix.lower() == ".gz"


def read_compressed(path: Path, max_bytes: int) -> bytes:
    """Return the unpacked bytes of a gzip file.

    Raises `OSError`, and `ValueError` for more than `most_unpacked` and for what is no whole gzip file.
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
    """Return the most bytes that a compressed file of a size may unpack to: `max_bytes`, and fewer for a small one."""
    return min(max_bytes, max(_SMALL_BYTES, _MOST_TIMES_SMALLER * num_packed))


def parse_json(text: str | bytes) -> Any:
    """Return the value of strict JSON: finite numbers, no halves of surrogate pairs, no key twice in an object.

    Raises `ValueError` for what is not such a text, or is nested too deep.
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
    """Write the parts, one after the other, next to the file; force them to the disk; then put them in its place.

    Missing parent folders are made. A link stays one, and what it leads to is replaced; a file's permissions stay as
    they are. What is no regular file, such as a device or a pipe, is written to.

    Raises:
        OSError: it cannot be written; `path` is as it was and no part of it is left.
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
        except BaseException:  # an interrupt from the keyboard among them
            scratch.unlink(missing_ok=True)
            raise


def require_writable(path: Path) -> None:
    """Raise `ConfigError` where `replace_file` could not write; for before long work. Nothing is left behind."""
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
    """Keep `num_bytes` of a folder's disk free for what is written after the body; nothing is left there.

    Raises `ConfigError` where there are not as many, or nothing can be written. Systems and disks that reserve nothing
    are taken at their word.
    """
    nearest = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
    try:
        file = tempfile.TemporaryFile(dir=nearest)  # noqa: SIM115  without a name: its space is freed however we end
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
    """Keep other runs out of a folder during the body; raise `ConfigError` where one is in it.

    It is made, and is gone afterwards if nothing was written. Disks that lock no folders, as some over a network, are
    taken at their word.
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
    except OSError:
        pass
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):  # it holds something
                folder.rmdir()  # before the next run may lock it
        os.close(descriptor)


def _place(path: Path) -> tuple[Path, os.stat_result | None]:
    """Return the file that a path means, links followed, and its status; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        found = None
    if found is None or stat.S_ISREG(found.st_mode):
        path = Path(os.path.realpath(path))
    return path, found


def _try_to_write(place: Path) -> None:
    """Make a file without a name in the nearest folder that is there, and look for the names that are missing."""
    folder, missing = place.parent, [place.name]
    while not folder.exists():
        missing.append(folder.name)
        folder = folder.parent
    for name in missing:
        with suppress(FileNotFoundError):  # any other error, such as a name too long
            (folder / name).lstat()
    with tempfile.TemporaryFile(dir=folder):
        pass


def _usual_mode() -> int:
    """Return the permissions that a new file would have; temporary files are private."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
