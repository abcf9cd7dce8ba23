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
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name.partition(".")[0] in {set(RUN)} else find(name, *rest)
from mirrorsd.cli import main

main()
"""
"""The command on a Python whose path has none of the extra's packages."""


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    PLAN_FILES["result"].make(folder)
    (folder / "space.yaml").write_text("methods: [autoregressive, speculative]\nwindows: [2]\n")
    machine = ("--profile", "profile.yaml", "--record", "record.npz")

    def run(*words):
        given = [part for word in words for part in (machine if word == "MACHINE" else (word,))]
        return subprocess.run(
            [sys.executable, "-c", WITHOUT, *given], cwd=folder, capture_output=True, text=True, check=False
        )

    assert run("search", "MACHINE", "--space", "space.yaml", "--out", "best.yaml").returncode == 0
    return run


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "--target", "qwen3-14b", "--draft", "qwen3-0.6b", "--platform", "lunar-lake", "--out", "plan.html"),
        ("simulate", "--schedule", "best.yaml", "MACHINE", "--trace", "trace.json.gz"),
        ("report", "result.json", "--out", "report.html"),
        ("models", "list"),
    ],
    ids=lambda words: words[0],
)
def test_a_verb_that_loads_no_model_works_without_the_extra(call, words):
    done = call(*words)
    assert done.returncode == 0, done.stderr


def test_devices_says_what_is_missing(call):
    found = {one["name"]: one["missing"] for one in json.loads(call("devices", "--json").stdout)["devices"]}
    assert "openvino" in found["openvino:CPU"]


@pytest.mark.parametrize(
    "words",
    [
        ("run", "--schedule", "best.yaml", "--prompt", "hello"),
        ("demo",),
        ("record", "--out", "record.npz"),
        ("validate", "--schedule", "best.yaml", "MACHINE"),
        ("train", "draft", "--data", "none.jsonl", "--out", "draft"),
    ],
    ids=lambda words: words[0],
)
def test_a_verb_that_needs_the_extra_says_so_in_one_line(call, words):
    done = call(*words)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("is not installed, and this command needs it: pip install 'mirrorsd[run]'")
    assert "Traceback" not in done.stderr


def test_a_module_of_no_extra_is_a_defect():
    with pytest.raises(ModuleNotFoundError):
        missing_package(ModuleNotFoundError("No module named 'mirrorsd.typo'", name="mirrorsd.typo"))


def test_the_extra_lists_the_packages_of_these_modules():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {one.partition(">")[0].replace("-", "_") for one in extras["run"]} == RUN
    assert "mirrorsd[run]" in extras["dev"]
    assert importlib.metadata.version("mirrorsd")
