"""Real processes: every schedule commits what plain decoding commits, and its trace tells a consistent story."""

import json
import shutil
from itertools import pairwise
from math import inf, nan
from threading import Thread

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from decoding import metrics
from decoding.errors import ConfigError, LaneError, ModelError
from decoding.trace import Work
from runtime.lanes.sequence_lanes import Listener
from runtime.verification.rules import Sampling, seed_of
from tests.runtime import plain
from tests.runtime.engine.schedules import AUTOREGRESSIVE, NEAR_TIE, PROMPT, SCHEDULES, mirror, new_engine, speculative
from tests.runtime.unknown import Unknown
from tests.tiny_models import EOS, VOCAB_SIZE


@pytest.mark.parametrize("name", SCHEDULES)
@given(prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8), max_new_tokens=st.integers(1, 30))
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_greedy_text_is_that_of_plain_decoding(run, tiny_folders, name, prompt, max_new_tokens):
    expected = plain.continue_text(tiny_folders.decoder, prompt, max_new_tokens, eos=(EOS,))
    # float32 sums differ in their last bits with the number of rows: a tie to that precision has no right answer
    assume(plain.smallest_margin(tiny_folders.decoder, prompt, expected) > NEAR_TIE)
    found = run(SCHEDULES[name], prompt, max_new_tokens)
    assert list(found.tokens) == expected
    assert found.trace.events == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_text_ends_at_an_eos_inside_a_window(run, tiny_folders, name):
    text = plain.continue_text(tiny_folders.decoder, PROMPT, 24)
    for place in (3, 7, 10):
        first = text.index(text[place])
        found = run(SCHEDULES[name], eos_token_ids={text[place]})
        assert list(found.tokens) == text[: first + 1]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_text_under_match_is_that_of_plain_sampling(run, tiny_folders, name, seed):
    sampling = Sampling("match", 1.0, seed_of(seed, PROMPT))
    expected = plain.continue_text(tiny_folders.decoder, PROMPT, 24, sampling, eos=(EOS,))
    assert list(run(SCHEDULES[name], temperature=1.0, seed=seed).tokens) == expected


@pytest.mark.parametrize(
    "name", ["pooled", "mirror from the exit", "mirror from the draft", "mirror with uneven roots"]
)
def test_where_a_window_comes_from_changes_no_text_under_ratio(run, name):
    """Draws belong to places. Of what distribution these texts are: `tests.benchmarks.test_sampled_texts`."""
    schedule = SCHEDULES[name].model_copy(update={"verification": "ratio"})
    alone = speculative(schedule.num_speculative_tokens, verification="ratio")
    for seed in range(4):
        found, expected = (run(one, temperature=2.0, seed=seed, eos_token_ids=()) for one in (schedule, alone))
        assert found.tokens == expected.tokens


def test_tokens_are_announced_as_they_are_committed(run):
    said = []
    found = run(speculative(), listener=Listener(on_tokens=said.append))
    assert tuple(token for tokens in said for token in tokens) == found.tokens
    assert [len(tokens) for tokens in said] == [entry.num_committed for entry in found.trace.rounds]


def test_the_last_position_of_the_target_can_be_used(run, tiny_folders):
    found = run(AUTOREGRESSIVE, PROMPT, 121, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 121)


def test_ids_and_numbers_of_numpy_are_as_good_as_any(run):
    numbers = {"max_new_tokens": np.int64(12), "temperature": np.float32(1.0), "seed": np.int32(3)}
    expected = run(speculative(verification="match"), max_new_tokens=12, temperature=1.0, seed=3).tokens
    for prompt in (np.array(PROMPT), [PROMPT[0], *np.array(PROMPT[1:])]):
        assert run(speculative(verification="match"), prompt, **numbers).tokens == expected


def test_a_sequence_that_another_is_asked_for_in_goes_on_as_if_alone(run):
    """From the same thread or another one: a lane holds the keys of one sequence."""
    expected, refusals = run(speculative(), eos_token_ids=()).tokens, []

    def ask():
        with pytest.raises(ConfigError, match="is decoding another sequence; it decodes one at a time") as caught:
            run(AUTOREGRESSIVE, PROMPT[:2])
        refusals.append(caught)

    def ask_twice(_):
        ask()
        thread = Thread(target=ask)
        thread.start()
        thread.join()

    found = run(speculative(), eos_token_ids=(), listener=Listener(on_tokens=ask_twice))
    assert (found.tokens, found.trace.events) == (expected, [])
    assert len(refusals) == 2 * len(found.trace.rounds)
    assert run(speculative(), eos_token_ids=()).tokens == expected


FROM_LAYER = {"root_source": "exit", "exit_top_k": 1}


