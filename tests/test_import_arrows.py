"""The folders depend on each other only along the arrows of the design, late imports included.

`decoding` reads files: schedules and profiles are YAML, and one reader names the line of every mistake in either.
`hwprofiles` may use its readers and the tree of errors, and nothing else of `decoding`.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT = {
    "decoding": set(),
    "hwprofiles": set(),
    "costs": {"decoding", "hwprofiles"},
    "sim": {"costs", "decoding", "hwprofiles"},
    "runtime": {"decoding"},
    "calibrate": {"costs", "decoding", "hwprofiles", "runtime"},
    "training": {"decoding", "runtime"},
    "planner": {"costs", "decoding", "hwprofiles", "sim"},
    "mirrorsd": {"calibrate", "costs", "decoding", "hwprofiles", "planner", "runtime", "sim", "training"},
}
FOR_EVERYONE = ("decoding.errors", "decoding.files", "decoding.validation", "decoding.yaml_file")
"""The one tree of errors, and the readers within limits: whoever reads a user's file needs them."""

ONLY_IN = {
    "simpy": ("sim/",),
    "torch": ("runtime/", "training/", "calibrate/profiling/visits", "calibrate/recording/"),
    "openvino": ("runtime/backends/openvino/library",),
    "plotly": ("planner/report",),
    "transformers": (),
}
"""Where a library may be imported: starts of paths from the root. In calibrate/ it is the measuring half."""

DECODING_STANDS_ON = {*sys.stdlib_module_names, "numpy", "pydantic", "yaml"}


def imported_modules(source: str) -> Iterator[str]:
    """Yield the dotted name of every absolute import anywhere in `source`, down to the name taken."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path: str, source: str) -> list[str]:
    """Return what the file at `path` (from the root, with slashes) imports against the design."""
    folder = path.split("/", maxsplit=1)[0]
    found = []
    for module in imported_modules(source):
        top = module.split(".", maxsplit=1)[0]
        is_ours = top in MAY_IMPORT
        is_allowed_arrow = top == folder or top in MAY_IMPORT[folder] or module.startswith(FOR_EVERYONE)
        if is_ours and not is_allowed_arrow:
            found.append(f"{path} imports {module}; {folder} may import {sorted(MAY_IMPORT[folder])}")
        if top in ONLY_IN and not path.startswith(ONLY_IN[top]):
            found.append(f"{path} imports {module}; only {ONLY_IN[top]} may")
        if folder == "decoding" and not is_ours and top not in DECODING_STANDS_ON:
            found.append(f"{path} imports {module}; decoding stands on the standard library, numpy, pydantic and yaml")
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_follows_the_arrows(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    found = [
        violation
        for file in files
        for violation in violations(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_a_plan_loads_no_predictions_of_what_is_published():
    files = [file for name in ("platform_plan", "published") for file in (ROOT / "planner" / name).rglob("*.py")]
    found = {module for file in files for module in imported_modules(file.read_text(encoding="utf-8"))}
    assert [one for one in found if one.startswith(("planner.retrodict", "planner.reproduce"))] == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("sim/world.py", "import runtime.models.decoder"),
        ("runtime/lanes/lane.py", "from sim import world"),
        ("decoding/schedule.py", "import hwprofiles"),
        ("hwprofiles/reader.py", "from decoding import schedule"),
        ("planner/search/search.py", "def f():\n    import torch.nn"),
        ("planner/search/search.py", "import plotly.express"),
        ("calibrate/profiling/calibration.py", "if True:\n    from torch import Tensor"),
        ("runtime/lanes/lane.py", "import simpy"),
        ("training/recipe.py", "from transformers import AutoModel"),
        ("decoding/schedule.py", "import networkx"),
        ("runtime/backends/openvino/graph.py", "def f():\n    import openvino"),
    ],
)
def test_each_kind_of_wrong_import_is_found(path, source):
    assert len(violations(path, source)) == 1


IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(package.__path__, name + "."):
        importlib.import_module(module.name)
        if {"openvino", "torch", "transformers"} & set(sys.modules):
            sys.exit(module.name)
"""


def test_nothing_on_the_way_to_a_simulation_imports_torch_or_openvino():
    command = [sys.executable, "-c", IMPORT_ALL, "decoding", "hwprofiles", "sim", "planner", "mirrorsd"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
