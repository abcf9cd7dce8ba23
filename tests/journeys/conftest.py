"""A user's folder, with a model of their own in it."""

import shutil

import pytest

from tests.journeys.printed import ROOT
from tests.journeys.walk import MINE, Walk
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_target


@pytest.fixture(scope="module")
def walk(tmp_path_factory, embedded_model_folder):
    """An empty folder but for a small model of the user's, which has the words of the embedded one, and a benchmark."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copy(ROOT / "tests" / "planner" / "benches" / "llama-bench.jsonl", folder / "bench.jsonl")
    sizes = {"num_layers": 30, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "head_dim": 8}
    target = tiny_target(vocab_size=49152, max_position=2048, eos_token_ids=(2,), **sizes)
    save_target(target, folder / MINE)
    for file in embedded_model_folder.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in ("config.json", "generation_config.json"):
            shutil.copy(file, folder / MINE)
    return Walk(folder)
