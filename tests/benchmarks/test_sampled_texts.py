"""Sampled texts have the target's distribution: few of them here, 20,000 of every schedule in the committed result."""

from collections import Counter

import numpy as np
import pytest

from decoding.methods import METHODS
from tests.benchmarks import goodness_of_fit
from tests.benchmarks.scripts import RESULTS, load_script

LEVEL = 1e-4


@pytest.fixture(scope="module")
def script():
    return load_script("sampled_texts")


@pytest.fixture(scope="module")
def result(script):
    return load_script("_common").read_result(RESULTS / script.RESULT.name)


@pytest.fixture(scope="module")
def sampler(script):
    with script.tiny_sampler(is_compiled=False) as sampler:
        yield sampler


@pytest.fixture(scope="module")
def of_chains(script, sampler):
    """Texts of synchronous speculation under the ratio rule."""
    return sampler.texts(script.EXACT["speculative, ratio"], 600)


@pytest.fixture(scope="module")
def p_value(sampler):
    """Of the first two tokens: fewer cells than whole texts have see more in few texts."""
    pairs = Counter()
    for text, share in sampler.exact.of_texts.items():
        pairs[text[:2]] += share
    return lambda texts: goodness_of_fit.fit(Counter(text[:2] for text in texts), pairs).p_value


def test_chains_under_ratio_have_the_exact_distribution(sampler, of_chains, p_value):
    assert min(sampler.fit(of_chains).p_value, p_value(of_chains)) > LEVEL


@pytest.mark.parametrize("name", ["medusa", "eagle3", "speculative_streaming"])
def test_trees_under_one_hot_have_the_exact_distribution(script, sampler, p_value, name):
    rounds = Counter()
    texts = sampler.texts(script.EXACT[f"{name}, one-hot"], 200, rounds)
    assert min(sampler.fit(texts).p_value, p_value(texts)) > LEVEL
    assert min(rounds[f"{count} accepted"] for count in range(3)) > 5


@pytest.mark.parametrize("name", ["speculative, pooled", "mirror from the exit", "hybrid mirror"])
def test_where_a_window_comes_from_changes_no_sampled_text(script, sampler, of_chains, name):
    """Draws belong to places: a seed's text is that of synchronous speculation, after a hit and after a miss."""
    rounds = Counter()
    assert sampler.texts(script.EXACT[f"{name}, ratio"], 60, rounds) == of_chains[:60]
    if "mirror" in name:
        assert (
            min(sum(rounds[f"{count} accepted after a {kind}"] for count in range(3)) for kind in ("hit", "miss")) > 2
        )


def test_texts_of_prompt_lookup_under_match_are_those_of_plain_sampling(script, sampler):
    """Of the other methods: `tests.runtime.engine`."""
    expected = [sampler.exact.plain_text(seed) for seed in range(20)]
    assert sampler.texts(script.EXACT["prompt_lookup, match"], 20) == expected


@pytest.mark.parametrize("number", [0, 4])
def test_every_mistake_fails(script, sampler, p_value, number):
    mistake = list(script.MISTAKES.values())[number]
    with mistake.made():
        assert p_value(sampler.texts(script.SCHEDULES[mistake.schedule], 200, num_tokens=2)) < LEVEL


def test_the_rule_typical_is_seen_to_be_lossy(script, sampler, p_value):
    assert p_value(sampler.texts(script.LOSSY["medusa, typical"], 60, num_tokens=2)) < LEVEL


def test_the_committed_result_is_of_all_methods_and_rules_and_all_is_as_it_should_be(script, result):
    assert {(one.method, one.verification) for one in script.SCHEDULES.values()} == {
        (name, rule)
        for name, traits in METHODS.items()
        for rule in traits.rules
        if rule != "greedy" and not traits.is_simulated_only
    }
    assert set(result["schedules"]) == set(script.EXACT)
    assert set(result["have_to_fail"]) == {*script.MISTAKES, *script.LOSSY}
    assert result["power"][f"{script.TOTAL_VARIATION:g}"] > 0.9
    for name, one in result["schedules"].items():
        assert one["num_draws"] >= 20_000
        assert one["p_value"] >= result["level_of_each"] == script.level_of_each()
        assert one.get("texts_of_plain_sampling") == (one["num_draws"] if name.endswith("match") else None)
    assert all(one["p_value"] < 1e-12 for one in result["have_to_fail"].values())


@pytest.mark.parametrize(("degrees", "level", "critical"), [(1, 0.05, 3.841), (10, 0.05, 18.307), (63, 0.01, 92.010)])
def test_critical_values_are_those_of_the_tables(degrees, level, critical):
    assert goodness_of_fit.critical_value(degrees, level) == pytest.approx(critical, abs=1e-3)


def test_power_is_that_of_simulated_counts_in_the_direction_hardest_to_see():
    random, shares = np.random.default_rng(0), np.linspace(1, 3, 16) / 32
    order = np.argsort(random.random(16))
    half = np.isin(np.arange(16), order[np.cumsum(shares[order]) <= 0.5])
    distance, draws = 0.05, 2000
    other = shares * np.where(half, 1 + distance / shares[half].sum(), 1 - distance / shares[~half].sum())
    exact = dict(enumerate(shares))

    def seen(truth):
        counts = random.multinomial(draws, truth, size=1000)
        return np.mean([goodness_of_fit.fit(dict(enumerate(one.tolist())), exact).p_value < 0.01 for one in counts])

    assert seen(shares) == pytest.approx(0.01, abs=0.012)
    assert seen(other) == pytest.approx(goodness_of_fit.power(draws, 15, 0.01, distance), abs=0.05)


def test_unlikely_outcomes_are_one_cell():
    shares = {"a": 0.9, "b": 0.095, "c": 0.003, "d": 0.002}
    assert goodness_of_fit.merged(shares, 200) == [["a"], ["b"], ["c", "d"]]
    found = goodness_of_fit.fit(Counter(a=180, b=20), shares)
    assert (found.num_draws, found.degrees_of_freedom) == (200, 2)
    assert found.total_variation == pytest.approx(0.005)
