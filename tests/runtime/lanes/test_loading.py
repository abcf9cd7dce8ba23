"""What a lane loads costs reading it, and no more."""

import subprocess
import sys
from pathlib import Path

import pytest

from runtime.drafters.shipped import find_drafter

ROOT = Path(__file__).parents[3]
COMPILER = {"torch._dynamo", "sympy"}
_LOAD = """
import sys
from pathlib import Path
from runtime.wire.operations import LoadDraft, LoadTarget
from runtime.worker.server import LaneServer

target, exits, drafter = map(Path, sys.argv[2:])
server = LaneServer(None)
for load in (
    LoadTarget(target=target, exits=exits, dtype="float32", device=sys.argv[1]),
    LoadDraft(target=target, drafter=drafter, dtype="float32", device=sys.argv[1]),
):
    server._handlers[type(load).__name__].run(load.message(None))
"""
_MAKE = """
import sys, torch
from runtime.drafters.eagle.model import Eagle1, Eagle3
from runtime.drafters.hydra.model import HydraConfig, HydraModel
from runtime.drafters.medusa.model import MedusaConfig, MedusaModel
from tests.tiny_models import tiny_config

config, of_heads = tiny_config(), {"num_heads": 2, "vocab_size": 8}
with torch.device("meta"):
    Eagle1(config, 8)
    Eagle3(config, 8, 3)
    HydraModel(config, HydraConfig(prefix_width=6, head_width=8, shared_widths=(10,), **of_heads))
    MedusaModel(config.hidden_size, MedusaConfig(num_blocks=1, **of_heads))
"""


@pytest.mark.parametrize("device", ["cpu", "openvino:CPU"])
def test_models_are_loaded_without_the_compiler_of_torch(tiny_folders, device):
    """It takes as long to import as torch, and torch asks for it to draw or count on the meta device."""
    folders = tiny_folders.target, tiny_folders.exits, tiny_folders.feature_drafter
    assert imported_by(_LOAD, device, *map(str, folders)).isdisjoint(COMPILER)


def test_so_are_heads():
    assert imported_by(_MAKE).isdisjoint(COMPILER)


@pytest.mark.parametrize("drafter", ["feature_drafter", "prompt-lookup"])
def test_a_lane_of_graphs_drafts_by_models_of_its_own_and_by_text_without_torch(tiny_folders, drafter):
    folder = getattr(tiny_folders, drafter, None) or find_drafter(drafter)
    folders = tiny_folders.target, tiny_folders.exits, folder
    assert "torch" not in imported_by(_LOAD, "openvino:CPU", *map(str, folders))


def imported_by(code, *arguments):
    """What a process has imported that runs this code."""
    command = [sys.executable, "-c", f"{code}\nprint(*sys.modules)", *arguments]
    return set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split())
