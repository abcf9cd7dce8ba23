"""Assumed acceptance: drawn texts come to what theory says, and what is not assumed is refused by name."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decoding.errors import ConfigError, RecordError
from decoding.record import AcceptanceRecord
from sim.acceptance.assumed import AssumedAcceptance, Bernoulli, ByTask, PositionRates, parse_acceptance
from sim.acceptance.branch_hits import MISS
from sim.acceptance.rates import AssumedTree, TaskRates, Texts
from sim.evaluator import predict
from tests.sim.worlds.machines import lane, machine
from tests.sim.worlds.schedules import lookup, mirror, speculative, tree

RATE = st.floats(0, 1)
LONG = Texts(num_texts=4, num_tokens=100_000)
SHORT = Texts(num_texts=2, num_tokens=40, prompt_length=3)
EVERYTHING = {
    "alternative_rates": (0.2, 0.35, 0.4, 0.45, 0.5),
    "exit_coverage": {4: (0.3, 0.5, 0.6, 0.6, 0.7), 7: (0.5, 0.6, 0.7, 0.8, 0.8)},
    "stream_rates": (0.6, 0.5),
    "trees": (
        AssumedTree(method="medusa", drafter="head", depth=3, paths=((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))),
        AssumedTree(method="hydra", drafter="head", depth=3),
        AssumedTree(method="eagle2", drafter="head", depth=3, top_k=2),
        AssumedTree(method="speculative_streaming", drafter="streams", depth=2),
    ),
}


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.6, 0.9])
def test_mean_acceptance_length_is_the_closed_form(rate):
    """(1 - a^(g + 1)) / (1 - a) (Leviathan, 2211.17192, equation 1)."""
    acceptance = Bernoulli(rate, texts=LONG)
    for num_tokens in (1, 4, 7):
        expected = (1 - rate ** (num_tokens + 1)) / (1 - rate)
        assert acceptance.mean_acceptance_length(num_tokens) == pytest.approx(expected, rel=1e-12)
        found = predict(speculative(num_tokens), machine(), acceptance)
        assert found.mean_acceptance_length == pytest.approx(expected, rel=1e-3)


def test_rates_by_place_are_conditional():
    acceptance = PositionRates((0.8, 0.5, 0.9), texts=LONG)
    expected = 1 + 0.8 + 0.8 * 0.5 + 0.8 * 0.5 * 0.9
    assert acceptance.mean_acceptance_length(3) == pytest.approx(expected, rel=1e-12)
    assert predict(speculative(3), machine(), acceptance).mean_acceptance_length == pytest.approx(expected, rel=1e-3)


def test_rates_may_be_numbers_and_arrays_of_numpy():
    places = (0.75, 0.5)
    for of_numpy, own in (
        (Bernoulli(np.float32(0.75), texts=SHORT), Bernoulli(0.75, texts=SHORT)),
        (PositionRates(np.array(places), texts=SHORT), PositionRates(places, texts=SHORT)),
        (ByTask({"code": np.array(places, dtype=np.float32)}, texts=SHORT), ByTask({"code": places}, texts=SHORT)),
    ):
        assert of_numpy.by_task == own.by_task


def test_an_assumption_that_is_not_known_is_refused_with_what_was_meant():
    with pytest.raises(ConfigError, match=r"exit_covrage: Extra .*\(no field is called 'exit_covrage'; .*exit_cov"):
        Bernoulli(0.5, texts=SHORT, exit_covrage={4: (0.5,)})


@pytest.mark.parametrize("num_tokens", [-1, 4])
def test_a_length_without_rates_is_refused(num_tokens):
    message = f"num_speculative_tokens is {num_tokens}, rates are given for 3 positions"
    with pytest.raises(ConfigError, match=message):
        PositionRates((0.8, 0.5, 0.9), texts=SHORT).mean_acceptance_length(num_tokens)


@pytest.mark.parametrize(("source", "found"), [("exit", "exit_coverage"), ("draft", "alternative_rates")])
@pytest.mark.parametrize("top_k", [1, 2])
def test_branches_are_hit_as_often_as_assumed(source, found, top_k):
    """Where the window is never accepted whole, every outcome is a refusal's."""
    shares = (0.4, 0.7)
    given_ = {"exit_coverage": {4: shares}} if found == "exit_coverage" else {"alternative_rates": shares}
    acceptance = PositionRates((0.7, 0.7, 0.0), texts=LONG, **given_)
    schedule = mirror(source, num_tokens=3, **{f"{source}_top_k": top_k})
    assert predict(schedule, machine(), acceptance).reuse_rate == pytest.approx(shares[top_k - 1], abs=3e-3)


