"""Real processes: every schedule commits what plain decoding commits, and its trace tells a consistent story."""

import os
import random
import signal
from contextlib import suppress
from itertools import pairwise
from threading import Timer

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from decoding import metrics
from decoding.errors import ConfigError, LaneDiedError, LaneError, LaneTimeoutError, ModelError
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.lanes.sequence_lanes import Listener
from runtime.lanes.target_lane import Deadline
from runtime.verification.rules import Sampling
from runtime.wire.operations import Answer
from tests.runtime import plain
from tests.runtime.unknown_operation import Dance
from tests.tiny_models import EOS, VOCAB_SIZE

PROMPT = [5, 17, 3, 44, 8]
NEAR_TIE = 1e-4
SPLIT = {"target_lane": "big", "draft_lane": "small"}


def speculative(num_tokens=4, **options):
    return Schedule(method="speculative", num_speculative_tokens=num_tokens, **SPLIT | options)


def mirror(num_tokens=4, **options):
    return Schedule(method="mirror", num_speculative_tokens=num_tokens, **SPLIT | options)


AUTOREGRESSIVE = Schedule(method="autoregressive", target_lane="big")
POOLED = speculative(3, draft_lane="big")
SCHEDULES = {
    "autoregressive": AUTOREGRESSIVE,
    "speculative": speculative(),
    "pooled": POOLED,
    "speculative with features": speculative(exit_features=True),
    "mirror from the exit": mirror(root_source="exit", exit_layer=2, exit_top_k=4),
    "mirror from the draft": mirror(root_source="draft", draft_top_k=3),
    "hybrid mirror": mirror(3, root_source="hybrid", exit_layer=3, exit_top_k=2, draft_top_k=2),
    "mirror with uneven roots": mirror(3, root_source="draft", roots_per_row=(4, 2, 0, 1)),
    "mirror with features": mirror(root_source="exit", exit_layer=2, exit_top_k=4, exit_features=True),
    "mirror with a window of one": mirror(1, root_source="draft", draft_top_k=2),
}


def for_folders(schedule, folders):
    """The schedule with the draft that it needs."""
    folder = folders.feature_drafter if schedule.exit_features else folders.drafter
    return schedule.model_copy(update={"drafter": str(folder)}) if schedule.draft_lane else schedule


def new_engine(folders, *, dtype="float32", **options):
    lanes = [LaneSpec(name="big"), LaneSpec(name="small")]
    return Engine(folders.target, lanes=lanes, exits_folder=folders.exits, dtype=dtype, **options)


@pytest.fixture(scope="module")
def engine(tiny_folders):
    with new_engine(tiny_folders, draft_deadline_s=60.0) as engine:
        yield engine


@pytest.fixture
def run(engine, tiny_folders):
    def run(schedule, prompt=PROMPT, max_new_tokens=24, **options):
        return engine.generate(for_folders(schedule, tiny_folders), prompt, max_new_tokens=max_new_tokens, **options)

    return run


