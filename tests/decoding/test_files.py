import os
from pathlib import Path

import pytest

from decoding.files import replace_file


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
