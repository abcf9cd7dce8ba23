"""From the demo's first line to its last, and on: every schedule that it saved writes plain decoding's text."""

import json

import pytest

from calibrate.prompts import bundled_prompts
from decoding.schedule import Schedule, load_schedule, save_schedule
from mirrorsd.prompt_tokens import encode
from runtime.models.tokenizer import Tokenizer
from tests.journeys.printed import Printed

LONG = (300, 700, 1500)
"""Tokens of prompts, more or less."""
RUN = ("mirrorsd", "run", "--max-new-tokens", 24, "--quiet", "--json", "--prompts", "prompts.jsonl")


@pytest.fixture(scope="module")
def demo(walk):
    return walk.quickly(Printed("mirrorsd demo --dtype bfloat16", "journey"))


@pytest.fixture(scope="module")
def prompts(walk, embedded_model_folder):
    """A short prompt and long ones: as many questions as it takes, with the request to answer the first."""
    texts = [prompt.text for prompt in bundled_prompts()]
    tokenizer, written = Tokenizer.from_folder(embedded_model_folder), [texts[0]]
    for length in LONG:
        ids = tokenizer.encode("\n\n".join(texts * 8))[:length]
        written.append(f"{tokenizer.decode(ids)}\n\nAnswer the first of these questions.")
    rows = [json.dumps({"prompt_id": f"p{place}", "prompt": text}) for place, text in enumerate(written)]
    (walk.folder / "prompts.jsonl").write_text("\n".join(rows))
    return written


def test_the_prompts_are_as_long_as_they_should_be(prompts, embedded_model_folder):
    from calibrate.prompts import Prompt

    asked = [Prompt(prompt_id=text[:9], category="", turns=(text,)) for text in prompts[1:]]
    lengths = [len(one.ids) for one in encode(asked, embedded_model_folder)]
    assert all(wanted <= length < wanted + 60 for wanted, length in zip(LONG, lengths, strict=True))


def test_the_last_line_that_the_demo_prints_ends_with_the_text(walk, demo):
    [last] = {one.text for one in demo.printed}
    assert demo.stderr.rstrip().splitlines()[-1] == f"Use what is recommended: {last}"
    assert walk.follow(demo)


def test_what_is_recommended_writes_plain_decodings_text_after_short_and_long_prompts(walk, demo, prompts):
    best = load_schedule(walk.folder / "out/demo/best.yaml")
    save_schedule(Schedule(method="autoregressive", target_lane=best.target_lane), walk.folder / "plain.yaml")
    files = ("out/demo/best.yaml", "plain.yaml")
    found, plain = (json.loads(walk(*RUN, "--schedule", file).stdout)["prompts"] for file in files)
    assert len(found) == len(prompts)
    for one, other in zip(found, plain, strict=True):
        assert one["text"]
        if not best.is_tree:
            assert one["token_ids"] == other["token_ids"], one["prompt_id"]


def test_every_schedule_that_was_run_runs_again_by_its_file(walk, demo):
    for path in sorted((walk.folder / "out/demo/schedules").glob("*.yaml")):
        words = f"mirrorsd run --schedule {path.relative_to(walk.folder)} --prompt 'Why is the sky blue?'"
        walk.quickly(Printed(words, "the demo's folder"))
