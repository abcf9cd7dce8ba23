"""Settings of speeds: what keys and notes tell of tokens drafted and cached, and what is told under them."""

import pytest

from planner.published.round_tokens import rate_of_tokens
from planner.retrodict.cases import Case
from planner.retrodict.predicted_speeds import PredictedCase
from planner.retrodict.retrodiction import notes, retrodict
from planner.retrodict.speed_settings import Setting, drafted_by, ends_early, setting_of, tree_of
from tests.planner.retrodict.test_retrodiction import TOLD, case


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("", (None, None)),
        ("auto", (None, None, "auto")),
        ("²", (None, None, "²")),
        ("0", (0, None)),
        ("64", (64, None)),
        ("65", (None, 65)),
        ("K=3", (3, None)),
        ("3 drafted", (3, None)),
        ("4,096", (None, 4096)),
        ("1.5k", (None, 1536)),
        ("prose, 8K context", (None, 8192, "prose")),
        ("8k (Long prose)", (None, 8192, "long prose")),
        ("ctx=4096, K=3", (3, 4096)),
        ("65 cached tokens", (None, 65)),
        ("context length 4096", (None, 4096)),
        ("after 4096 tokens of input, K=3", (3, 4096)),
        ("KV 4096", (None, 4096)),
        ("0.5k", (None, 512)),
        ("n=3 at 16k", (3, 16384)),
        ("16k, 3 drafted", (3, 16384)),
        ("num_draft_tokens=3", (3, None)),
        ("--draft-max 8", (8, None)),
        ("--spec-draft-n-max 8", (8, None)),
        ("tree of 60", (60, None)),
        ("n_max=3", (3, None)),
        ("\N{GREEK SMALL LETTER GAMMA}=4", (4, None)),
        ("MTP-3 at 8k", (3, 8192)),
        ("4 draft tokens", (4, None)),
        ("3 steps", (3, None)),
        ("GSM8K, K=4", (4, None, "gsm8k")),
        ("MATH-500", (None, None, "math-500")),
    ],
)
def test_a_key_tells_tokens_drafted_and_cached(key, setting):
    assert setting_of(key) == Setting(*setting)


OF_ANYTHING = [
    "-3",
    "1.5",
    "3/4",
    "8k/16k",
    "eagle3",
    "temperature 0",
    "Q4_K_M",
    "9" * 5000,
    "n=100",
    "K=65",
    "096",
    "00",
]


@pytest.mark.parametrize(
    "key",
    [*OF_ANYTHING, "AIME 2025", "batch 128", "output 2048", "max length 2048", "128 users", "300 W", "code, seed 100"],
)
def test_a_speed_whose_key_may_be_of_anything_is_not_predicted_and_costs_no_other(key):
    speeds = {key: 70.0, 2: 71.0, "left empty -1": None}
    found = retrodict([case(published_tokens_per_s=speeds, plain_tokens_per_s={key: 40.0, "": 41.0})])
    assert [(one.question, one.speed.key) for one in found.found] == [("ratio", "2"), ("absolute", "2"), ("plain", "0")]
    assert [one.question for one in found.skipped] == ["ratio", "absolute", "plain"]
    assert all(one.reason.startswith("the setting of a speed should be a number ") for one in found.skipped)
    alone = retrodict([case(published_tokens_per_s={key: 70.0})]).skipped
    assert [one.question for one in alone] == ["ratio", "absolute"]


@pytest.mark.parametrize(
    ("note", "drafted"),
    [
        ("by context, 3 drafted", 3),
        ("greedy; at most 16 drafted, stopped by confidence", 16),
        ("code, 5 drafted a round", 5),
        ("600 of 1,000 drafted tokens accepted", None),
        ("307 of 512 drafted tokens accepted", None),
        ("12,814 of 53,484 drafted", None),
        ("12 of 20 drafted", None),
        ("99 drafted", None),
        ("0 drafted", None),
    ],
)
def test_a_note_tells_the_number_drafted_where_no_other_can_be_meant(note, drafted):
    assert drafted_by(note) == drafted


@pytest.mark.parametrize(
    ("text", "is_limit"),
    [
        ("greedy; at most 16 drafted", True),
        ("stopped by the drafter's confidence", True),
        ("--draft-max 16 --draft-min 5", True),
        ("--draft-max 16 --draft-p-min 0.0", False),
        ("--spec-draft-n-max 16", False),
        ("--spec-draft-n-max 16 --spec-draft-p-min 0.6", True),
        ("p_min=0.85", True),
        ("means with a 95 % confidence interval", False),
        ("16", False),
    ],
)
def test_a_number_drafted_is_a_limit_where_the_drafters_confidence_ends_it(text, is_limit):
    assert ends_early(text) == is_limit


@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ("MT-bench, a tree of 64", (64, None, None)),
        ("a tree of 4 in two steps", (4, 2, None)),
        ("steps 5 topk 8 num-draft-tokens 64", (64, 5, 8)),
        ("--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 16", (16, 3, 4)),
        ("steps 3 topk 1 num-draft-tokens 4", None),
        ("num_draft_tokens=3", None),
        ("a chain of 3 steps", None),
        ("tree of 0", None),
    ],
)
def test_a_note_tells_a_tree(text, tree):
    assert tree_of(text) == tree


