"""README, docs and the examples of every `--help`, from top to bottom in an empty folder; and on from the demo."""

import json

import pytest

from calibrate.prompts import Prompt, bundled_prompts
from decoding.schedule import Schedule, load_schedule, save_schedule
from mirrorsd.prompt_tokens import encode
from runtime.models.tokenizer import Tokenizer
from tests.journeys.page_walk import PageWalk, walkable, write_shown_files
from tests.journeys.printed import ROOT, Printed, of_a_page, of_the_help

PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs").glob("*.md") if page.name != "training.md")]
COMMANDS = {page.name: walkable(of_a_page(page)) for page in PAGES}
EXAMPLES = walkable([one for one in of_the_help() if one.words[1] != "train"])

LONG = 1100
"""Tokens of a prompt, more or less: beyond all sizes of buffers up to 1,024."""
RUN = ("mirrorsd", "run", "--max-new-tokens", 24, "--quiet", "--json", "--prompts", "prompts.jsonl")


@pytest.fixture(scope="module")
def page_walks(walk):
    write_shown_files(ROOT / "docs" / "platforms.md", walk.folder, "my-file.yaml")
    return {name: PageWalk(walk, commands) for name, commands in COMMANDS.items()}


@pytest.mark.parametrize("printed", [one for page in COMMANDS.values() for one in page], ids=str)
def test_a_command_of_a_page_works(printed, page_walks):
    page_walks[printed.where](printed)


@pytest.mark.parametrize("printed", EXAMPLES, ids=str)
def test_an_example_of_the_help_works(printed, walk):
    PageWalk(walk, EXAMPLES, in_order=False)(printed)


@pytest.fixture(scope="module")
def demo(walk):
    return walk.quickly(Printed("mirrorsd demo", "README.md"))


@pytest.fixture(scope="module")
def prompts(walk, embedded_model_folder):
    """A short prompt and a long one: as many questions as it takes, with the request to answer the first."""
    texts = [prompt.text for prompt in bundled_prompts()]
    tokenizer = Tokenizer.from_folder(embedded_model_folder)
    questions = tokenizer.decode(tokenizer.encode("\n\n".join(texts * 8))[:LONG])
    written = [texts[0], f"{questions}\n\nAnswer the first of these questions."]
    rows = [json.dumps({"prompt_id": f"p{place}", "prompt": text}) for place, text in enumerate(written)]
    (walk.folder / "prompts.jsonl").write_text("\n".join(rows))
    return written


def test_the_long_prompt_is_as_long_as_it_should_be(prompts, embedded_model_folder):
    [long] = encode([Prompt(prompt_id="long", category="", turns=(prompts[1],))], embedded_model_folder)
    assert LONG <= len(long.ids) < LONG + 60


def test_the_last_line_that_the_demo_prints_ends_with_the_text(walk, demo):
    [last] = {one.text for one in demo.printed}
    assert demo.stderr.rstrip().splitlines()[-1] == f"Use the recommended schedule: {last}"
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
    paths = sorted((walk.folder / "out/demo/schedules").glob("*.yaml"))
    assert paths
    for path in paths:
        if load_schedule(path).draft_lane is None:
            continue  # plain decoding is what others are compared with
        words = f"mirrorsd run --schedule {path.relative_to(walk.folder)} --prompt 'Why is the sky blue?'"
        walk.quickly(Printed(words, "the demo's folder"))


def test_all_that_was_printed_on_the_way_works(walk, demo):
    assert [one for done in list(walk.done.values()) for one in walk.follow(done)]
