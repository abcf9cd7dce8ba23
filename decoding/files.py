"""Files that are there whole or not at all, and texts from elsewhere that are read within limits."""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any, Final, NoReturn

_ESCAPE: Final = re.compile(rb"\\u[dD]")
"""What surrogates begin with."""


def read_text(path: Path, max_bytes: int) -> str:
    """A text file in UTF-8.

    Raises:
        OSError: it cannot be read.
        ValueError: it is larger than `max_bytes`, is no UTF-8, or the path is none.
    """
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        msg = f"larger than the {max_bytes:,} bytes that are read"
        raise ValueError(msg)
    return content.decode("utf-8")


def read_compressed(path: Path, max_bytes: int) -> bytes:
    """What a gzip file holds.

    Raises:
        OSError: it cannot be read.
        ValueError: it holds more than `max_bytes`, or is no whole gzip file.
    """
    try:
        with gzip.open(path) as file:
            content = file.read(max_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        msg = f"damaged ({error})"
        raise ValueError(msg) from error
    if len(content) > max_bytes:
        msg = f"more than {max_bytes:,} bytes"
        raise ValueError(msg)
    return content


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text, as strict as the standard: numbers are finite, texts are ones that can be written.

    Raises:
        ValueError: it is not such a text, or is nested too deep.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if _ESCAPE.search(text if isinstance(text, bytes) else text.encode()):
            json.dumps(value, ensure_ascii=False).encode()  # half a pair of surrogates is no character
    except RecursionError as error:
        msg = "nested too deep"
        raise ValueError(msg) from error
    return value


def _refuse_constant(name: str) -> NoReturn:
    msg = f"{name} is no number of JSON"
    raise ValueError(msg)


def _finite(digits: str) -> float:
    number = float(digits)
    if number - number != 0.0:
        msg = f"{digits[:40]} is too large a number"
        raise ValueError(msg)
    return number


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` next to `path`, force it to the disk, then put it in the place of `path`.

    Missing parent folders are made.

    Raises:
        OSError: it cannot be written; `path` is as it was and no part of it is left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        scratch = Path(file.name)
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            scratch.chmod(_usual_mode())
            scratch.replace(path)
        except BaseException:  # an interrupt from the keyboard among them
            scratch.unlink(missing_ok=True)
            raise


def _usual_mode() -> int:
    """What a new file's permissions would be; temporary files are private."""
    umask = os.umask(0)
    os.umask(umask)
    return 0o666 & ~umask