@pytest.mark.parametrize("name", SCHEDULES)
@given(
    prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8),
    max_new_tokens=st.integers(1, 30),
)
@settings(deadline=None, max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_greedy_text_is_that_of_plain_decoding(run, tiny_folders, name, prompt, max_new_tokens) -> None:
    expected = plain.continue_text(tiny_folders.decoder, prompt, max_new_tokens, eos=(EOS,))
    # float32 sums differ in their last bits with the number of rows: a tie to that precision has no right answer
    assume(plain.smallest_margin(tiny_folders.decoder, prompt, expected) > NEAR_TIE)
    found = run(SCHEDULES[name], prompt, max_new_tokens)
    assert list(found.tokens) == expected
    assert found.trace.events == []


@pytest.mark.parametrize("name", SCHEDULES)
def test_text_ends_at_an_eos_inside_a_window(run, tiny_folders, name) -> None:
    text = plain.continue_text(tiny_folders.decoder, PROMPT, 24)
    for place in (3, 7, 10):
        first = text.index(text[place])
        found = run(SCHEDULES[name], eos_token_ids={text[place]})
        assert list(found.tokens) == text[: first + 1]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_sampled_text_under_match_is_that_of_plain_sampling(run, tiny_folders, name, seed) -> None:
    sampling = Sampling("match", 1.0, seed)
    expected = plain.continue_text(tiny_folders.decoder, PROMPT, 24, sampling, eos=(EOS,))
    assert list(run(SCHEDULES[name], temperature=1.0, seed=seed).tokens) == expected


def test_sampled_texts_differ_by_seed(run) -> None:
    assert len({run(AUTOREGRESSIVE, temperature=1.0, seed=seed).tokens for seed in range(5)}) == 5


@pytest.mark.parametrize("name", ["speculative", "mirror from the draft", "hybrid mirror", "mirror with features"])
def test_sampled_text_under_ratio_is_distributed_as_plain_sampling(run, tiny_folders, name) -> None:
    """The second new token, whose distribution depends on what was accepted before it."""
    schedule = SCHEDULES[name].model_copy(update={"verification": "ratio"})
    prompt, count = [5, 17], 250
    logits = plain.target_logits(tiny_folders.decoder, prompt)[-1]
    first = logits.double().div(2.0).softmax(-1)
    expected = sum(
        first[token] * plain.target_logits(tiny_folders.decoder, [*prompt, token])[-1].double().div(2.0).softmax(-1)
        for token in range(VOCAB_SIZE)
    ).tolist()
    counts = [0] * VOCAB_SIZE
    for seed in range(count):
        found = run(schedule, prompt, 2, temperature=2.0, seed=seed, eos_token_ids=())
        counts[found.tokens[1]] += 1
    likely = [token for token in range(VOCAB_SIZE) if expected[token] * count >= 5]
    rest = 1 - sum(expected[token] for token in likely)
    statistic = sum((counts[token] - count * expected[token]) ** 2 / (count * expected[token]) for token in likely)
    statistic += (count - sum(counts[token] for token in likely) - count * rest) ** 2 / (count * rest)
    degrees = len(likely)
    assert degrees >= 8
    assert statistic < degrees + 3.1 * (2 * degrees) ** 0.5 + 5  # beyond the 99.9th percentile


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trace_tells_every_round(run, name) -> None:
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
    if schedule.draft_lane is not None:
        assert metrics.mean_acceptance_length([trace]) > 1.3


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_trace_tells_every_operation(run, name) -> None:
    schedule = SCHEDULES[name]
    trace = run(schedule).trace
    num_rounds, num_tokens = len(trace.rounds), schedule.num_speculative_tokens
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
        assert len(drafted) == num_rollouts * num_tokens
    transfers = [(span.lane, span.round) for span in by_work[Work.TRANSFER]]
    assert transfers == [("big->small", place) for place in range(num_rounds) if schedule.uses_exit]


def test_a_draft_that_is_almost_the_target_hits(run) -> None:
    """With the draft's two best runners-up as roots and a window of its length, hits do happen."""
    traces = [run(SCHEDULES["mirror from the draft"], [token, 9, 4], 40).trace for token in range(8)]
    assert metrics.reuse_rate(traces) > 0.2


def test_tokens_are_announced_as_they_are_committed(run) -> None:
    said = []
    found = run(speculative(), listener=Listener(on_tokens=said.append))
    assert tuple(token for tokens in said for token in tokens) == found.tokens
    assert [len(tokens) for tokens in said] == [entry.num_committed for entry in found.trace.rounds]


# A draft that is lost


@pytest.mark.parametrize(
    ("name", "rounds_before"),
    [
        ("speculative", 0),
        ("speculative with features", 2),
        ("mirror from the draft", 1),
        ("mirror from the exit", 3),
        ("hybrid mirror", 0),
        ("mirror with features", 1),
    ],
)
def test_a_dead_draft_leaves_the_text_as_it_was(run, engine, name, rounds_before) -> None:
    expected = run(SCHEDULES[name], max_new_tokens=24, eos_token_ids=()).tokens
    kill = Countdown(rounds_before, lambda: os.kill(engine.lane("small").process_id, signal.SIGKILL))
    found = run(SCHEDULES[name], max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=kill))
    assert found.tokens == expected
    (event,) = found.trace.events
    assert event.lane == "small"
    assert "the target goes on alone" in event.text
    assert found.trace.rounds[-1].num_drafted == 0
    assert run(SCHEDULES[name], max_new_tokens=24, eos_token_ids=()).trace.events == []  # the lane is there again