def test_after_a_whole_window_the_drafts_own_best_is_a_root_too():
    acceptance = Bernoulli(0.6, texts=LONG, alternative_rates=(0.5,))
    walk = acceptance.walk(schedule := mirror("draft", num_tokens=1, draft_top_k=1), None)
    hits = acceptance.branches(schedule, walk) != MISS
    asked = ~walk.is_last
    for accepted, share in ((0, 0.5), (1, 0.6)):
        assert hits[asked & (walk.num_accepted == accepted)].mean() == pytest.approx(share, abs=5e-3)


def test_a_tree_accepts_what_independent_levels_accept():
    """Ranks: the draft's best with 0.5, its runner-up with half of the rest."""
    acceptance = Bernoulli(0.5, texts=LONG, alternative_rates=(0.5,), trees=EVERYTHING["trees"][:1])
    [recorded] = acceptance.record.trees
    levels = {(0,): 0.5, (1,): 0.25, (0, 0): 0.25, (0, 1): 0.125, (1, 0): 0.125, (0, 0, 0): 0.125}
    for size in (3, 6):
        expected = 1 + sum(list(levels.values())[:size])
        found = predict(tree(recorded, size), machine(), acceptance)
        assert found.mean_acceptance_length == pytest.approx(expected, rel=2e-3)


def test_a_tree_without_a_shape_is_the_one_that_is_right_most_often():
    rates = {"rates": (0.6, 0.5), "alternative_rates": (0.5, 0.75)}
    named = AssumedTree(method="medusa", drafter="head", depth=2)
    [grown] = AssumedAcceptance({"": TaskRates(**rates, trees=(named,))}, SHORT).record.trees
    assert grown.paths[:5] == ((0,), (0, 0), (1,), (0, 1), (1, 0))
    dynamic = AssumedTree(method="eagle2", drafter="head", depth=2, top_k=2)
    acceptance = AssumedAcceptance({"": TaskRates(**rates, trees=(dynamic,))}, LONG)
    found = predict(tree(acceptance.record.trees[0], 4), machine(), acceptance)
    assert found.mean_acceptance_length == pytest.approx(1 + 0.6 + 0.3 + 0.2 + 0.15, rel=2e-3)


def test_streams_guess_as_often_right_as_assumed():
    acceptance = Bernoulli(0.5, texts=LONG, stream_rates=(0.6, 0.5))
    guessing = acceptance.guessing(speculative(8, draft_streams=2))
    assert guessing is not None
    assert (guessing.hits_TW >= 1).mean() == pytest.approx(0.6, abs=3e-3)
    assert (guessing.hits_TW >= 2).mean() == pytest.approx(0.3, abs=3e-3)


FALLING = st.lists(RATE, min_size=4, max_size=4).map(lambda rates: sorted(rates, reverse=True))


@given(FALLING, FALLING, st.integers(1, 4), st.integers(0, 9))
@example([0.5] * 4, [0.8] * 4, 4, 0)
@settings(deadline=None)
def test_more_acceptance_never_takes_more_rounds(rates, others, num_tokens, seed):
    """Draw by draw, not only in the mean: the same draws decide for all rates that do not rise from place to place."""
    texts, more = Texts(num_texts=3, num_tokens=60, seed=seed), list(map(max, rates, others))
    slow, fast = (predict(speculative(num_tokens), machine(), PositionRates(o, texts=texts)) for o in (rates, more))
    assert fast.num_rounds <= slow.num_rounds
    assert all(less <= more_ + 1e-9 for less, more_ in zip(fast.prompt_decode_s, slow.prompt_decode_s, strict=True))


@pytest.mark.parametrize("source", ["exit", "draft"])
def test_with_branches_more_acceptance_is_faster_in_the_mean(source):
    """Rounds end elsewhere, so that single hits become misses: that is no law of every draw."""
    machine_ = machine(lane("target"), lane("draft", draft_step=3.0))
    times = [
        predict(mirror(source, num_tokens=3), machine_, Bernoulli(rate, **EVERYTHING)).tpot_s
        for rate in np.linspace(0, 1, 11)
    ]
    assert times == sorted(times, reverse=True)


