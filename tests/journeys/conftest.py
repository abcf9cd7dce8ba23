"""A user's folder, with a model of their own in it."""

import shutil

import pytest

from tests.journeys.printed import ROOT
from tests.journeys.walk import LAYERS, MINE, Walk
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_target

ENGINE_PAGES = {
    "llama-bench.jsonl": "target.jsonl",
    "draft-bench.jsonl": "draft.jsonl",
    "llama-server-metrics.txt": "metrics.txt",
}


@pytest.fixture(scope="module")
def walk(tmp_path_factory, embedded_model_folder):
    """A folder with a model of the user with the words of the embedded one, pages of an engine, and public cases."""
    folder = tmp_path_factory.mktemp("user")
    for page, name in ENGINE_PAGES.items():
        shutil.copy(ROOT / "tests" / "planner" / "imported" / "pages" / page, folder / name)
    shutil.copy(ROOT / "benchmarks" / "public-cases.yaml", folder / "cases.yaml")
    sizes = {"num_layers": LAYERS, "hidden_size": 32, "intermediate_size": 48, "num_heads": 4, "head_dim": 8}
    target = tiny_target(vocab_size=49152, max_position=2048, eos_token_ids=(2,), **sizes)
    save_target(target, folder / MINE)
    for file in embedded_model_folder.iterdir():
        if file.suffix in (".json", ".jinja") and file.name not in ("config.json", "generation_config.json"):
            shutil.copy(file, folder / MINE)
    walk = Walk(folder)
    yield walk
    walk.lanes.close()
