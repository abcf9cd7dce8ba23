"""Above temperature zero: rounds replayed along sampled texts are real rounds, exactly or in distribution."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.reach import Reach
from calibrate.recording.recorded_models import load_models
from calibrate.recording.recorded_text import TextWriter, WantedText
from calibrate.recording.recorder import Recorder, record_acceptance
from calibrate.recording.sampled_drafts import SampledText, _decide, sampled_drafts
from decoding.errors import MirrorsdError
from decoding.messages import Candidates
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from runtime.backends.eager import EagerBackend
from runtime.models.model_folder import NamedFolder
from runtime.verification.rules import Sampling, probabilities, truncated, uniform
from sim.acceptance.replay import Replay
from sim.world import simulate
from tests.calibrate.recording.test_exact_rounds import CHAINS
from tests.costs.constant_cost import MILLISECONDS
from tests.planner.synthetic import machine
from tests.runtime import plain
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_all, save_draft_of
from tests.tiny_models import tiny_draft, tiny_target

COSTS = dict.fromkeys(("target", "draft"), MILLISECONDS)
PROMPTS = (EncodedPrompt("short", "", (5, 17)), EncodedPrompt("long", "", tuple(range(7, 40))))
TEMPERATURE = 1.5
"""Where the tiny models are far from sure."""
NUM_RUNS = 150
NUM_LAYERS = 3


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return save_all(
        tiny_target(num_layers=NUM_LAYERS),
        tmp_path_factory.mktemp("tiny"),
        save_draft=partial(save_draft_of, noise=0.12, fuse_std=0.1),  # right now and then
        exit_layers=(2,),
    )


@pytest.fixture(scope="module")
def engine(folders):
    with thread_engine(folders.target, exits_folder=folders.exits) as engine:
        yield engine


def recorded(folders, drafter, prompts=PROMPTS, **settings) -> AcceptanceRecord:
    target, draft = NamedFolder("tiny", folders.target), NamedFolder("draft", drafter)
    models = load_models(target, draft, NamedFolder("exits", folders.exits), dtype="float32")
    wanted = {"exit_layers": (2,), "max_new_tokens": 16, "max_window": 4, "temperature": TEMPERATURE, "trees": ()}
    recorder = Recorder(models, Reach(**wanted | settings))
    numbers = range(recorder.reach.num_texts)
    return recorder.assemble([*recorder.records([(prompt, number) for prompt in prompts for number in numbers])])


@pytest.fixture(scope="module")
def few_texts(folders):
    """By each draft."""
    return {one: recorded(folders, one, num_texts=3, seed=40) for one in (folders.drafter, folders.feature_drafter)}


def drafter_of(folders, fields):
    return folders.feature_drafter if fields.get("exit_features") else folders.drafter


@pytest.mark.parametrize("name", CHAINS)
def test_under_match_rounds_are_the_real_ones_of_the_same_seed(engine, folders, few_texts, name):
    """The rule writes the text of plain sampling, so that nothing is left to chance but the seed."""
    fields = CHAINS[name] | {"num_speculative_tokens": 3}
    drafter = drafter_of(folders, fields)
    record = few_texts[drafter]
    real = Schedule(**fields, target_lane="big", draft_lane="small", drafter=str(drafter))
    simulated = simulate(Schedule(**fields, target_lane="target", draft_lane="draft"), machine(), record, costs=COSTS)
    asked = [(prompt, seed) for prompt in PROMPTS for seed in (40, 41, 42)]
    for (prompt, seed), text, trace in zip(asked, record.prompts, simulated, strict=True):
        found = engine.generate(real, prompt.ids, max_new_tokens=16, temperature=TEMPERATURE, seed=seed)
        assert list(found.tokens) == text.text.tolist()
        assert [entry[2:] for entry in found.trace.rounds] == [entry[2:] for entry in trace.rounds]
        assert text.name == f"{prompt.name}, seed {seed}"


def first_rounds(rounds) -> tuple[object, ...]:
    """Accepted tokens of the first two rounds, and whether the first one's outcome had a branch."""
    counts = [entry.num_accepted for entry in rounds[:2]]
    return (*counts, rounds[0].hit)


