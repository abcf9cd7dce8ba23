"""Prompt lookup ships for every target; its settings are a config that is checked."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding.errors import ModelFormatError
from decoding.messages import Window
from decoding.schedule import Schedule
from runtime.drafters.prompt_lookup.folder import load_prompt_lookup
from runtime.drafters.registry import DrafterContext, load_drafter
from runtime.drafters.shipped import find_drafter
from runtime.models.decoder import Decoder

CONFIG: dict[str, Any] = {"speculators_model_type": "mirrorsd_prompt_lookup", "min_ngram": 1, "max_ngram": 2}


def folder_of(tmp_path: Path, config: object) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path


def test_a_folder_gives_a_drafter_with_its_settings(tmp_path: Path) -> None:
    drafter = load_prompt_lookup(folder_of(tmp_path, CONFIG))
    schedule = Schedule(method="prompt_lookup", target_lane="t", draft_lane="t", num_speculative_tokens=2)
    drafter.prefill([1, 2, 3, 1], schedule=schedule, capacity=20)
    for committed, window in (((), (2, 3)), ((2, 9), ()), ((1, 2), (9, 1))):
        steps = drafter.rollout(committed)
        assert next(steps) == 1
        with pytest.raises(StopIteration) as end:
            next(steps)
        assert end.value.value == Window(window)


def test_the_shipped_one_loads_without_its_target(tmp_path: Path) -> None:
    def load_target() -> Decoder:
        raise AssertionError("nothing of the target is needed")

    context = DrafterContext(target_folder=tmp_path, dtype=torch.float32, load_target=load_target)
    assert load_drafter(find_drafter("prompt-lookup"), context).methods == ("prompt_lookup",)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (CONFIG | {"min_ngram": 3}, "min_ngram is 3, more than max_ngram 2"),
        (CONFIG | {"max_ngram": 0}, "greater than or equal to 1"),
        (CONFIG | {"window": 3}, "Extra inputs are not permitted"),
        ([], "Input should be an object"),
    ],
)
def test_a_wrong_config_is_refused_with_its_path(tmp_path: Path, config: object, message: str) -> None:
    with pytest.raises(ModelFormatError, match=message) as error:
        load_prompt_lookup(folder_of(tmp_path, config))
    assert "config.json" in str(error.value)


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"config\.json"):
        load_prompt_lookup(tmp_path)
