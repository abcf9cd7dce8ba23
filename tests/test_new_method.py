"""A method is one generator and one description: this toy is added by this file alone, and plays in all three worlds.

See docs/adding-a-method.md.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import Reach
from calibrate.recording.recorded_models import RecordedModels
from calibrate.recording.recorder import Recorder
from decoding.errors import ConfigError
from decoding.lanes import Lanes, MethodFlow
from decoding.messages import NO_WINDOW, Verdict, Window
from decoding.method_traits import MethodTraits
from decoding.methods import METHODS
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from mirrorsd.text_engine import arbitrary_prompt, replayed_texts
from planner.plan import make_plan
from planner.search.space import SearchSpace, enumerate_schedules
from runtime.engine import Engine
from sim.acceptance.replay import Replay
from sim.batch_prediction import BatchPredictor
from sim.evaluator import predict
from sim.world import simulate
from tests.planner.synthetic import acceptance_record, machine, sampled_record
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import TinyFolders, save_all
from tests.tiny_models import tiny_target


def restless(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Draft the next window at the end of a round, and not at the beginning of the next."""
    window: Window = yield lanes.draft.rollout()
    while lanes.unfinished:
        verdict: Verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)
        if lanes.unfinished:
            window = yield lanes.draft.rollout(verdict)


def hesitant(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Draft nothing in the round after a window that was not accepted whole."""
    verdict: Verdict | None = None
    drafts = True
    while lanes.unfinished:
        window: Window = (yield lanes.draft.rollout(verdict)) if drafts else NO_WINDOW
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)
        drafts = verdict.num_accepted == len(window.tokens)


def doubtful(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Draft twice after a window that was not accepted whole."""
    verdict: Verdict | None = None
    window = NO_WINDOW
    while lanes.unfinished:
        if verdict is not None and verdict.num_accepted < len(window.tokens):
            yield lanes.draft.rollout(verdict)
        window = yield lanes.draft.rollout(verdict)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)