def test_a_draft_killed_at_any_moment_leaves_a_text_in_bfloat16_as_it_was(tiny_folders) -> None:
    """To the last token: a target that goes on alone computes its rows as it did among others."""
    moments = random.Random(0)
    with new_engine(tiny_folders, dtype="bfloat16", draft_deadline_s=60.0) as engine:
        expected = engine.generate(AUTOREGRESSIVE, PROMPT, max_new_tokens=60, eos_token_ids=()).tokens
        for name in ("speculative", "mirror from the draft", "hybrid mirror", "mirror with features"):
            schedule = for_folders(SCHEDULES[name], tiny_folders)
            process_id = engine.load_draft("small", schedule.drafter).process_id
            kill = Timer(moments.uniform(0.0, 0.2), kill_if_there, (process_id,))
            kill.start()
            assert engine.generate(schedule, PROMPT, max_new_tokens=60, eos_token_ids=()).tokens == expected
            kill.join()


def kill_if_there(process_id):
    with suppress(ProcessLookupError):
        os.kill(process_id, signal.SIGKILL)


class Countdown:
    """Does something once, after so many commits."""

    def __init__(self, count, act):
        self.count = count
        self.act = act

    def __call__(self, _):
        if self.count == 0:
            self.act()
        self.count -= 1


@pytest.mark.parametrize("name", ["speculative", "mirror from the exit"])
def test_a_draft_that_hangs_is_given_up(tiny_folders, name) -> None:
    schedule = for_folders(SCHEDULES[name], tiny_folders)
    with new_engine(tiny_folders, draft_deadline_s=0.5) as engine:
        expected = engine.generate(AUTOREGRESSIVE, PROMPT, max_new_tokens=20, eos_token_ids=()).tokens
        engine.load_draft("small", schedule.drafter)
        process_id = engine.lane("small").process_id
        stop = Countdown(1, lambda: os.kill(process_id, signal.SIGSTOP))
        found = engine.generate(
            schedule, PROMPT, max_new_tokens=20, eos_token_ids=(), listener=Listener(on_tokens=stop)
        )
        assert found.tokens == expected
        (event,) = found.trace.events
        assert "has not answered for 0.5 s" in event.text
        with pytest.raises(ProcessLookupError):
            os.kill(process_id, 0)


def test_a_draft_that_is_too_slow_is_given_up(tiny_folders) -> None:
    with new_engine(tiny_folders, draft_deadline_s=0.0) as engine:
        schedule = for_folders(speculative(), tiny_folders)
        found = engine.generate(schedule, PROMPT, max_new_tokens=20, eos_token_ids=())
        assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 20)
        (event,) = found.trace.events
        assert event.lane == "small"


# A target that is lost

PLACEMENTS = {"plain": AUTOREGRESSIVE, "split": speculative(), "mirror": SCHEDULES["hybrid mirror"], "pooled": POOLED}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_lost_target_hands_over_what_was_committed(run, engine, name) -> None:
    schedule, said = PLACEMENTS[name], []
    expected = run(schedule, max_new_tokens=24, eos_token_ids=()).tokens

    def kill(tokens):
        said.extend(tokens)
        if len(said) > 6:
            os.kill(engine.lane("big").process_id, signal.SIGKILL)

    with pytest.raises(LaneDiedError, match="'big' is lost: its process ended") as caught:
        run(schedule, max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=kill))
    assert len(said) > 6
    assert caught.value.tokens == tuple(said) == expected[: len(said)]
    assert run(schedule, max_new_tokens=24, eos_token_ids=()).tokens == expected


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_target_that_hangs_hands_over_what_was_committed_and_is_ended(run, engine, name) -> None:
    schedule, said = PLACEMENTS[name], []
    expected = run(schedule, max_new_tokens=24, eos_token_ids=()).tokens
    process_id = engine.lane("big").process_id
    with pytest.MonkeyPatch.context() as patch:

        def stop(tokens):
            said.extend(tokens)
            if len(said) > 6:
                os.kill(process_id, signal.SIGSTOP)
                patch.setattr(Deadline, "of", lambda *_: 0.25)

        with pytest.raises(LaneTimeoutError, match=r"lane 'big' has not answered for 0\.25 s") as caught:
            run(schedule, max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=stop))
    assert len(said) > 6
    assert caught.value.tokens == tuple(said) == expected[: len(said)]
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert run(schedule, max_new_tokens=24, eos_token_ids=()).tokens == expected


