"""Text in, text out, and acceptance that is known before."""

import json
import shutil
from dataclasses import replace

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.prompts import Prompt, bundled_prompts
from calibrate.recording.reach import Reach
from decoding.errors import ConfigError, ModelError, ModelFormatError
from decoding.schedule import Schedule
from decoding.trace import NOT_COMMITTED
from mirrorsd import measure_pair
from mirrorsd.lane_choice import device_lanes
from mirrorsd.measure_pair import calibration_task, contexts_of
from mirrorsd.model_pair import ModelPair, find_pair
from mirrorsd.prompt_tokens import encode, num_tokens
from mirrorsd.text_engine import (
    Decoding,
    ReplayEngine,
    TextEngine,
    arbitrary_prompt,
    generate,
    new_engine,
    replayed_texts,
)
from runtime.lanes import lane_set
from runtime.lanes.lane import LaneSpec
from runtime.models.model_folder import NamedFolder, save_shape
from sim.world import simulate
from tests.costs.constant_cost import MILLISECONDS
from tests.planner.synthetic import VOCABULARY, acceptance_record, machine
from tests.runtime.thread_lanes import ThreadLane, thread_engine
from tests.sim.worlds.records import drawn
from tests.tiny_models import TINY_SHAPE, VOCAB_SIZE


def test_one_call_writes_the_same_text_by_whatever_drafts(tiny_folders, lane_names, forked_lanes):
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


def test_an_engine_has_this_machines_lanes_and_ends_them_when_it_is_closed(tiny_folders, lane_names, forked_lanes):
    engine = TextEngine(find_pair(tiny_folders.target, dtype="float32"))
    plain = Schedule(method="autoregressive", target_lane=lane_names[0])
    for _ in range(2):
        made = [engine.answer(one, plain, Decoding(max_new_tokens=4)).tokens for one in (PROMPTS[0], PROMPTS[0].text)]
        assert len(made[0]) == 4
        assert made[0] == made[1], "a text is a prompt"
        lane = engine._engine.lane(lane_names[0])
        assert lane.is_alive
        engine.close()
        assert not lane.is_alive


PROMPTS = [Prompt(prompt_id=text, category="", turns=(text,)) for text in ("w1 w2 w3", "w4", "")]


def test_random_weights_have_no_tokenizer_and_no_prompt_is_empty(empty_cache) -> None:
    pair = find_pair("shape:smollm2-135m", drafter="none", heads=())
    assert num_tokens(PROMPTS, pair.target_folder) == (2, 1, 1)
    with pytest.raises(ModelError, match=r"shape-smollm2-135m-\w+ has random weights and cannot read .*--replay"):
        encode(PROMPTS, pair.target_folder)


def test_characters_tell_about_as_much_as_the_embedded_models_tokenizer(embedded_model_folder) -> None:
    prompts = bundled_prompts()
    counted = sum(num_tokens(prompts, embedded_model_folder))
    assert sum(len(prompt.text) for prompt in prompts) / counted == pytest.approx(3, rel=0.02)


