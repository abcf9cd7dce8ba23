import gzip
import os
from pathlib import Path

import pytest

from decoding.files import read_compressed, replace_file


def test_a_file_is_written_and_replaced_with_ordinary_permissions(tmp_path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    plain = tmp_path / "plain"
    plain.touch()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode == plain.stat().st_mode
    assert sorted(tmp_path.iterdir()) == [path, plain]


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace"), (Path, "chmod")])
def test_a_write_that_fails_at_any_step_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, owner, step
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(owner, step, full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("file", b"old")]


# Compressed files


def test_what_a_compressed_file_holds_is_read_as_far_as_the_limit(tmp_path) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"x" * 1000))
    assert read_compressed(path, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="more than 999 bytes"):
        read_compressed(path, 999)


def test_a_small_file_that_unpacks_to_gigabytes_is_left_packed(tmp_path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(2_000_000)) * 1000)
    with pytest.raises(ValueError, match="more than 1,000,000 bytes"):
        read_compressed(path, 1_000_000)


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:15] + b"\xff" * 8 + b[23:]])
def test_a_damaged_compressed_file_is_refused(tmp_path, damage) -> None:
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(500))))
    with pytest.raises(ValueError, match="damaged"):
        read_compressed(path, 10_000)
