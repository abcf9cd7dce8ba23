import json

import pytest

from calibrate.prompts import Prompt, bundled_prompts
from decoding.errors import ModelError, ModelFormatError
from decoding.schedule import Schedule
from decoding.trace import Trace
from mirrorsd.model_pair import find_pair
from mirrorsd.prompt_tokens import encode, num_tokens
from mirrorsd.text_engine import Answer, Decoding, generate


def test_an_answer_is_shown_as_its_text():
    """A notebook prints what a cell ends with; the trace of a text is thousands of spans."""
    answer = Answer(text="Blue.", tokens=(1,) * 1000, trace=Trace(world="measured"))
    assert repr(answer) == "Answer(text='Blue.')"


def test_one_call_writes_the_same_text_by_whatever_drafts(tiny_folders, lane_names):
    """Prompt lookup and a model, by name or as found: `generate` finds what a schedule drafts with."""
    lane = lane_names[0]
    lookup = Schedule(method="prompt_lookup", target_lane=lane, draft_lane=lane, num_speculative_tokens=3)
    schedules = [
        Schedule(method="autoregressive", target_lane=lane),
        lookup,
        lookup.model_copy(update={"drafter": "prompt-lookup"}),
        lookup.model_copy(update={"method": "speculative", "drafter": str(tiny_folders.drafter)}),
    ]
    how = {"target": tiny_folders.target, "dtype": "float32", "decoding": Decoding(max_new_tokens=12)}
    texts = {generate("w5 w17 w3 w44 w8", schedule, **how).tokens for schedule in schedules}
    assert len(texts) == 1


PROMPTS = [Prompt(prompt_id=text, category="", turns=(text,)) for text in ("w1 w2 w3", "w4", "")]


def test_random_weights_have_no_tokenizer_and_no_prompt_is_empty(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path))
    pair = find_pair("shape:smollm2-135m", drafter="none", heads=())
    assert num_tokens(PROMPTS, pair.target_folder) == (2, 1, 1)
    with pytest.raises(ModelError, match=r"shape-smollm2-135m-\w+ has random weights and reads no prompts: .*--rates"):
        encode(PROMPTS, pair.target_folder)


def test_characters_tell_about_as_much_as_the_embedded_models_tokenizer(embedded_model_folder) -> None:
    prompts = bundled_prompts()
    counted = sum(num_tokens(prompts, embedded_model_folder))
    assert sum(len(prompt.text) for prompt in prompts) / counted == pytest.approx(3, rel=0.02)


def test_a_model_that_lost_its_tokenizer_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelFormatError):
        num_tokens(PROMPTS, tmp_path)