def test_a_model_that_lost_its_tokenizer_is_refused(tmp_path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"]}))
    with pytest.raises(ModelFormatError, match=r"tokenizer\.json: no such file"):
        num_tokens(PROMPTS, tmp_path)


def folder_with(tiny_folders, root, *, template=None):
    """The tiny target with an added token beyond its embeddings, and perhaps with a chat template."""
    folder = shutil.copytree(tiny_folders.target, root / "target")
    words = {f"w{index}": index for index in range(VOCAB_SIZE)}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(words, []))
    backend.add_special_tokens(["<more>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template} if template else {}))
    return folder


@pytest.mark.parametrize(
    ("text", "how", "message"),
    [
        (
            "a<more>",
            {},
            f"'<more>' is token {VOCAB_SIZE} of the target's tokenizer; embeddings end at {VOCAB_SIZE - 1}",
        ),
        ("a", {"template": "<more>{{ messages[0].content }}"}, f"'<more>' is token {VOCAB_SIZE}"),
        ("a", {}, "the target's tokenizer knows nothing of this text"),
        ("a", {"template": "{{ messages[0].text }}"}, "the target's chat template leaves nothing of this text"),
    ],
)
def test_prompts_that_no_model_can_read_are_named(tiny_folders, lane_names, tmp_path, text, how, message):
    folder = folder_with(tiny_folders, tmp_path, **how)
    prompts = [Prompt(prompt_id="p1", category="", turns=(text,))]
    with pytest.raises(ConfigError, match=f"^{message}"):
        encode(prompts, folder)
    with pytest.raises(ConfigError, match=f"^prompt p1: {message}"):
        encode(prompts * 2, folder)
    plain = Schedule(method="autoregressive", target_lane=lane_names[0])
    with TextEngine(find_pair(folder, dtype="float32")) as engine, pytest.raises(ConfigError, match=message):
        engine.check(prompts, plain, Decoding(max_new_tokens=4))


SHAPE = TINY_SHAPE | {"vocab_size": VOCABULARY, "num_hidden_layers": 3}
EXIT = {"method": "mirror", "root_source": "exit", "exit_layer": 2, "exit_top_k": 3}
SCHEDULES = {
    "speculative": {"method": "speculative"},
    "mirror from the exit": EXIT,
    "mirror from the draft": {"method": "mirror", "root_source": "draft", "draft_top_k": 2},
    "mirror with uneven roots": {"method": "mirror", "root_source": "draft", "roots_per_row": (3, 0, 1)},
    "hybrid mirror": EXIT | {"exit_layer": 1, "root_source": "hybrid", "draft_top_k": 2},
}


def small_record():
    """With its two exits at layers that a tiny model has."""
    made = acceptance_record(num_prompts=2, num_tokens=40, acceptance=0.7)
    prompts = [replace(prompt, exits={1: prompt.exits[15], 2: prompt.exits[20]}) for prompt in made.prompts]
    return replace(made, exit_layers=(1, 2), prompts=tuple(prompts))


RECORD = small_record()
COSTS = dict.fromkeys(("target", "draft"), MILLISECONDS)
"""Rounds do not depend on times."""


@pytest.fixture(scope="module")
def folders(own_cache):
    """Of a target and of its draft, which have nothing but a shape."""
    draft = SHAPE | {"num_hidden_layers": 1, "hidden_size": 8}
    return [save_shape(raw, name, source=name) for name, raw in (("target", SHAPE), ("draft", draft))]


@pytest.fixture(scope="module")
def engine(folders):
    with thread_engine(folders[0], drafter_folder=folders[1], dtype="bfloat16") as engine:
        yield engine


def replay(engine, asked, acceptance):
    """The same schedule for real, of every prompt."""
    lanes = {"target_lane": "big", "draft_lane": asked.draft_lane and "small"}
    for text in replayed_texts(acceptance, asked, vocab_size=VOCABULARY):
        prompt = arbitrary_prompt(text.prompt_length, VOCABULARY)
        yield engine.replay(asked.model_copy(update=lanes), prompt, text)


def rounds(trace):
    return [entry[2:] for entry in trace.rounds]


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rounds_are_those_of_the_record(engine, name, window) -> None:
    fields = SCHEDULES[name]
    if len(fields.get("roots_per_row", ())) > window + 1:
        fields = fields | {"roots_per_row": (2, 1)}
    asked = Schedule(**fields, num_speculative_tokens=window, target_lane="target", draft_lane="draft")
    simulated = simulate(asked, machine(), RECORD, costs=COSTS)
    found = list(replay(engine, asked, RECORD))
    assert [rounds(one.trace) for one in found] == [rounds(trace) for trace in simulated]
    assert [list(one.tokens) for one in found] == [prompt.text.tolist() for prompt in RECORD.prompts]
    assert all(not one.trace.events for one in found)
    if asked.traits.overlaps:
        hits = [entry.hit for one in found for entry in one.trace.rounds]
        assert {True, False} <= set(hits), "a record with hits and misses"


@given(
    rate=st.floats(0, 1),
    hit_rate=st.floats(0, 1),
    window=st.integers(1, 4),
    name=st.sampled_from(sorted(SCHEDULES.keys() - {"mirror with uneven roots"})),
)
@settings(deadline=None, max_examples=12)
def test_rounds_are_those_of_drawn_rates(engine, rate, hit_rate, window, name) -> None:
    """Which tokens they are nobody knows: they are left out."""
    asked = Schedule(**SCHEDULES[name], num_speculative_tokens=window, target_lane="target", draft_lane="draft")
    rates = drawn(rate, hit_rate, num_tokens=20, exit_layers=(1, 2))
    simulated = simulate(asked, machine(), rates, costs=COSTS)

    def known(trace):
        return [entry._replace(outcome=(entry.outcome[0], NOT_COMMITTED))[2:] for entry in trace.rounds]

    found = list(replay(engine, asked, rates))
    assert [known(one.trace) for one in found] == [known(trace) for trace in simulated]


def test_a_run_is_labelled_everywhere(engine) -> None:
    asked = Schedule(**EXIT, num_speculative_tokens=3, target_lane="target", draft_lane="draft")
    for found in replay(engine, asked, RECORD):
        assert found.trace.label == "random weights, replayed acceptance"
    plain = Schedule(method="autoregressive", target_lane="big")
    assert engine.generate(plain, [1, 2, 3], max_new_tokens=2).trace.label == "random weights"
    for found, prompt in zip(replay(engine, plain, RECORD), RECORD.prompts, strict=True):
        assert (list(found.tokens), len(found.trace.rounds)) == (prompt.text.tolist(), 40)


def test_ids_that_the_vocabulary_lacks_become_others_and_acceptance_stays() -> None:
    asked = Schedule(method="speculative", num_speculative_tokens=4, target_lane="target", draft_lane="draft")
    small, large = (replayed_texts(RECORD, asked, vocab_size=size) for size in (7, VOCABULARY))
    for one, other in zip(small, large, strict=True):
        assert set(one.text) | set(one.drafted) <= set(range(7))
        same = [[ours == theirs for ours, theirs in zip(text.text, text.drafted, strict=True)] for text in (one, other)]
        assert same[0] == same[1]
        assert True in same[0]
        assert False in same[0]


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"method": "prompt_lookup", "drafter": "lookup"}, "method is prompt_lookup: .* only for chains of a draft"),
        ({"method": "medusa", "tree_size": 4, "drafter": "heads"}, "method is medusa"),
        ({"method": "speculative", "draft_streams": 2}, "draft_streams is 2: what streams guess is not replayed"),
    ],
)
def test_what_no_replay_is_made_for_is_refused(engine, fields, complaint) -> None:
    asked = Schedule(method="speculative", num_speculative_tokens=4, target_lane="target", draft_lane="draft")
    [text, *_] = replayed_texts(RECORD, asked, vocab_size=VOCABULARY)
    schedule = Schedule(**fields, num_speculative_tokens=3, target_lane="big", draft_lane="small")
    with pytest.raises(ConfigError, match=complaint):
        engine.replay(schedule, [1] * text.prompt_length, text)


