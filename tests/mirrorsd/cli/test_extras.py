"""What works without the extra `run`, and what verbs that need it say."""

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from mirrorsd.cli.app import RUN, missing_package
from tests.mutated_files.plan_files import PLAN_FILES

ROOT = Path(__file__).parents[3]
WITHOUT = f"""
import json, sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {set(RUN)} else find(name, *rest)

from typer.testing import CliRunner
from mirrorsd.cli.app import app

done = [CliRunner().invoke(app, words) for words in json.load(sys.stdin)]
print(json.dumps([[one.exit_code, one.stdout, one.stderr] for one in done]))
"""
"""Runs commands one after the other on a Python whose path has none of the extra's packages."""
MACHINE = ("--profile", "profile.yaml", "--record", "record.npz")
WORKING = (
    ("search", *MACHINE, "--space", "space.yaml", "--out", "best.yaml"),
    ("plan", "--target", "qwen3-14b", "--draft", "qwen3-0.6b", "--platform", "lunar-lake", "--out", "plan.html"),
    ("simulate", "--schedule", "best.yaml", *MACHINE, "--trace", "trace.json.gz"),
    ("report", "result.json", "--out", "report.html"),
    ("models", "list"),
    ("devices", "--json"),
)
REFUSED = (
    ("run", "--schedule", "best.yaml", "--prompt", "hello"),
    ("demo",),
    ("record", "--out", "record.npz"),
    ("validate", "--schedule", "best.yaml", *MACHINE),
    ("train", "draft", "--data", "none.jsonl", "--out", "draft"),
)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """(exit status, stdout, stderr) of every command, by its words."""
    folder = tmp_path_factory.mktemp("plain")
    PLAN_FILES["result"].make(folder)
    (folder / "space.yaml").write_text("methods: [autoregressive, speculative]\nwindows: [2]\n")
    words = [*WORKING, *REFUSED]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=folder,
        input=json.dumps(words),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(words, json.loads(ran.stdout), strict=True))


@pytest.mark.parametrize("words", WORKING, ids=lambda words: words[0])
def test_a_verb_that_loads_no_model_works_without_the_extra(done, words):
    status, _, stderr = done[words]
    assert status == 0, stderr


def test_devices_says_what_is_missing(done):
    _, stdout, _ = done["devices", "--json"]
    found = {one["name"]: one["missing"] for one in json.loads(stdout)["devices"]}
    assert "openvino" in found["openvino:CPU"]


@pytest.mark.parametrize("words", REFUSED, ids=lambda words: words[0])
def test_a_verb_that_needs_the_extra_says_so_in_one_line(done, words):
    status, _, stderr = done[words]
    assert status == 2
    assert stderr.rstrip().endswith("is not installed, and this command needs it: pip install 'mirrorsd[run]'")
    assert "Traceback" not in stderr


def test_a_module_of_no_extra_is_a_defect():
    with pytest.raises(ModuleNotFoundError):
        missing_package(ModuleNotFoundError("No module named 'mirrorsd.typo'", name="mirrorsd.typo"))


def test_the_extra_lists_the_packages_of_these_modules():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one.partition(">")[0].replace("-", "_") for one in extras["run"]} == RUN
    assert "mirrorsd[run]" in extras["dev"]
    assert importlib.metadata.version("mirrorsd")