def two_samples(ours: Counter, theirs: Counter) -> tuple[float, int]:
    """Chi-square of two samples being of one distribution, rare outcomes taken together; its degrees of freedom."""
    kinds = [kind for kind in ours | theirs if ours[kind] + theirs[kind] >= 10]
    table = [(ours[kind], theirs[kind]) for kind in kinds]
    table.append((ours.total() - sum(one for one, _ in table), theirs.total() - sum(other for _, other in table)))
    table = [row for row in table if sum(row)]
    shares = np.array([ours.total(), theirs.total()]) / (ours.total() + theirs.total())
    return sum(
        (count - sum(row) * share) ** 2 / (sum(row) * share)
        for row in table
        for count, share in zip(row, shares, strict=True)
    ), len(table) - 1


@pytest.fixture(scope="module")
def many_texts(folders):
    """Of one prompt, by the draft that takes features."""
    return recorded(
        folders, folders.feature_drafter, PROMPTS[:1], num_texts=NUM_RUNS, seed=10_000, max_new_tokens=6, max_window=2
    )


@pytest.mark.parametrize("name", ["mirror with features", "mirror from the exit"])
def test_under_ratio_rounds_are_distributed_as_in_real_runs(engine, folders, many_texts, name):
    """Counts of two rounds and the hit between them: what is accepted, and what that does to what comes after it."""
    fields = CHAINS[name] | {"num_speculative_tokens": 2, "verification": "ratio"}
    asked = Schedule(**fields, target_lane="target", draft_lane="draft")
    ours = Counter(first_rounds(trace.rounds) for trace in simulate(asked, machine(), many_texts, costs=COSTS))
    real = Schedule(**fields, target_lane="big", draft_lane="small", drafter=str(folders.feature_drafter))
    theirs = Counter()
    for seed in range(NUM_RUNS):
        found = engine.generate(real, PROMPTS[0].ids, max_new_tokens=6, temperature=TEMPERATURE, seed=seed)
        theirs[first_rounds(found.trace.rounds)] += 1
    statistic, degrees = two_samples(ours, theirs)
    assert degrees >= 4
    assert statistic < degrees + 3.1 * (2 * degrees) ** 0.5 + 5  # beyond the 99.9th percentile


def draft_logits(draft, ids, *, num_known, features_TE):
    """After a text of which the first so many tokens are verified, from scratch."""
    rows = None
    if features_TE is not None:
        rows = torch.zeros(1, len(ids), features_TE.shape[-1])
        rows[0, 1:num_known] = features_TE[: num_known - 1]
    return draft.output.rows @ plain.draft_states(draft, ids, rows)[-1]


@pytest.mark.parametrize("features", [(), (1, 2)])
def test_probabilities_are_those_of_the_rule(features):
    """By the models without any cache: min(1, q / p) of every token of the text, after every shorter prefix."""
    target = tiny_target()
    draft = tiny_draft(target, exit_features=features)
    sampling = Sampling("match", TEMPERATURE, 3)
    writer = TextWriter(EagerBackend(target), max_new_tokens=9, layers=features)
    found = writer.alone(WantedText(PROMPTS[0].ids, sampling))
    ids, start = [*PROMPTS[0].ids, *found.tokens], len(PROMPTS[0].ids)
    features_TE = plain.features(target, ids, features) if features else None
    text = SampledText(ids, start, found.probabilities, sampling)
    acceptance, refusals = sampled_drafts(draft, text, max_window=3, features_TE=features_TE)
    draft.output.add_prompt_tokens(PROMPTS[0].ids)
    target_TV = plain.target_logits(target, ids)
    for position in range(len(found.tokens)):
        known = start + position
        for place in range(min(3, len(found.tokens) - position)):
            at = known + place
            logits_V = draft_logits(draft, ids[:at], num_known=known, features_TE=features_TE)
            best = truncated(logits_V, TEMPERATURE, 64)
            q = dict(zip((draft.output.ids[index].item() for index in best.tokens), best.probabilities, strict=True))
            p = probabilities(target_TV[at - 1], TEMPERATURE)
            expected = min(1.0, q.get(ids[at], 0.0) / p[ids[at]])
            assert acceptance[position, place] == pytest.approx(expected, rel=1e-3)
            refused = refusals[position, place]
            assert refused == -1 if expected == 1 else q[refused] > p[refused]


def test_a_refused_token_is_drawn_by_how_much_too_often_the_draft_says_it():
    """Of 0.5, 0.3 and 0.2, where the target says 0.1, 0.6 and 0.1: the text's own token is drafted half the time."""
    drafted, target_V = Candidates((3, 7, 9), (0.5, 0.3, 0.2)), np.zeros(10, dtype=np.float32)
    target_V[[3, 7, 9]] = 0.1, 0.6, 0.1
    texts = [SampledText([1, 7], 1, [target_V], Sampling("ratio", 1.0, seed)) for seed in range(2000)]
    decided = Counter(_decide(drafted, text, 0) for text in texts)
    assert [accepted for accepted, _ in decided] == pytest.approx([0.5] * len(decided))
    refused = {token: count / 2000 for (_, token), count in decided.items()}
    assert refused == pytest.approx({3: 0.8, 9: 0.2}, abs=0.04)