def forgetful(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Draft without the verdict, whose features a draft may read."""
    while lanes.unfinished:
        window: Window = yield lanes.draft.rollout()
        verdict: Verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)


def wavering(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Verify in two halves after a window that was not accepted whole."""
    verdict: Verdict | None = None
    is_whole = True
    while lanes.unfinished:
        window: Window = yield lanes.draft.rollout(verdict)
        if not is_whole:
            yield lanes.target.prefix(window, 1)
        verdict = yield (lanes.target.verify(window) if is_whole else lanes.target.suffix())
        lanes.commit(window, verdict)
        is_whole = verdict.num_accepted == len(window.tokens)


def halving(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Verify half as many tokens after a window that was not accepted whole."""
    verdict: Verdict | None = None
    length = schedule.num_speculative_tokens
    while lanes.unfinished:
        drafted: Window = yield lanes.draft.rollout(verdict)
        window = drafted.first(length)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)
        is_whole = verdict.num_accepted == len(window.tokens)
        length = schedule.num_speculative_tokens if is_whole else length // 2


def tiring(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Verify a single drafted token from the third round on."""
    verdict: Verdict | None = None
    for place in count():
        if not lanes.unfinished:
            return
        drafted: Window = yield lanes.draft.rollout(verdict)
        window = drafted if place < 2 else drafted.first(1)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)


def paired(lanes: Lanes, schedule: Schedule) -> MethodFlow:
    """Ask only after every second round whether the sequence has ended."""
    verdict: Verdict | None = None
    while lanes.unfinished:
        for _ in range(2):
            window: Window = yield lanes.draft.rollout(verdict)
            verdict = yield lanes.target.verify(window)
            lanes.commit(window, verdict)


RESTLESS = MethodTraits(
    name="restless", title="restless speculation", flow=restless, drafts="draft", window="chain", rules=("match",)
)
HESITANT = replace(RESTLESS, name="hesitant", flow=hesitant)
DOUBTFUL = replace(RESTLESS, name="doubtful", flow=doubtful)
FORGETFUL = replace(RESTLESS, name="forgetful", flow=forgetful)
WAVERING = replace(RESTLESS, name="wavering", flow=wavering)
HALVING = replace(RESTLESS, name="halving", flow=halving, shortens=True)
TIRING = replace(RESTLESS, name="tiring", flow=tiring)
PAIRED = replace(RESTLESS, name="paired", flow=paired)
PROMPTS = (EncodedPrompt("one", "", (5, 17, 3, 44, 8)), EncodedPrompt("two", "", (9, 9, 4)))
MAX_NEW_TOKENS = 20


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for traits in (RESTLESS, HESITANT, DOUBTFUL, FORGETFUL, WAVERING, HALVING):
        monkeypatch.setitem(METHODS, traits.name, traits)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> TinyFolders:
    return save_all(tiny_target(), tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(folders: TinyFolders) -> Iterator[Engine]:
    with thread_engine(folders.target) as engine:
        yield engine


@pytest.fixture(scope="module")
def record(folders: TinyFolders) -> AcceptanceRecord:
    from calibrate.recording.recorded_models import load_models
    from runtime.models.model_folder import NamedFolder

    target, draft = (NamedFolder("tiny", folders.target), NamedFolder("draft", folders.drafter))
    models: RecordedModels = load_models(target, draft, None, dtype="float32")
    recorder = Recorder(models, Reach(exit_layers=(2,), max_new_tokens=MAX_NEW_TOKENS, max_window=3))
    return recorder.assemble([next(recorder.records([(prompt, 0)])) for prompt in PROMPTS])


def schedule(method: str, folders: TinyFolders, *, lanes: tuple[str, str] = ("target", "draft")) -> Schedule:
    return Schedule(
        method=method,
        target_lane=lanes[0],
        draft_lane=lanes[1],
        num_speculative_tokens=3,
        drafter=str(folders.drafter),
    )


def test_both_simulated_worlds_play_it_alike_and_as_fast_as_what_it_resembles(
    folders: TinyFolders, record: AcceptanceRecord
) -> None:
    asked, known = (schedule(method, folders) for method in (RESTLESS.name, "speculative"))
    traces = simulate(asked, machine(), record)
    prediction = predict(asked, machine(), record)
    assert sum(trace.decode_s for trace in traces) == pytest.approx(prediction.decode_s, abs=1e-9)
    assert prediction.tpot_s == pytest.approx(predict(known, machine(), record).tpot_s, abs=1e-9)
    outcomes = [[one.outcome for one in trace.rounds] for trace in traces]
    assert outcomes == [[one.outcome for one in trace.rounds] for trace in simulate(known, machine(), record)]


def test_the_real_world_runs_the_rounds_that_were_simulated_and_writes_the_plain_text(
    engine: Engine, folders: TinyFolders, record: AcceptanceRecord
) -> None:
    asked = schedule(RESTLESS.name, folders, lanes=("big", "small"))
    simulated = simulate(schedule(RESTLESS.name, folders), machine(), record)
    for prompt, expected, trace in zip(PROMPTS, record.prompts, simulated, strict=True):
        found = engine.generate(asked, prompt.ids, max_new_tokens=MAX_NEW_TOKENS)
        assert list(found.tokens) == expected.text.tolist()
        assert [one.outcome for one in found.trace.rounds] == [one.outcome for one in trace.rounds]


def test_the_search_offers_it_and_the_verdict_calls_it_by_its_name(record: AcceptanceRecord) -> None:
    profile = machine(draft_step_s=1e-4)
    space = SearchSpace(methods=("autoregressive", RESTLESS.name))
    plan = make_plan(space, profile.model_copy(update={"drafter": record.drafter}), record)
    assert {one.schedule.method for one in plan.search.candidates} == {"autoregressive", RESTLESS.name}
    assert RESTLESS.name in plan.verdict.text


def test_a_description_decides_what_schedules_may_ask_of_it(folders: TinyFolders) -> None:
    fields = schedule(RESTLESS.name, folders).model_dump(exclude={"verification"})
    with pytest.raises(ConfigError, match="verification is ratio: restless takes match"):
        Schedule(**fields, verification="ratio")
    assert replace(RESTLESS, window="static tree").is_tree


def test_a_search_asks_a_method_for_its_own_rules_only() -> None:
    space = SearchSpace(methods=("speculative", RESTLESS.name))
    found = {(one.method, one.verification) for one in enumerate_schedules(space, machine(), sampled_record(0.75))}
    assert found == {("speculative", "match"), ("speculative", "ratio"), (RESTLESS.name, "match")}


def test_after_a_round_without_a_draft_it_drafts_for_all_that_was_committed(
    engine: Engine, folders: TinyFolders, record: AcceptanceRecord
) -> None:
    asked, [_, prompt], [_, expected] = (
        schedule(HESITANT.name, folders, lanes=("big", "small")),
        PROMPTS,
        record.prompts,
    )
    known, at = expected.match_lengths(with_features=False), 0
    rounds = engine.generate(asked, prompt.ids, max_new_tokens=MAX_NEW_TOKENS).trace.rounds
    for one in rounds:
        assert one.num_accepted == min(known[at], one.num_drafted)
        at += one.num_committed
    assert [one.num_drafted for one in rounds[:5]] == [3, 3, 3, 0, 3]


@pytest.mark.parametrize("traits", [HESITANT, DOUBTFUL, FORGETFUL])
def test_a_draft_that_reads_features_is_asked_once_in_every_round_with_its_verdict(
    engine: Engine, folders: TinyFolders, traits: MethodTraits
) -> None:
    asked = schedule(traits.name, folders, lanes=("big", "small"))
    reader = asked.model_copy(update={"exit_features": True, "drafter": str(folders.feature_drafter)})
    said = f"{traits.name} drafts not once in every round, by its verdict: a draft that reads features has to"
    with pytest.raises(ConfigError, match=said):
        engine.generate(reader, PROMPTS[1].ids, max_new_tokens=MAX_NEW_TOKENS)


def in_simulation(method: str, num_tokens: int = 3) -> Schedule:
    return Schedule(method=method, target_lane="target", draft_lane="draft", num_speculative_tokens=num_tokens)


def test_a_batch_whose_sequences_make_unlike_lane_calls_is_refused() -> None:
    with pytest.raises(ConfigError, match="wavering makes unlike lane calls in sequences of a batch"):
        BatchPredictor(machine(), acceptance_record()).predict(in_simulation(WAVERING.name), 2)


def test_what_it_verifies_of_its_windows_is_simulated_as_it_runs(
    engine: Engine, folders: TinyFolders, record: AcceptanceRecord
) -> None:
    simulated = simulate(schedule(HALVING.name, folders), machine(), record)
    asked = schedule(HALVING.name, folders, lanes=("big", "small"))
    for prompt, trace in zip(PROMPTS, simulated, strict=True):
        real = engine.generate(asked, prompt.ids, max_new_tokens=MAX_NEW_TOKENS).trace
        rounds = [[(one.num_drafted, one.outcome) for one in world.rounds] for world in (real, trace)]
        assert rounds[0] == rounds[1]
    assert {one.num_drafted for one in simulated[1].rounds} == {1, 3}


def test_a_run_of_replayed_acceptance_goes_through_the_rounds_that_are_simulated(
    engine: Engine, folders: TinyFolders
) -> None:
    texts, asked = acceptance_record(num_prompts=2), schedule(HALVING.name, folders, lanes=("big", "small"))
    simulated = simulate(schedule(HALVING.name, folders), machine(), texts)
    for text, trace in zip(replayed_texts(texts, asked, vocab_size=50), simulated, strict=True):
        prompt = arbitrary_prompt(text.prompt_length, 50)
        real = engine.replay(asked, prompt, text).trace
        rounds = [[(one.num_drafted, one.num_accepted) for one in world.rounds] for world in (real, trace)]
        assert rounds[0][:-1] == rounds[1][:-1]


@pytest.mark.parametrize("num_tokens", [1, 4, 8])
def test_both_simulated_worlds_and_batches_play_shortened_windows_alike(num_tokens: int) -> None:
    asked, texts = in_simulation(HALVING.name, num_tokens), acceptance_record()
    traces, found = simulate(asked, machine(), texts), predict(asked, machine(), texts)
    assert sum(trace.decode_s for trace in traces) == pytest.approx(found.decode_s, abs=1e-9)
    assert found.num_rounds == sum(len(trace.rounds) for trace in traces)
    assert BatchPredictor(machine(), texts).predict(asked, 1).tpot_s == pytest.approx(found.tpot_s, abs=1e-9)
    assert {one.num_drafted for trace in traces for one in trace.rounds} >= {num_tokens, num_tokens // 2}
    assert BatchPredictor(machine(), texts).predict(asked, 2).mean_rows < 2 * (num_tokens + 1)


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        (replace(HALVING, shortens=False), "verifies 1 drafted tokens in a round for which 3 were drafted"),
        (TIRING, "verifies 1 drafted tokens in a round for which 3 were drafted"),
        (HESITANT, "verifies 0 drafted tokens in a round for which none was drafted"),
        (replace(HESITANT, shortens=True), "verifies 0 drafted tokens in a round for which none was drafted"),
        (DOUBTFUL, "drafts twice in a round"),
        (replace(DOUBTFUL, shortens=True), "drafts twice in a round"),
    ],
)
def test_what_simulators_cannot_play_is_refused_by_both(
    monkeypatch: pytest.MonkeyPatch, traits: MethodTraits, said: str
) -> None:
    monkeypatch.setitem(METHODS, traits.name, traits)
    for world in (predict, simulate):
        with pytest.raises(ConfigError, match=f"{traits.name} {said}; simulated are methods that"):
            world(in_simulation(traits.name), machine(), acceptance_record())


@pytest.mark.parametrize(
    ("traits", "num_tokens", "max_new_tokens"),
    [(TIRING, 1, None), (TIRING, 3, 1), (replace(HALVING, shortens=False), 3, 1)],
)
def test_what_a_short_window_or_text_hides_is_refused_of_a_longer_one_after_it(
    monkeypatch: pytest.MonkeyPatch, traits: MethodTraits, num_tokens: int, max_new_tokens: int | None
) -> None:
    monkeypatch.setitem(METHODS, traits.name, traits)
    replay = Replay(acceptance_record())
    replay.walk(in_simulation(traits.name, num_tokens), max_new_tokens)
    with pytest.raises(ConfigError, match="verifies 1 drafted tokens in a round for which 3 were drafted"):
        replay.walk(in_simulation(traits.name, 3), None)


def test_a_round_after_the_end_of_a_text_is_refused_by_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, PAIRED.name, PAIRED)
    texts = acceptance_record(num_prompts=1)
    even, odd = (predict(in_simulation("speculative", count), machine(), texts) for count in (1, 2))
    assert (even.num_rounds % 2, odd.num_rounds % 2) == (0, 1)
    for world in (predict, simulate):
        world(in_simulation(PAIRED.name, 1), machine(), texts)
        with pytest.raises(ConfigError, match="paired goes on after the end of a text"):
            world(in_simulation(PAIRED.name, 2), machine(), texts)


def test_only_chains_that_are_drafted_between_rounds_can_be_shortened() -> None:
    for unlike in ({"window": "static tree"}, {"overlaps": True}):
        with pytest.raises(ValueError, match="halving shortens windows: they have to be chains"):
            replace(HALVING, **unlike)