@pytest.mark.parametrize(
    ("schedule", "drafter", "message"),
    [
        (speculative(draft_lane="elsewhere"), None, "no lane 'elsewhere'; lanes: big, small"),
        (mirror(exit_layer=4, **FROM_LAYER), None, "exit_layer 4 is not before"),
        (speculative(), None, "no draft to run"),
        (speculative(exit_features=True), "drafter", "reads no features"),
        (
            mirror(exit_layer=1, exit_features=True, **FROM_LAYER),
            "feature_drafter",
            r"exit_layer is 1, but this draft reads features of layers \[1, 2\]",
        ),
        (speculative(draft_streams=1), "drafter", "draft_streams is 1: drafter has none on small"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(engine, tiny_folders, schedule, drafter, message):
    folder = None if drafter is None else str(getattr(tiny_folders, drafter))
    with pytest.raises(ConfigError, match=message):
        engine.generate(schedule.model_copy(update={"drafter": folder}), PROMPT, max_new_tokens=4)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one"),
        ([VOCAB_SIZE], {}, f"from 0 to {VOCAB_SIZE - 1}"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (PROMPT, {"max_new_tokens": 122}, "need 129 positions; the target has 128"),
        *((PROMPT, {"temperature": wrong}, "temperature is ") for wrong in (-1.0, 1e-320, 1e308, inf, nan)),
    ],
)
def test_wrong_arguments_are_refused(engine, prompt, options, message):
    with pytest.raises(ConfigError, match=message):
        engine.generate(AUTOREGRESSIVE, prompt, **{"max_new_tokens": 4} | options)


@pytest.mark.parametrize("lane", ["big", "small"])
@pytest.mark.parametrize(
    "bound", [{"max_position_embeddings": 64}, {"architectures": ["MistralForCausalLM"], "sliding_window": 64}]
)
def test_what_a_draft_has_no_positions_for_is_refused_before_anything_is_loaded(tiny_folders, tmp_path, lane, bound):
    shutil.copytree(tiny_folders.target, draft := tmp_path / "draft")
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps(config | bound))
    engine, schedule = new_engine(tiny_folders, drafter_folder=draft), speculative(draft_lane=lane)
    window = r" \(its sliding window; .*\)" if "sliding_window" in bound else ""
    with pytest.raises(ConfigError, match=f"50 new ones and windows need 65 positions; the draft has 64{window}$"):
        engine.generate(schedule, PROMPT, max_new_tokens=50)
    engine.check(schedule, PROMPT, 49, 0.0)


def test_an_error_inside_a_lane_comes_out_with_its_kind_and_text(engine, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json"):
        engine.load_draft("small", str(tmp_path))
    with pytest.raises(LaneError, match="lane 'small': this lane has no operation 'Unknown.dance'"):
        engine.lane("small").request(Unknown.dance).result()


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trace_tells_every_round_and_operation(run, name):
    schedule = SCHEDULES[name]
    found = run(schedule)
    rounds, trace = found.trace.rounds, found.trace
    assert sum(entry.num_committed for entry in rounds) == len(found.tokens)
    assert all(entry.num_drafted == schedule.num_speculative_tokens for entry in rounds)
    asked = schedule.method == "mirror"
    assert [entry.hit is not None for entry in rounds] == [asked] * (len(rounds) - 1) + [False]
    times = [0.0, *[time for entry in rounds for time in (entry.start_s, entry.end_s)], trace.decode_s]
    assert times == sorted(times)
    assert trace.prefill_s > 0
    num_rounds, num_tokens = len(rounds), schedule.num_speculative_tokens
    by_work = {work: [span for span in trace.spans if span.work is work] for work in Work}
    whole = [Work.PREFIX, Work.SUFFIX] if schedule.uses_exit else [Work.VERIFY]
    for work in whole:
        assert [span.round for span in by_work[work]] == list(range(num_rounds))
        assert {span.rows for span in by_work[work]} == {num_tokens + 1}
    for lane in ("big", "small"):
        spans = [span for span in trace.spans if span.lane == lane]
        assert all(left.end_s <= right.start_s for left, right in pairwise(spans))
    drafted = by_work[Work.ROLLOUT_STEP]
    num_rollouts = 1 + sum(entry.hit is False for entry in trace.rounds)
    if schedule.method == "speculative":
        num_rollouts = num_rounds
    if schedule.draft_lane is not None:
        assert metrics.mean_acceptance_length([trace]) > 1.3
        assert len(drafted) == num_rollouts * num_tokens
    transfers = [(span.lane, span.round) for span in by_work[Work.TRANSFER]]
    assert transfers == [("big->small", place) for place in range(num_rounds) if schedule.uses_exit]


def test_a_draft_that_is_almost_the_target_hits(run):
    """With the draft's two best runners-up as roots and a window of its length, hits do happen."""
    traces = [run(SCHEDULES["mirror from the draft"], [token, 9, 4], 40).trace for token in range(8)]
    assert metrics.reuse_rate(traces) > 0.2
