import errno
import gzip
import os
import resource
import stat
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from decoding.errors import ConfigError
from decoding.files import (
    MAX_BYTES,
    locked,
    named_path,
    read_bytes,
    read_compressed,
    replace_file,
    require_writable,
    reserved,
)


def test_a_file_is_written_and_replaced_with_ordinary_permissions(tmp_path):
    path = tmp_path / "file"
    replace_file(path, b"old")
    replace_file(path, b"new")
    plain = tmp_path / "plain"
    plain.touch()
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode == plain.stat().st_mode
    assert sorted(tmp_path.iterdir()) == [path, plain]


@pytest.mark.parametrize(("owner", "step"), [(os, "fsync"), (Path, "replace"), (Path, "chmod")])
def test_a_write_that_fails_at_any_step_leaves_the_old_file_and_nothing_else(tmp_path, full_disk, owner, step):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    full_disk(owner, step)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("file", b"old")]


def test_a_files_permissions_stay_as_they_are(tmp_path):
    path = tmp_path / "private"
    path.write_bytes(b"old")
    path.chmod(0o600)
    replace_file(path, b"new", b"er")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"newer", 0o600)


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path, there):
    path, link = tmp_path / "file", tmp_path / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(path)
    if there:
        path.write_bytes(b"old")
    replace_file(link, b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert list(link.parent.iterdir()) == [link]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor() as pool:
        read = pool.submit(pipe.read_bytes)
        replace_file(pipe, b"new")
        assert read.result() == b"new"
    assert pipe.is_fifo()


def test_a_device_is_written_to_and_stays_one(tmp_path):
    """As root everything in `/dev` could be replaced."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        device.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no device can be made here: {error}")
    replace_file(device, b"new")
    assert device.is_char_device()


def test_the_longest_name_can_be_written(tmp_path):
    path = tmp_path / ("x" * 255)
    require_writable(path)
    replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


# Before the work


def test_what_can_be_written_is_not_touched(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    require_writable(path)
    require_writable(tmp_path / "deep" / "folder" / "file")
    require_writable(Path(os.devnull))
    assert [(file, file.read_bytes()) for file in tmp_path.iterdir()] == [(path, b"old")]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (".", "it is a folder"),
        ("file/below", "Not a directory"),
        ("file/further/below", "Not a directory"),
        ("x" * 256, "File name too long"),
        ("missing/" + "x" * 256, "File name too long"),
        ("null\0", "null byte"),
        ("/proc/self/nothing", "No such file|Not a directory|Permission"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path, name, why):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=f"cannot be written .*({why})"):
        require_writable(tmp_path / name)


# Compressed files


def test_what_a_compressed_file_holds_is_read_as_far_as_the_limit(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(b"x" * 1000))
    assert read_compressed(path, 1000) == b"x" * 1000
    with pytest.raises(ValueError, match="more than 999 bytes"):
        read_compressed(path, 999)


@pytest.mark.parametrize("damage", [lambda b: b[:-9], lambda b: b"no gzip", lambda b: b[:15] + b"\xff" * 8 + b[23:]])
def test_a_damaged_compressed_file_is_refused(tmp_path, damage):
    path = tmp_path / "file.gz"
    path.write_bytes(damage(gzip.compress(os.urandom(500))))
    with pytest.raises(ValueError, match="damaged"):
        read_compressed(path, 10_000)


def test_what_has_no_end_is_read_to_the_limit():
    with pytest.raises(ValueError, match=f"larger than the {MAX_BYTES:,} bytes"):
        read_bytes(Path("/dev/zero"))


def test_a_file_that_is_packed_too_well_stays_packed(tmp_path):
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(bytes(2 << 20)))
    with pytest.raises(ValueError, match="more than 1,048,576 bytes, unpacked"):
        read_compressed(path, 1 << 30)


def test_a_name_becomes_a_path_wherever_it_leads(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert named_path("~/absent") == tmp_path / "absent"


@pytest.mark.parametrize("name", ["x" * 300, "~nobody-has-this-name/x"])
def test_a_name_that_can_be_no_path_is_refused(name):
    with pytest.raises(ConfigError, match="cannot be a path"):
        named_path(name)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system reserves nothing")
def test_room_for_what_is_written_later_is_asked_of_the_disk_at_once(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with reserved(tmp_path / "new" / "out", 1 << 20):
            pass
        with (
            pytest.raises(ConfigError, match=r"new/out: no room for results, which are given 2 MB \(File too large\)"),
            reserved(tmp_path / "new" / "out", 2 << 20),
        ):
            pytest.fail("the body ran")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_room_in_a_folder_that_takes_no_file_is_refused_by_its_name(tmp_path, full_disk):
    full_disk(tempfile, "TemporaryFile")
    with (
        pytest.raises(ConfigError, match=r"out: cannot be written \(No space left on device\)"),
        reserved(tmp_path / "out", 1),
    ):
        pytest.fail("nothing is begun")


def test_a_folder_is_one_runs_until_it_ends(tmp_path):
    out = tmp_path / "new" / "out"
    with locked(out):
        with pytest.raises(ConfigError, match="out: another run is writing into it; name another --out"), locked(out):
            pass
        (out / "result").touch()
    with locked(out):
        assert [path.name for path in out.iterdir()] == ["result"]


def test_a_folder_that_was_made_to_be_locked_is_gone_if_nothing_was_written(tmp_path):
    with locked(tmp_path / "new"):
        assert (tmp_path / "new").is_dir()
    (tmp_path / "own").mkdir()
    with locked(tmp_path / "own"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_disk_that_locks_no_folders_is_written_to(tmp_path, monkeypatch):
    def unknown(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr("fcntl.flock", unknown)
    with locked(tmp_path), locked(tmp_path):
        pass
