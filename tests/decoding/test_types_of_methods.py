"""The heart is type-checked: a misspelt field of a reply in a method, or a misspelt verb, is an error for mypy."""

import ast
from pathlib import Path

import pytest
from mypy import api

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "decoding" / "methods"
MUTANTS = {
    "draft_then_verify.py": ("lanes.commit(window, verdict)", "lanes.commit(window.tokenz, verdict)"),
    "mirror.py": ("branches.join(signal)", "branches.join(signal.candidate)"),
    "autoregressive.py": ("lanes.commit(NO_WINDOW, verdict)", "lanes.commit(NO_WINDOW, verdict.outcom)"),
    "speculative_streaming.py": ("lanes.target.stream(window)", "lanes.target.streem(window)"),
}


def test_every_mutant_is_an_error_and_the_methods_are_none(tmp_path: Path) -> None:
    for name, (right, wrong) in MUTANTS.items():
        source = (FOLDER / name).read_text(encoding="utf-8")
        assert right in source
        (tmp_path / f"mutant_{name}").write_text(source.replace(right, wrong), encoding="utf-8")
    command = [*map(str, sorted(tmp_path.glob("*.py"))), *(str(FOLDER / name) for name in MUTANTS)]
    found, errors, status = api.run(
        ["--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(tmp_path / "cache"), *command]
    )
    assert (errors, status) == ("", 1)
    complaints = [line for line in found.splitlines() if ": error:" in line]
    assert sorted({Path(line.split(":")[0]).name for line in complaints}) == sorted(f"mutant_{n}" for n in MUTANTS)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_every_reply_has_a_declared_type(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    declared = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Yield):
            assert {name.id for name in node.targets if isinstance(name, ast.Name)} <= declared
        assert not (isinstance(node, ast.Call) and any(isinstance(one, ast.Yield) for one in node.args))
