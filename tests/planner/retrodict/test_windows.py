"""What rounds of a public measurement draft and verify: chains, chains that end early, and trees."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costs.round_plan import RoundPlan, tree_shape
from decoding.schedule import Schedule
from hwprofiles.model_shape import model_shape
from planner.published.round_tokens import tokens_of_rate
from planner.published.usual_rates import usual_rate
from planner.retrodict.cases import CaseDrafter
from planner.retrodict.drafters import draft_of
from planner.retrodict.predicted_speeds import PredictedCase
from planner.retrodict.windows import LONGEST_CHAIN, DraftedWindow, window_of
from sim.derived.roofline import StoredModel
from tests.planner.retrodict.test_retrodiction import case

ROOT = Path(__file__).parents[3]
TARGET = StoredModel(shape=model_shape("llama-2-7b"), weights="bf16")
DRAFT = {"kind": "draft", "shape": "llama-68m"}
STOPPED = "at most 16 drafted, stopped by the drafter's confidence"


def window(drafter: dict[str, str], key: str | int, note: str = "", engine: str = "llama.cpp") -> DraftedWindow:
    (one,) = case(accepted_share={}, published_tokens_per_s={key: 70.0}, note=note).measured
    return window_of(draft_of(CaseDrafter(**drafter), TARGET), one, engine, one.share)


def shapes(drafter: dict[str, str], key: str | int, note: str = "") -> list[tuple[int, int]]:
    return [(len(one.step_rows), one.num_rows) for one in window(drafter, key, note).rounds]


@given(most=st.integers(1, 40))
def test_a_draft_that_stops_where_it_is_unsure_drafts_one_token_more_than_are_accepted_or_all(most):
    found, rate = window(DRAFT, most, STOPPED), usual_rate("draft", is_single=most == 1).value
    assert sum(one.portion for one in found.rounds) == pytest.approx(1)
    assert [one[1:] for one in found.rounds] == [((1,) * size, size + 1) for size in range(1, most + 1)]
    mean = sum(one.portion * len(one.step_rows) for one in found.rounds)
    assert mean == pytest.approx(tokens_of_rate(rate, most - 1))
    assert found.committed.tokens == pytest.approx(1 + rate * mean), "the rate is the share of those drafted"
    assert found.committed.tokens == pytest.approx(window(DRAFT, most).committed.tokens)
    assert found.committed.error > window(DRAFT, most).committed.error


@pytest.mark.parametrize(
    ("drafter", "engine", "note", "is_limit"),
    [
        (DRAFT, "llama.cpp", "", False),
        (DRAFT, "llama.cpp", STOPPED, True),
        (DRAFT, "ik_llama.cpp CUDA", "", True),
        ({"kind": "mtp"}, "llama.cpp", STOPPED, False),
        (DRAFT | {"kind": "PEARL"}, "llama.cpp", STOPPED, False),
        (DRAFT | {"kind": "PARD"}, "llama.cpp", STOPPED, False),
    ],
)
def test_draft_models_end_early_where_that_is_told_or_the_engines_default(drafter, engine, note, is_limit):
    assert (len(window(drafter, 8, note, engine).rounds) > 1) == is_limit


def test_a_limit_of_drafted_tokens_costs_no_more_than_what_is_drafted():
    draft = {"kind": "draft", "shape": "qwen2.5-0.5b", "weights": "q8_0"}
    told = {"device": "M4 Max", "engine": "llama.cpp Metal", "target": {"shape": "qwen2.5-7b", "weights": "q4_0"}}
    asked = case(**told, drafter=draft, accepted_share={}, published_tokens_per_s={16: 150.0}, note=STOPPED)
    (limit,) = asked.measured
    (always,) = asked.model_copy(update={"note": ""}).measured
    predicted = PredictedCase.of(asked)
    assert predicted.absolute(limit).value > 2 * predicted.absolute(always).value
    told_share = limit._replace(share=0.74)
    assert predicted.ratio(told_share).value == predicted.ratio(always._replace(share=0.74)).value
    assert not limit.is_drafted_known


@pytest.mark.parametrize(
    ("kind", "key", "note", "shape"),
    [
        ("eagle", 60, "", (6, 60)),
        ("eagle", 26, "", (6, 26)),
        ("eagle3", "tree of 60", "", (6, 60)),
        ("mtp", 32, "", (6, 32)),
        ("eagle", LONGEST_CHAIN, "", (LONGEST_CHAIN, LONGEST_CHAIN + 1)),
        ("eagle", 5, "a tree of 64", (5, 64)),
        ("eagle", 64, "steps 5 topk 8 num-draft-tokens 64", (5, 64)),
        ("eagle", "auto", "steps 5 topk 8 num-draft-tokens 64", (5, 64)),
        ("mtp", 4, "a tree of 4 in two steps", (2, 4)),
        ("eagle", 2, "tree of 2", (1, 2)),
        ("eagle", 63, "tree of 64", (16, 64)),
        ("P-EAGLE", 15, "", (1, 16)),
        ("dflash", 15, "", (1, 16)),
        ("dflash", 15, "a tree of 22", (1, 22)),
        ("hydra", 64, "", (4, 64)),
        ("medusa", 64, "", (1, 64)),
    ],
)
def test_more_tokens_than_a_head_drafts_in_a_row_are_a_trees(kind, key, note, shape):
    assert shapes({"kind": kind}, key, note) == [shape]


@pytest.mark.parametrize(
    ("kind", "key", "note", "rows"),
    [
        ("eagle", 60, "", (1, 10, 10, 10, 10, 10)),
        ("eagle", 64, "steps 5 topk 8 num-draft-tokens 64", (1, 8, 8, 8, 8)),
        ("mtp", 4, "a tree of 4 in two steps", (1, 3)),
        ("eagle", 4, "", (1, 1, 1, 1)),
        ("hydra", 4, "", (1, 10, 10, 10)),
        ("medusa", 64, "", (1,)),
        ("dflash", 15, "a tree of 22", (15,)),
        ("lookup", 8, "", ()),
    ],
)
def test_a_step_of_a_tree_reads_what_the_level_above_kept(kind, key, note, rows):
    """Every step was priced as one row, where EAGLE expands ten tokens of a level (arXiv 2406.16858)."""
    (found,) = window({"kind": kind}, key, note, engine="").rounds
    assert found.step_rows == rows


def test_steps_of_a_tree_are_those_of_a_plan():
    schedule = Schedule(
        method="eagle2",
        target_lane="gpu",
        draft_lane="gpu",
        drafter="eagle",
        num_speculative_tokens=6,
        tree_size=59,
        tree_top_k=10,
    )
    planned = RoundPlan.of(schedule, tree_shape(schedule, ()), TARGET.shape.num_layers)
    (found,) = window({"kind": "eagle"}, 60).rounds
    assert found.step_rows[1:] == planned.later_rows
    assert found.num_rows == planned.segments[0].rows


def test_a_tree_of_sixty_brings_what_eagle2_published():
    lines = (ROOT / "planner" / "reproduce" / "tokens-per-round.csv").read_text(encoding="utf-8").splitlines()
    published = [float(line.split(",")[-1]) for line in lines if line.startswith("EAGLE-2,")]
    assert min(published) < window({"kind": "eagle"}, 60).committed.tokens < max(published)


@given(size=st.integers(2, 64), more=st.integers(0, 8))
def test_a_tree_brings_no_less_than_a_smaller_one_and_no_more_than_its_levels(size, more):
    note, larger = f"6 steps, a tree of {size}", f"6 steps, a tree of {min(64, size + more)}"
    found = window({"kind": "eagle"}, "auto", note).committed.tokens
    assert 1 < found <= window({"kind": "eagle"}, "auto", larger).committed.tokens <= 7
    rate = usual_rate("eagle").value
    assert found >= tokens_of_rate(rate, min(6, size - 1)) - 1e-9, "a chain of the best is one of the trees"


def test_medusas_heads_bring_as_many_by_whatever_number_their_tree_is_told():
    assert window({"kind": "medusa"}, 64).committed.tokens == window({"kind": "medusa"}, 4).committed.tokens