def test_a_seed_decides_what_is_drafted_and_more_seeds_come_to_the_probabilities(folders):
    record = recorded(folders, folders.drafter, PROMPTS[1:])
    schedule = Schedule(
        method="speculative", target_lane="t", draft_lane="d", num_speculative_tokens=1, verification="ratio"
    )
    [text] = record.prompts

    def accepted(seed):
        drafts = Replay(record, seed=seed)._joined.drafts(schedule)
        return np.minimum(drafts.match_length, 1).tolist()

    assert accepted(1) == accepted(1) != accepted(2)
    mean = np.mean([accepted(seed) for seed in range(3000)], axis=0)
    assert mean == pytest.approx(text.draft_acceptance[:, 0], abs=0.05)


def test_a_sampled_record_is_saved_and_loaded(folders, tmp_path):
    record = recorded(folders, folders.feature_drafter, num_texts=2)
    record.save(tmp_path / "sampled.npz")
    loaded = AcceptanceRecord.load(tmp_path / "sampled.npz")
    assert (loaded.temperature, loaded.seed) == (TEMPERATURE, 0)
    for ours, theirs in zip(record.prompts, loaded.prompts, strict=True):
        for name in ("draft_acceptance", "refused_drafts", "feature_draft_acceptance", "feature_refused_drafts"):
            assert (getattr(ours, name) == getattr(theirs, name)).all()
            assert len(getattr(ours, name)) == len(ours.text)


def test_rules_that_write_other_texts_are_refused(folders):
    record = recorded(folders, folders.drafter, PROMPTS[:1])
    fields = {"target_lane": "t", "draft_lane": "d", "num_speculative_tokens": 2}
    greedy = Schedule(method="speculative", verification="greedy", **fields)
    assert "sampled at temperature 1.5: verification greedy writes others" in str(record.missing(greedy))
    streams = Schedule(method="speculative", verification="ratio", draft_streams=1, **fields)
    assert "what draft_streams guess of a draft that samples" in str(record.missing(streams))
    ratio = Schedule(method="speculative", verification="ratio", exit_features=True, **fields)
    assert "rollouts with exit_features were not recorded" in str(record.missing(ratio))


def test_texts_share_no_draws_with_those_of_other_prompts():
    """Else prompts of like distributions would have like tokens accepted, and say less than so many prompts."""
    reach, prompts = Reach(temperature=1.0, num_texts=3, seed=7), [(5, token) for token in range(40)]
    samplings = [reach.sampling(prompt, number) for prompt in prompts for number in range(3)]
    assert len({uniform(one.seed, "target", 9) for one in samplings}) == len(samplings)


def test_a_prompt_that_is_asked_twice_has_another_text_each_time_by_the_next_seed(folders, tmp_path):
    """Else one text would count as two, which never differ."""
    models = load_models(
        NamedFolder("tiny", folders.target), NamedFolder("draft", folders.drafter), None, dtype="float32"
    )
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[0]._replace(name="again")]
    for temperature, names in ((TEMPERATURE, ["short", "long", "again, seed 8"]), (0.0, ["short", "long", "again"])):
        reach = Reach(exit_layers=(2,), max_new_tokens=16, temperature=temperature, trees=(), seed=7)
        record = record_acceptance(models, prompts, reach, tmp_path / "record.npz")
        assert [one.name for one in record.prompts] == names
        assert record.prompt_numbers == (0, 1, 0)
        first, _, again = (one.text.tolist() for one in record.prompts)
        assert (first == again) == (temperature == 0)
    reach = Reach(exit_layers=(2,), temperature=1.0, num_texts=2)
    assert [number for _, number in Recorder(models, reach).texts(prompts)] == [0, 1, 0, 1, 2, 3]


@pytest.mark.parametrize("wrong", [{"num_texts": 2, "temperature": 0.0}, {"num_texts": 0}, {"temperature": -1.0}])
def test_several_greedy_texts_are_refused(wrong):
    with pytest.raises(MirrorsdError, match=r"greedy ones are one each|temperature is -1: it must be 0, or"):
        Reach(exit_layers=(2,), **{"temperature": 1.0} | wrong)