REFUSED = {
    "windows of more than 3 tokens are not assumed (`rates` of a YAML file)": speculative(4),
    "roots from exit_layer 4 are not assumed (`exit_coverage` of a YAML file); layers it holds: none": mirror("exit"),
    "more than 0 roots per row from the draft are not assumed (`alternative_rates` of a YAML file)": mirror("draft"),
    "more than 0 draft_streams are not assumed (`stream_rates` of a YAML file)": speculative(3, draft_streams=1),
    "rollouts with exit_features are not assumed (`feature_rates` of a YAML file)": speculative(3, exit_features=True),
    "windows of prompt_lookup of lookup are not assumed (`lookups` of a YAML file); windows it holds: none": lookup(),
    "trees of medusa of head, 3 deep are not assumed (`trees` of a YAML file); trees it holds: none": tree(
        Bernoulli(0.5, texts=SHORT, **EVERYTHING).record.trees[0], 3
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_not_assumed_is_refused_by_name(message):
    acceptance = PositionRates((0.8, 0.7, 0.6), texts=SHORT)
    assert message in str(acceptance.missing(REFUSED[message]))
    with pytest.raises(RecordError, match="are not assumed"):
        predict(REFUSED[message], machine(), acceptance)


def test_more_candidates_than_are_covered_are_refused():
    acceptance = Bernoulli(0.8, texts=SHORT, exit_coverage={4: (0.5, 0.6)})
    assert acceptance.missing(mirror("exit", exit_top_k=2)) is None
    assert acceptance.missing(mirror("exit", exit_top_k=3)) == (
        "more than 2 roots per row from the exit after layer 4 are not assumed (`exit_coverage` of a YAML file)"
    )


IMPOSSIBLE = {
    "rates.0: Input should be less than or equal to 1": {"rates": (1.5,)},
    "rates.0: Input should be greater than or equal to 0": {"rates": (-0.1,)},
    "rates: Value should have at least 1 item": {"rates": ()},
    "alternative_rates must not fall: 0.5, 0.4": {"rates": (0.5,), "alternative_rates": (0.5, 0.4)},
    "exit_coverage after layer 4 must not fall": {"rates": (0.5,), "exit_coverage": {4: (0.5, 0.4)}},
    "feature_rates are 2, rates 1": {"rates": (0.5,), "feature_rates": (0.5, 0.4)},
    "trees of head are 2 deep, with rates for 1": {
        "rates": (0.5,),
        "alternative_rates": (0.1,),
        "trees": ({"method": "medusa", "drafter": "head", "depth": 2},),
    },
    "trees of head ask for 3 alternative_rates, given are 1": {
        "rates": (0.5,),
        "alternative_rates": (0.1,),
        "trees": ({"method": "eagle2", "drafter": "head", "depth": 1, "top_k": 4},),
    },
    "mirror drafts no trees": {"rates": (0.5,), "trees": ({"method": "mirror", "drafter": "d", "depth": 1},)},
    "top_k is 0: dynamic trees need one": {
        "rates": (0.5,),
        "trees": ({"method": "eagle2", "drafter": "head", "depth": 1},),
    },
    "comes before its parent": {
        "rates": (0.5,),
        "alternative_rates": (0.1,),
        "trees": ({"method": "medusa", "drafter": "head", "depth": 1, "paths": ((0, 0),)},),
    },
}


@pytest.mark.parametrize(
    "texts", [Texts(num_texts=1 << 16, num_tokens=1 << 20), Texts(num_texts=2048, num_tokens=1025)]
)
def test_more_texts_than_memory_holds_are_not_drawn(texts):
    with pytest.raises(ConfigError, match=f"{texts.num_texts} texts of {texts.num_tokens} tokens, .* are too many"):
        Bernoulli(0.8, texts=texts)


def test_a_seed_below_zero_is_refused():
    with pytest.raises(ConfigError, match="seed: Input should be greater than or equal to 0"):
        Texts(seed=-1)


@pytest.mark.parametrize("message", IMPOSSIBLE)
def test_impossible_assumptions_are_refused(message):
    with pytest.raises(ConfigError) as caught:
        PositionRates(**IMPOSSIBLE[message])
    assert message in str(caught.value)


def test_tasks_say_something_about_the_same_things():
    with pytest.raises(ConfigError, match="exit_coverage of task 'b' are given for other things than those of 'a'"):
        ByTask({"a": 0.5, "b": TaskRates(rates=(0.5,), exit_coverage={4: (0.1,)})})
    with pytest.raises(ConfigError, match="needs a task"):
        ByTask({})


def test_the_source_says_what_was_assumed_and_the_interval_counts_the_draws():
    few, many = (Bernoulli(0.7, texts=Texts(num_texts=count, num_tokens=50)) for count in (4, 400))
    wide, narrow = (predict(speculative(4), machine(), one) for one in (few, many))
    assert wide.source == "assumed acceptance 0.7 at every position, drawn as 4 texts of 50 tokens; by hand"
    assert wide.relative_error > 3 * narrow.relative_error > 0
    truth = predict(speculative(4), machine(), Bernoulli(0.7, texts=Texts(num_texts=4000, num_tokens=50))).tpot_s
    inside = [
        found.tpot_s_low <= truth <= found.tpot_s_high
        for seed in range(40)
        for found in [
            predict(speculative(4), machine(), Bernoulli(0.7, texts=Texts(num_texts=8, num_tokens=50, seed=seed)))
        ]
    ]
    assert sum(inside) >= 36  # 90 %, and more: stratified draws differ less than independent ones would


def test_a_record_of_drawn_texts_is_a_record_like_any_other(tmp_path):
    record = Bernoulli(0.7, texts=SHORT, **EVERYTHING).record
    record.save(tmp_path / "drawn.npz")
    loaded = AcceptanceRecord.load(tmp_path / "drawn.npz")
    assert loaded.assumed == record.assumed
    for schedule in (speculative(3), mirror("exit"), tree(record.trees[0], 4)):
        assert repr(predict(schedule, machine(), loaded)) == repr(predict(schedule, machine(), record))
    assert "0.7 at every position" in repr(loaded)


def test_texts_move_into_the_contexts_that_were_measured():
    short, long = (
        machine(
            lane("target").model_copy(
                update={"layer": lane("target").layer.model_copy(update={"contexts": contexts, "seconds": seconds})}  # type: ignore[union-attr]
            )
        )
        for contexts, seconds in (((40, 60), ((1.0, 1.0),) * 2), ((16, 4000), ((1.0, 1.0),) * 2))
    )
    assert Texts().within(short) == Texts(num_tokens=21, prompt_length=41)
    assert Texts().within(long) == Texts()
    assert Texts().within(machine()) == Texts()
    assert Texts(prompt_length=5000).within(long) == Texts(prompt_length=4000 - 128 + 2)
    assert Bernoulli(0.5, texts=Texts().within(short)).contexts(None) == range(40, 61)
    assert Bernoulli(0.5).within(short).contexts(None) == range(40, 61)


def test_what_all_tasks_have_in_common_is_said_once():
    by_task = {"qa": 0.5, "maths": 0.75}
    assert ByTask(by_task, texts=SHORT, exit_coverage={2: (0.5,)}).record.assumed == (
        "qa: 0.5 at every position · maths: 0.75 at every position; exit coverage after layer 2: 0.5"
    )


def test_the_option_takes_a_rate_rates_or_a_file(tmp_path):
    assert parse_acceptance("0.8").by_task[""].rates == (0.8,) * 16
    assert parse_acceptance("0.8,0.7", texts=SHORT).record.max_window == 2
    assert parse_acceptance("80%").by_task == parse_acceptance("0.8").by_task
    path = tmp_path / "acceptance.yaml"
    path.write_text("rates: 0.6\nexit_coverage: {20: [0.3, 0.4]}\ntexts: {num_texts: 3}\n", encoding="utf-8")
    found = parse_acceptance(str(path), texts=SHORT)
    assert (found.by_task[""].exit_coverage, len(found.record.prompts)) == ({20: (0.3, 0.4)}, 3)
    path.write_text("tasks:\n  qa: {rates: [0.6]}\n  maths: {rates: [0.9]}\n", encoding="utf-8")
    assert [rates.rates for rates in parse_acceptance(str(path)).by_task.values()] == [(0.6,), (0.9,)]
    path.write_text("rates: [0.6, 7]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"acceptance\.yaml.*rates"):
        parse_acceptance(str(path))
    for wrong in ("much", "0.8;0.7", ""):
        with pytest.raises(ConfigError, match="is neither a rate"):
            parse_acceptance(wrong)
    with pytest.raises(ConfigError, match="rates are from 0 to 1, such as 0.8 for 80 %, not 8"):
        parse_acceptance("8")


def test_the_acceptance_file_of_the_documentation_assumes_all_that_it_says(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "engines.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "accepted.yaml").write_text(shown)
    found = parse_acceptance(str(tmp_path / "accepted.yaml"))
    assert {prompt.category for prompt in found.record.prompts} == {"code", "chat"}
    assert (found.texts.num_texts, found.record.exit_layers) == (32, (24,))
    assert [tree.method for tree in found.record.trees] == ["medusa"]
    assert found.record.chains
    assert found.record.has_features
