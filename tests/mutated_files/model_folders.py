"""Folders of models: targets, tokenizers, drafters of every kind, exits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file

from runtime.backends.eager import EagerBackend
from runtime.drafters.registry import DrafterContext, load_drafter, require_streams
from runtime.models.config import ModelConfig
from runtime.models.decoder import load_decoder
from runtime.models.tokenizer import Tokenizer
from tests.mutated_files.kind import Kind
from tests.runtime.drafters.folders.kinds import KINDS
from tests.runtime.drafters.test_published_eagle3 import checkpoint_config, checkpoint_tensors
from tests.runtime.drafters.test_published_medusa import checkpoint
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import tiny_target


@cache
def _target() -> Any:
    return tiny_target(num_layers=6)


def _make_target(folder: Path) -> list[str]:
    save_target(_target(), folder)
    return ["config.json", "model.safetensors"]


def _read_target(folder: Path) -> Iterable[float]:
    config = ModelConfig.from_folder(folder)
    with torch.inference_mode():
        decoder = load_decoder(folder, dtype=torch.bfloat16)
    return [config.norm_eps, config.rope_theta, *_sums(decoder)]


def _make_tokenizer(folder: Path) -> list[str]:
    split = {"type": "Split", "pattern": {"Regex": " ?a+"}, "behavior": "Isolated", "invert": False}
    model = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "é": 2, "éé": 3, "##b": 4, "ab": 5},
        "merges": [["a", "##b"]],
        "unk_token": "a",
        "continuing_subword_prefix": "##",
    }
    parts = {
        "version": "1.0",
        "padding": {
            "strategy": {"Fixed": 4},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "a",
        },
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": split,
        "post_processor": None,
        "decoder": {"type": "Strip", "content": "a", "start": 1, "stop": 0},
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(parts))
    template = "{% for m in messages %}{{ bos_token }}{{ m['content'] | trim }}{% endfor %}"
    settings = {"chat_template": template, "bos_token": {"content": "a"}, "eos_token": "b"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ["tokenizer_config.json", "tokenizer.json"]


def _read_tokenizer(folder: Path) -> Iterable[float]:
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab éé")
    tokenizer.decode(ids)
    return ids


def _sums(module: torch.nn.Module) -> Iterable[float]:
    return [float(weight.double().sum()) for weight in module.parameters() if not weight.is_meta]


def _read_drafter(folder: Path) -> Iterable[float]:
    context = DrafterContext(target_folder=folder, dtype=torch.bfloat16, load_target=_target, new_backend=EagerBackend)
    drafter = load_drafter(folder, context)
    modules = [value for value in vars(drafter).values() if isinstance(value, torch.nn.Module)]
    return [total for module in modules for total in _sums(module)]


def _head(save: Callable[[Path, Any], object]) -> Kind:
    def make(folder: Path) -> list[str]:
        save(folder, _target())
        return ["config.json", "model.safetensors"]

    return Kind(make=make, read=_read_drafter)


def _save_published_eagle3(folder: Path, _: Any) -> None:
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}}
    (folder / "config.json").write_text(json.dumps(checkpoint_config(**layers)))
    save_file(checkpoint_tensors(), folder / "model.safetensors")


def _save_published_medusa(folder: Path, _: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 2}))
    save_file(checkpoint(), folder / "model.safetensors")


def _of_kind(name: str) -> Kind:
    """One of the kinds whose folders are tested for what they hold; exits and streams are of no registry."""
    kind = KINDS[name]

    def read(folder: Path) -> Iterable[float]:
        if name == "streams":
            require_streams(folder)
        return _sums(kind.module(kind.load(folder, deepcopy(_target()), dtype=torch.bfloat16)))

    made = _head(lambda folder, target: kind.save(kind.make(target), folder, target))
    return made._replace(read=read) if name in ("exits", "streams") else made


def _make_lookup(folder: Path) -> list[str]:
    config = {"speculators_model_type": "mirrorsd_prompt_lookup", "min_ngram": 1, "max_ngram": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return ["config.json"]


MODEL_FOLDERS: Final[dict[str, Kind]] = {
    "target": Kind(make=_make_target, read=_read_target),
    "tokenizer": Kind(make=_make_tokenizer, read=_read_tokenizer),
    **{name: _of_kind(name) for name in KINDS},
    "published eagle3": _head(_save_published_eagle3),
    "published medusa": _head(_save_published_medusa),
    "prompt lookup": Kind(make=_make_lookup, read=_read_drafter),
}
