"""Texts and what is trained with them: prompts, tokens, recipes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from calibrate.prompts import load_prompts
from tests.mutated_files.kind import Kind, numbers
from training.data.states import read_conversations
from training.recipe import load_recipe, load_text_recipe, shipped_recipes


def _make_recipes(folder: Path) -> list[str]:
    names = [name for name in shipped_recipes() if name.endswith(("draft4", "eagle3", "selfgen"))]
    for name in names:
        shutil.copy(shipped_recipes()[name], folder / f"{name}.yaml")
    return [f"{name}.yaml" for name in names]


def _read_recipes(folder: Path) -> Iterable[float]:
    for path in sorted(folder.glob("*.yaml")):
        recipe = load_text_recipe(path) if "selfgen" in path.name else load_recipe(path)
        yield from numbers(recipe.model_dump())


def _make_prompts(folder: Path) -> list[str]:
    rows = [
        {"prompt_id": "a", "category": "qa", "prompt": "Why?"},
        {"prompt": "How?\nSo."},
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["prompts.jsonl"]


def _read_prompts(folder: Path) -> Iterable[float]:
    for prompt in load_prompts(folder / "prompts.jsonl"):
        f"{prompt.prompt_id} {prompt.category} {prompt.text}".encode()
        yield float(len(prompt.text))


def _make_tokens(folder: Path) -> list[str]:
    rows = [{"prompt": [1, 2], "answer": [3, 4, 2], "temperature": 0.8}] * 3
    (folder / "tokens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["tokens.jsonl"]


def _read_tokens(folder: Path) -> Iterable[float]:
    return [row.temperature for row in read_conversations([folder / "tokens.jsonl"], vocab_size=9)]


TEXT_FILES: Final[dict[str, Kind]] = {
    "recipe": Kind(make=_make_recipes, read=_read_recipes),
    "prompts": Kind(make=_make_prompts, read=_read_prompts),
    "training text": Kind(make=_make_tokens, read=_read_tokens),
}
