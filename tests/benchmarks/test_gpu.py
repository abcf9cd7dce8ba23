"""The script for a machine with a GPU: its dry run does all of it, with torch and nothing else."""

import json
import os
import subprocess
import sys

import pytest
import torch

from hwprofiles.model_shape import model_shape
from tests.benchmarks.scripts import ROOT, load_script

BARE = """
import pathlib, runpy, sys
others = "gguf huggingface_hub jinja2 networkx openvino plotly pydantic rich safetensors simpy tokenizers typer yaml"
for name in others.split():
    sys.modules[name] = None
sys.argv = sys.argv[1:]
sys.path.insert(0, str(pathlib.Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SCRIPT = str(ROOT / "benchmarks" / "gpu.py")


def test_a_dry_run_with_torch_alone_fills_every_part(tmp_path):
    out = tmp_path / "gpu.json"
    command = [sys.executable, "-c", BARE, SCRIPT, "--dry-run", "--out", out]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["device"]["is_dry_run"]
    assert found["left_out"] == []
    assert [one["is_same"] for one in found["checks"]] == [True, True]
    sizes, targets = load_script("_gpu/session").DRY, load_script("_gpu/models").TARGETS
    of_layers = {(one["model"], one["rows"], one["context"]) for one in found["layers"]}
    assert of_layers == {(m, r, c) for m in targets for r in sizes.rows for c in sizes.contexts}
    assert {one["width"] for one in found["draft"]} == set(sizes.widths)
    assert [len(one["streams"]) for one in found["streams"]] == [1, 1, 2]
    for part in ("memory", "heads", "replay", "rounds", "channel"):
        assert found[part]
        assert all(
            value > 0 for one in found[part] for name, value in one.items() if name.endswith("_s") and name != "rest_s"
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_exits_2(tmp_path, capsys):
    assert load_script("gpu").main(["--out", str(tmp_path / "gpu.json")]) == 2
    assert "finds no NVIDIA GPU here: nothing was measured" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["qwen3-14b", "qwen3-32b", "opt-66b", "qwen3-0.6b"])
def test_shapes_are_those_that_ship(name):
    config, shape = load_script("_gpu/models").config_of(name), model_shape(name)
    fields = ("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "vocab_size")
    assert [getattr(config, field) for field in fields] == [getattr(shape, field) for field in fields]
    assert config.num_layer_parameters == shape.layer_parameters


def test_what_is_not_reached_in_time_is_noted():
    script = load_script("gpu")
    session = script.Session(torch.device("cpu"), script.DRY, 0.0)
    script.memory(session)
    assert session.found["left_out"] == [{"what": "memory", "why": "TimeoutError"}]