@pytest.mark.parametrize(
    ("shares", "speeds", "drafted", "found"),
    [
        ({3: 0.2}, {"8k": 75.0}, 3, 0.2),
        ({8192: 0.2}, {"8k": 75.0}, 3, 0.2),
        ({3: 0.2}, 75.0, 3, 0.2),
        ({2: 0.5, 3: 0.2}, {"K=3": 75.0}, None, 0.2),
        ({3: 0.5, "3 at 8k": 0.2, "8k": 0.6}, {"8,192": 75.0}, 3, 0.2),
        ({"": 0.5, 2: 0.2}, {"8k": 75.0}, 3, 0.5),
        ({4: 0.2}, {"auto": 75.0}, None, 0.2),
        ({"16k": 0.3}, {"8k": 75.0}, 3, None),
        ({1: 0.2}, {"8k": 75.0}, 3, None),
        ({3: 0.2}, {"1 at 8k": 75.0}, None, None),
        ({"code 8k": 0.9}, {"prose 8k": 75.0}, 3, None),
        ({"code 8k": 0.9}, {"8k": 75.0}, 3, None),
        ({"code, 1": 0.8, "Prose, 3": 0.5}, {"code, 3": 75.0}, None, None),
        ({"code, 5": 0.8, "Prose, 3": 0.5}, {"prose, 3 at 8k": 75.0}, None, 0.5),
        ({"prose": 0.5, "code": 0.8}, {"8k code": 75.0}, 3, 0.8),
    ],
)
def test_a_share_is_of_the_speeds_whose_setting_it_tells(shares, speeds, drafted, found):
    (one,) = case(accepted_share=shares, published_tokens_per_s=speeds, drafted=drafted).measured
    assert one.share == (found and pytest.approx(found, abs=1e-3))


@pytest.mark.parametrize(
    ("shares", "key", "drafted", "share"),
    [
        ({2: 0.75}, 4, 2, 0.75),  # 1 + r + r**2 is 2.5 at a rate of 0.823
        ({3: 0.63, 7: 0.1}, 4, 3, 0.63),
        ({"code, 2": 0.75, "prose, 2": 0.3}, "code, 4", 2, 0.75),
        ({2: 0.0}, 4, 2, 0.0),
        ({2: 1.0}, 4, 2, 1.0),
    ],
)
def test_a_share_of_another_number_drafted_tells_the_rate_at_which_tokens_are_accepted(shares, key, drafted, share):
    (one,) = case(accepted_share=shares, published_tokens_per_s={key: 75.0}).measured
    assert one.share is not None
    assert one.is_share_of_another
    assert rate_of_tokens(1 + 4 * one.share, 4) == pytest.approx(rate_of_tokens(1 + drafted * share, drafted), abs=2e-3)
    (told,) = case(accepted_share={key: one.share}, published_tokens_per_s={key: 75.0}).measured
    asked = PredictedCase.of(case())
    known, by_another = asked.ratio(told), asked.ratio(one)
    assert known.value == by_another.value
    assert by_another.low < known.low, "such a share is less sure"


def test_a_share_where_drafting_ends_early_tells_nothing_of_other_numbers():
    (one,) = case(accepted_share={3: 0.9}, published_tokens_per_s={5: 75.0}, note="p-min 0.7").measured
    assert one.share is None


def test_a_gain_is_over_the_plain_speed_of_the_same_words():
    speeds = {"code 8k": 260.0, "prose 8k": 150.0}
    found = retrodict([case(plain_tokens_per_s={"Code, 8k": 120.0}, published_tokens_per_s=speeds)])
    assert [(one.speed.key, one.published) for one in found.of("ratio")] == [("code 8k", 260 / 120)]
    assert [one.reason for one in found.skipped] == ["no plain speed is given for prose 8k"]


def test_what_a_file_tells_in_vain_is_named_once_and_costs_no_prediction():
    told = {"id": "one", "accepted_share": {1: 0.2}, "target": TOLD["target"] | {"weight": "q8_0"}}
    others = {"acceptance_share": {2: 0.1}, "tags": ["a"], 7: None, 8: "x", "[/]": 1}
    cases = [Case.model_validate(TOLD | told | others), case(tags=["b"]), case()]
    found = retrodict(cases)
    assert [one.predicted for one in found.of("absolute")] == [
        one.predicted for one in retrodict(3 * [case()]).of("absolute")
    ]
    assert found.summary()["fields_not_read"] == [
        {"field": "acceptance_share", "near": "accepted_share", "cases": ("one",)},
        {"field": "tags", "near": None, "cases": ("one", "a card")},
        {"field": "8", "near": None, "cases": ("one",)},
        {"field": "[/]", "near": None, "cases": ("one",)},
        {"field": "target.weight", "near": "target.weights", "cases": ("one",)},
    ]
    assert found.summary()["acceptance_of_other_settings"] == {"one": ["2", "4"]}
    fields, shares = notes(found)
    assert fields.startswith(
        "Fields that are not read: acceptance_share (accepted_share?) in 1 case; tags in 2 cases; "
    )
    assert shares.endswith("only for other settings: one (2, 4).")
    assert not list(notes(retrodict([case()])))
