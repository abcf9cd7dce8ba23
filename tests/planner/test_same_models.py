"""Predictions from a profile and a record of different models are refused, or labelled where they are asked for."""

from dataclasses import replace

import pytest

from decoding.errors import ConfigError
from planner.same_models import require_same_models
from tests.planner.synthetic import acceptance_record, machine

RECORD = acceptance_record(num_prompts=1, num_tokens=5)


def test_the_same_models_need_no_word():
    assert require_same_models(machine(), RECORD) is None
    assert require_same_models(machine(), RECORD, replayed=True) is None


@pytest.mark.parametrize(("name", "other"), [("target", "bigger"), ("drafter", "better"), ("dtype", "float32")])
def test_each_difference_is_refused_with_both_sides_and_what_to_do(name, other):
    ours = getattr(machine(), name)
    message = (
        rf"^p\.yaml was measured with {name} {ours}, r\.npz recorded with {name} {other}\. "
        r"Calibrate and record with the same models; .* --replayed-acceptance \(replayed=True\)$"
    )
    with pytest.raises(ConfigError, match=message):
        require_same_models(machine(), replace(RECORD, **{name: other}), sides=("p.yaml", "r.npz"))


def test_what_is_asked_for_is_labelled_with_all_that_differs():
    other = replace(RECORD, target="bigger", dtype="float32")
    label = require_same_models(machine(), other, replayed=True)
    assert label == (
        "Acceptance is replayed from another pair: recorded with target bigger, dtype float32, "
        "while times are of target SmolLM2-135M-Instruct, dtype bfloat16."
    )


def test_a_pair_without_a_drafter_is_another_pair():
    profile = machine().model_copy(update={"drafter": None})
    with pytest.raises(ConfigError, match="measured with drafter None"):
        require_same_models(profile, RECORD)


def test_a_folder_may_be_named_in_several_ways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    profile = machine().model_copy(update={"target": "./models/llama"})
    assert require_same_models(profile, replace(RECORD, target="models/llama")) is None
    assert require_same_models(profile, replace(RECORD, target=str(tmp_path / "models" / "llama"))) is None