def test_an_operation_that_fails_in_the_targets_lane_hands_over_what_was_committed(run, engine) -> None:
    said = []

    def fail(tokens):
        said.extend(tokens)
        engine.lane("big").post(Dance())

    with pytest.raises(LaneError, match="no operation 'Dance'") as caught:
        run(POOLED, listener=Listener(on_tokens=fail))
    assert caught.value.tokens == tuple(said)


def test_a_pooled_lane_that_dies_after_the_last_token_takes_no_text_with_it(run, engine) -> None:
    expected = run(POOLED, max_new_tokens=24, eos_token_ids=()).tokens
    said = []

    def kill(tokens):
        said.extend(tokens)
        if len(said) == 24:
            os.kill(engine.lane("big").process_id, signal.SIGKILL)

    found = run(POOLED, max_new_tokens=24, eos_token_ids=(), listener=Listener(on_tokens=kill))
    assert found.tokens == expected
    (event,) = found.trace.events
    assert event.text.startswith("lane 'big' is lost: its process ended")


def test_the_target_is_given_time_by_what_it_is_asked_and_by_what_it_took() -> None:
    deadline = Deadline(60.0)
    assert deadline.of(0) == 60.0
    assert deadline.of(640) == 660.0

    class Reply:
        def result(self, _):
            return Answer(value=None, start_s=2.0, end_s=9.0)

    deadline.wait(None, Reply(), 1)
    assert deadline.of(0) == 140.0
    assert deadline.of(640) == 660.0


def test_a_deadline_that_cannot_be_kept_is_refused(tiny_folders) -> None:
    for seconds in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="target_deadline_s is"):
            new_engine(tiny_folders, target_deadline_s=seconds)


# What is refused


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (speculative(draft_lane="elsewhere"), "no lane 'elsewhere'; lanes: big, small"),
        (mirror(root_source="exit", exit_layer=4, exit_top_k=1), "exit_layer 4 is not before"),
        (speculative(), "no draft to run"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(engine, schedule, message) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.generate(schedule, PROMPT, max_new_tokens=4)


def test_features_are_refused_where_the_draft_or_the_exit_has_none(engine, tiny_folders) -> None:
    plain_draft = speculative(exit_features=True, drafter=str(tiny_folders.drafter))
    with pytest.raises(ConfigError, match="reads no features"):
        engine.generate(plain_draft, PROMPT, max_new_tokens=4)
    shallow = mirror(root_source="exit", exit_layer=1, exit_top_k=1, exit_features=True)
    shallow = shallow.model_copy(update={"drafter": str(tiny_folders.feature_drafter)})
    with pytest.raises(ConfigError, match=r"exit_layer is 1, but this draft reads features of layers \[1, 2\]"):
        engine.generate(shallow, PROMPT, max_new_tokens=4)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([], {}, "at least one"),
        ([VOCAB_SIZE], {}, f"from 0 to {VOCAB_SIZE - 1}"),
        (PROMPT, {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (PROMPT, {"max_new_tokens": 122}, "need 129 positions; the target has 128"),
        (PROMPT, {"temperature": -1.0}, "temperature is -1.0"),
    ],
)
def test_wrong_arguments_are_refused(engine, prompt, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.generate(AUTOREGRESSIVE, prompt, **{"max_new_tokens": 4} | options)


def test_an_error_inside_a_lane_comes_out_with_its_kind_and_text(engine, tmp_path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"config\.json"):
        engine.load_draft("small", str(tmp_path))
    with pytest.raises(LaneError, match="lane 'small': this lane has no operation 'Dance'"):
        engine.lane("small").request(Dance()).result()


def test_the_last_position_of_the_target_can_be_used(run, tiny_folders) -> None:
    found = run(AUTOREGRESSIVE, PROMPT, 121, eos_token_ids=())
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, PROMPT, 121)


def test_a_method_that_is_only_simulated_is_refused_before_anything_is_loaded(tiny_folders) -> None:
    blocks = Schedule(
        method="block", target_lane="big", draft_lane="big", num_speculative_tokens=2, drafter="nobody's blocks"
    )
    with (
        Engine(tiny_folders.target, lanes=[LaneSpec(name="big")]) as engine,
        pytest.raises(ConfigError, match="method block is simulated only: no drafter drafts so on real lanes yet"),
    ):
        engine.generate(blocks, PROMPT, max_new_tokens=2)
