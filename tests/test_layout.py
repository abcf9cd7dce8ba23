"""The house is one in which every room is found in one guess: small folders, one meaning a name, facts for names.

What counts: modules of a folder, base names of modules and of classes, comparisons of a method's name outside of
`decoding`, and words that docs/glossary.md calls gone.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from decoding.methods import METHODS
from mirrorsd.cli.app import app

ROOT = Path(__file__).parents[1]
PACKAGES = ("calibrate", "costs", "decoding", "hwprofiles", "mirrorsd", "planner", "runtime", "sim", "training")
MOST_MODULES = 16
MOST_LINES = 350

SLICES = {"model", "drafter", "folder", "published"}
"""Every kind of drafter is one folder with the same four rooms, as far as it needs them: one meaning each."""
SEVERAL_MEANINGS = {
    "Arm", "Constants", "Count", "Dtype", "Floats", "Kind", "Outcome", "Part", "Path", "Replay", "Rotation",
    "Size", "Step", "Steps",
}  # fmt: skip
"""Names of classes and of types that other modules import, which still mean several things. The list only shrinks."""
VERBS = ROOT / "mirrorsd" / "cli" / "verbs"
"""A verb's module bears the verb's name, whatever does the work."""


@cache
def modules() -> dict[Path, ast.Module]:
    """Every module by its path."""
    paths = (path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py")))
    return {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for path in paths
        if path.name not in ("__init__.py", "__main__.py")
    }


def compared_method_names(tree: ast.Module) -> Iterator[str]:
    """Comparisons of something called a method with the name of one."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Compare):
            continue
        sides = [node.left, *node.comparators]
        names = {
            one.value
            for side in sides
            for one in ast.walk(side)
            if isinstance(one, ast.Constant) and one.value in METHODS
        }
        text = " ".join(map(ast.unparse, sides))
        if names and "method" in text.lower():
            yield ast.unparse(node)


def class_names(tree: ast.Module) -> Iterator[str]:
    """Classes that other modules may import."""
    yield from (one.name for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and not one.name.startswith("_"))


def aliases(tree: ast.Module) -> Iterator[str]:
    """Other names of types that modules may import: capitals, but not all of them."""
    told = (target for one in tree.body if isinstance(one, ast.Assign) for target in one.targets)
    yield from (one.id for one in told if isinstance(one, ast.Name) and re.match("[A-Z].*[a-z]", one.id))


def test_no_folder_has_more_modules_than_one_can_see_at_a_glance():
    folders = defaultdict(int)
    for path in modules():
        folders[path.parent] += 1
    assert {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > MOST_MODULES} == {}


def test_a_name_of_a_module_means_one_thing():
    homes = defaultdict(set)
    for path in modules():
        is_slice = path.stem in SLICES and path.parent.parent == ROOT / "runtime" / "drafters"
        if path.parent != VERBS and not is_slice:
            homes[path.stem].add(path.relative_to(ROOT))
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_name_of_a_class_means_one_thing():
    homes = defaultdict(set)
    for path, tree in modules().items():
        for name in (*class_names(tree), *aliases(tree)):
            homes[name].add(str(path.relative_to(ROOT)))
    several = {name: paths for name, paths in homes.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in SEVERAL_MEANINGS} == {}
    assert set(several) >= SEVERAL_MEANINGS, "these mean one thing now: take them off the list"


def gone_words() -> list[str]:
    """The words of the glossary's second table."""
    _, table = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("## Words that are gone")
    return re.findall(r"^\| `(.+?)` \|", table, re.MULTILINE)


def helps(command: object, path: str = "mirrorsd") -> Iterator[tuple[str, str]]:
    """What the help of every verb says, by the words that call it."""
    told = [getattr(command, "help", ""), *(getattr(one, "help", "") for one in getattr(command, "params", ()))]
    yield path, "\n".join(filter(None, told))
    for name, inner in getattr(command, "commands", {}).items():
        yield from helps(inner, f"{path} {name}")


def test_words_that_are_gone_do_not_come_back():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    texts = {path.name: path.read_text(encoding="utf-8") for path in pages if path.name != "glossary.md"}
    texts |= {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "planner").rglob("*.html")}
    texts |= dict(helps(typer.main.get_command(app)))
    found = {(name, word) for name, text in texts.items() for word in gone_words() if word in " ".join(text.split())}
    assert gone_words()
    assert found == set()


def test_no_module_is_longer_than_one_concept_needs():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > MOST_LINES} == {}


def test_nothing_outside_decoding_compares_a_methods_name():
    found = {
        str(path.relative_to(ROOT)): comparisons
        for path, tree in modules().items()
        if "decoding" not in path.relative_to(ROOT).parts and (comparisons := list(compared_method_names(tree)))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ('schedule.method == "mirror"', True),
        ('if one.method in ("speculative", "mirror"): pass', True),
        ('"eagle3" != method', True),
        ('schedule.root_source == "draft"', False),
        ('kind == "mirror"', False),
        ("schedule.method == other.method", False),
    ],
)
def test_a_comparison_is_found(source, is_found):
    assert bool(list(compared_method_names(ast.parse(source)))) == is_found