def test_a_text_that_does_not_fit_is_refused(engine) -> None:
    asked = Schedule(method="autoregressive", target_lane="big")
    [text, *_] = replayed_texts(RECORD, asked, vocab_size=VOCABULARY)
    with pytest.raises(ConfigError, match=rf"the prompt has 2 tokens, that of the replay {text.prompt_length}"):
        engine.replay(asked, [1, 2], text)
    beyond = replace(text, text=(VOCABULARY, *text.text[1:]))
    with pytest.raises(ConfigError, match="tokens outside of the target's 0..999"):
        engine.replay(asked, [1] * text.prompt_length, beyond)


@pytest.fixture
def replaying(folders, monkeypatch):
    """An engine that knows the record's prompts."""
    monkeypatch.setattr(lane_set, "Lane", ThreadLane)
    draft = NamedFolder("draft", folders[1])
    pair = ModelPair(target="target", target_folder=folders[0], drafter=draft, exits=None, dtype="bfloat16")
    with ReplayEngine(pair, [LaneSpec(name="big"), LaneSpec(name="small")], RECORD) as engine:
        yield engine


def test_an_engine_that_knows_prompts_cuts_their_texts_and_decodes_others_itself(replaying) -> None:
    plain = Schedule(method="autoregressive", target_lane="big")
    first, second = replaying.prompts
    assert first.ids != second.ids
    made = replaying.generate(plain, first.ids, max_new_tokens=5)
    assert made.tokens == tuple(RECORD.prompts[0].text[:5].tolist())
    own = replaying.generate(plain, arbitrary_prompt(len(first.ids), VOCABULARY), max_new_tokens=5, eos_token_ids=())
    assert own.trace.label == "random weights"
    assert len(own.tokens) == 5


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Decoding(temperature=float("nan")), "temperature is nan: it must be 0, or "),
        (lambda: Decoding(max_new_tokens=0), "max_new_tokens is 0: it must be at least 1"),
        (lambda: Decoding(max_new_tokens=6.5), "max_new_tokens is 6.5: it must be a whole number"),
        (lambda: Decoding(max_new_tokens=True), "max_new_tokens is True: it must be a whole number"),
        (lambda: Decoding(seed="a"), "seed is 'a': it must be a whole number"),
        (lambda: Decoding(seed=-3), "seed is -3: it must be at least 0"),
        (lambda: contexts_of([10], -64), "max_new_tokens is -64: it must be at least 1"),
        (lambda: contexts_of([10], 2.5), "max_new_tokens is 2.5: it must be a whole number"),
        (lambda: Reach(max_new_tokens=2.5), "max_new_tokens is 2.5: it must be a whole number"),
        (lambda: Reach(max_window=0), "max_window is 0: it must be at least 1"),
        (lambda: Reach(num_texts=1.5, temperature=1.0), "num_texts is 1.5: it must be a whole number"),
        (lambda: find_pair("smollm2-135m-instruct", dtype="x"), "dtype is 'x': it must be one of bfloat16, float32"),
        (lambda: bundled_prompts("x"), "there is no prompt set 'x'; prompt sets: demo, pool, long"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_given(made, message):
    with pytest.raises(ConfigError, match=message):
        made()


def test_no_prompt_is_no_record_and_one_context_no_calibration(tiny_folders, tmp_path):
    pair = find_pair(str(tiny_folders.target), dtype="float32")
    with pytest.raises(ConfigError, match="there is no prompt to record"):
        measure_pair.record(pair, [], tmp_path / "record.npz")
    with pytest.raises(ConfigError, match=r"contexts are \(5,\): they are two numbers"):
        measure_pair.calibrate(pair, tmp_path / "profile.yaml", contexts=(5,), device="cpu")
    assert list(tmp_path.iterdir()) == []


def test_what_is_calibrated_has_the_positions_that_a_run_asks_for(tiny_folders):
    pair = find_pair(str(tiny_folders.target), dtype="float32")
    lanes = device_lanes("cpu", "float32")
    asked = Schedule(
        method="prompt_lookup",
        target_lane=lanes[0].name,
        draft_lane=lanes[0].name,
        drafter="prompt-lookup",
        num_speculative_tokens=8,
    )
    prompt, room = [5] * 300, 512 - 300 - 18
    with new_engine(pair, lanes) as engine:

        def calibrate(num_new):
            contexts = contexts_of([len(prompt)], num_new)
            calibration_task(engine, pair, lanes, contexts=contexts, max_window=8, max_branches=32, quick=True)

        for accept in (calibrate, lambda num_new: engine.check(asked, prompt, num_new, 0.0)):
            accept(room)
            with pytest.raises(ConfigError, match="windows .*need 513 positions"):
                accept(room + 1)


def test_a_calibration_of_nothing_that_drafts_has_the_positions_of_plain_decoding(tiny_folders):
    pair = find_pair(str(tiny_folders.target), drafter="none", heads=(), dtype="float32")
    lanes = device_lanes("cpu", "float32")
    with new_engine(pair, lanes) as engine:

        def task(num_new):
            contexts = contexts_of([300], num_new)
            return calibration_task(engine, pair, lanes, contexts=contexts, max_window=8, quick=True)

        room = 512 - 300 - 2
        assert [task(num_new).max_window for num_new in (1, room - 3, room)] == [8, 3, 0]
        assert task(room).effort.target_rows == (1,)
        with pytest.raises(ConfigError, match="the longest prompt and its new tokens need 513 positions"):
            task(room + 1)
