"""Scripts about trained drafters: their figures, held against counting by hand."""

import json
from collections import Counter

import pytest
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_text import target_text
from runtime.backends.eager import EagerBackend
from runtime.drafters.registry import SHIPPED_FOLDER, find_drafter
from runtime.models.decoder import causal_mask
from runtime.target.early_exits import ExitHeads, load_exits
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import TaskRates, Texts
from tests.benchmarks.scripts import PAGE, RESULTS, load_script
from tests.runtime.tiny_folders import save_exits_of
from tests.tiny_models import VOCAB_SIZE, tiny_adapters, tiny_target
from training.judging.card import read_card

ACCEPTANCE = load_script("acceptance")


@pytest.fixture
def rounds():
    return [
        ACCEPTANCE.Rounds("qa", accepted=[2, 0, 1], committed=[3, 1, 2]),
        ACCEPTANCE.Rounds("rag", accepted=[2], committed=[3]),
    ]


def test_figures_of_all_prompts_and_of_every_kind_of_task(rounds):
    found = ACCEPTANCE._figures(rounds)
    assert found["mean_acceptance_length"] == pytest.approx(9 / 4)
    assert found["mean_acceptance_length_per_request"] == pytest.approx((2 + 3) / 2)
    assert found["conditional_acceptance_rate"] == pytest.approx([3 / 4, 2 / 3])
    assert found["num_rounds"] == 4
    assert found["by_category"]["qa"]["mean_acceptance_length"] == 2
    assert found["by_category"]["qa"]["conditional_acceptance_rate"] == pytest.approx([2 / 3, 1 / 2])
    assert found["by_category"]["rag"]["conditional_acceptance_rate"] == [1, 1]


def test_the_card_has_the_same_figures_with_all_tasks_first(rounds):
    (card,) = ACCEPTANCE._for_card({"chain": ACCEPTANCE._figures(rounds)}).values()
    assert list(card) == ["all", "qa", "rag"]
    assert card["all"].mean_acceptance_length == 2.25
    assert card["all"].conditional_acceptance_rate == (0.75, 0.667)


EXIT_FEATURES = load_script("exit_features")


def test_every_schedule_with_features_has_a_twin_without_them():
    schedules = list(EXIT_FEATURES.schedules())
    assert len(set(schedules)) == len(schedules)
    with_features = [schedule for schedule in schedules if schedule.exit_features]
    assert with_features
    for schedule in with_features:
        assert schedule.model_copy(update={"exit_features": False}) in schedules


def test_a_row_of_the_table_goes_from_without_to_with():
    def entry(features, length, hits, tpot_s):
        figures = {"mean_acceptance_length": length, "reuse_rate": hits, "tpot_s": tpot_s}
        schedule = {"num_speculative_tokens": 2, "method": "mirror", "exit_layer": 20, "exit_features": features}
        return {"schedule": schedule, "measured": figures, "predicted": figures | {"tpot_s": 0.9 * tpot_s}}

    result = {"num_prompts": 7, "max_new_tokens": 48, "schedules": [entry(False, 1.5, 0.5, 0.04)]}
    alone = EXIT_FEATURES.table(result).splitlines()[-1]
    assert alone == "| 2 | mirror, exit after layer 20 | 1.50 | 50% | 40.0 | 36.0 |"
    result["schedules"].append(entry(True, 1.75, 0.25, 0.03))
    both = EXIT_FEATURES.table(result).splitlines()[-1]
    assert both == "| 2 | mirror, exit after layer 20 | 1.50 → 1.75 | 50% → 25% | 40.0 → 30.0 | 36.0 → 27.0 |"


TRAINING_CURVES = load_script("training_curves")


def test_a_share_of_the_text_is_judged_on_the_same_conversations():
    lines = [str(index) for index in range(900)]
    assert TRAINING_CURVES.shortened(lines, 1) == lines
    assert TRAINING_CURVES.shortened(lines, 4) == [*lines[:200], *lines[-100:]]


def test_every_run_differs_from_the_others():
    runs = TRAINING_CURVES.runs()
    assert len({run.name for run in runs}) == len({(run.recipe.model_dump_json(), run.share) for run in runs})
    assert {len(run.recipe.source_layers) for run in runs if run.recipe.kind == "draft"} == {2, 4, 6}


def test_a_folder_of_another_recipe_is_not_taken_for_the_run(tmp_path, monkeypatch):
    run = TRAINING_CURVES.runs()[0]
    (tmp_path / run.name).mkdir()
    (tmp_path / run.name / "drafter").symlink_to(find_drafter("smollm2-135m-draft4"))
    monkeypatch.setattr("sys.argv", ["script", "--data", str(tmp_path / "data"), "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="was trained by another recipe"):
        TRAINING_CURVES.main()
    assert read_card(tmp_path / run.name / "drafter").kind == "draft"


DRAFT_STREAMS = load_script("draft_streams")


def record(*stream_rates, num_texts=4):
    """Texts whose streams are right at some rates, half of them said to be of one kind and half of another."""
    rates = TaskRates(rates=(0.6,) * 8, stream_rates=stream_rates)
    texts = Texts(num_texts=num_texts, num_tokens=60, prompt_length=20)
    return AssumedAcceptance({"qa": rates, "rag": rates}, texts).record


def test_a_step_with_guesses_is_compared_with_a_plain_one(monkeypatch):
    class Drafter:
        def timed_step(self, measurement):
            return measurement.rows * (0.5 if measurement.part == "draft_streams" else 1)

    monkeypatch.setattr(DRAFT_STREAMS, "_seconds", float)
    cost = DRAFT_STREAMS.step_cost(Drafter(), 2)
    assert cost == {"median": 4.0, "lower_quartile": 4.0, "upper_quartile": 4.0}


def test_guesses_that_are_always_right_leave_as_few_steps_as_there_can_be():
    found = DRAFT_STREAMS.figures(record(1.0, 1.0))["tokens_per_draft_step"]
    # the first step of a window guesses nothing, and after it two guesses and a proposal of its own are kept
    assert found["windows of 4"] == {"all": 2.0, "qa": 2.0, "rag": 2.0}
    assert found["windows of 5"]["all"] == pytest.approx(5 / 3, abs=1e-3)
    assert found["windows of 8"]["all"] == 2.0


def test_the_share_of_right_guesses_is_counted_where_those_before_were_right():
    first, second = DRAFT_STREAMS.right_guesses(record(0.4, 0.7, num_texts=60))
    assert first == pytest.approx(0.4, abs=0.02)
    assert second == pytest.approx(0.7, abs=0.02)


def test_no_streams_ship_as_long_as_a_step_costs_more_plain_ones_than_it_brings_tokens():
    result = json.loads(DRAFT_STREAMS.RESULT.read_bytes())
    own = result["drafters"].values()
    brought = [row["all"] for each in own for row in each["shipped"]["tokens_per_draft_step"].values()]
    assert max(brought) < result["step_cost"]["median"]
    shipped = [json.loads(path.read_bytes()) for path in SHIPPED_FOLDER.glob("*/config.json")]
    assert not any(config.get("streams") for config in shipped)


def test_the_page_says_of_both_ways_to_train_what_was_measured():
    result = json.loads(DRAFT_STREAMS.RESULT.read_bytes())
    together, frozen = (result["drafters"][f"smollm2-135m-draft4-{name}"] for name in ("streaming", "streams"))
    assert (together["trained"], frozen["trained"]) == ("with the draft", "after the draft")
    for prompts in ("shipped", "spec_bench_dev"):
        ours, theirs = together[prompts], frozen[prompts]
        assert ours["right_guesses"][0] > theirs["right_guesses"][0]
        for windows, length in theirs["mean_acceptance_length"].items():
            assert 0.96 * length < ours["mean_acceptance_length"][windows] < length


EXIT_COVERAGE = load_script("exit_coverage")


def test_tokens_of_the_answers_are_counted_by_whether_vocabulary_or_prompt_has_them():
    texts = [EXIT_COVERAGE.Text("qa", (1, 9, 9), (1, 2, 9, 7)), EXIT_COVERAGE.Text("rag", (2, 8, 7), (8, 8))]
    found = EXIT_COVERAGE.kept_shares(texts, frozenset({1, 2, 3}))
    assert found == {"kept": 0.3333, "kept_or_in_prompt": 0.8333, "rows_added_per_prompt": 1.5, "num_tokens": 6}
    found = EXIT_COVERAGE.kept_shares(texts[1:], frozenset({1, 2, 3}))
    assert found == {"kept": 0.0, "kept_or_in_prompt": 1.0, "rows_added_per_prompt": 2.0, "num_tokens": 2}


PROMPT = EncodedPrompt("a", "qa", (5, 17, 3, 44, 8))
KEPT_IDS = torch.arange(0, VOCAB_SIZE, 2)
NAMED_IDS = torch.tensor([*range(0, VOCAB_SIZE, 2), 3, 5, 17])
"""What exits may name: with the tokens of the prompt."""


@pytest.fixture(scope="module")
def target():
    return tiny_target()


def by_hand(target, tokens, layer, adapter, top_k):
    """Positions of the text whose token is among the exit's best, from one uncached pass."""
    ids = [*PROMPT.ids, *tokens[:-1]]
    mask, positions = causal_mask(len(ids), torch.float32), torch.arange(len(ids))
    x = target.run_layers(target.embedding(torch.tensor([ids])), 0, layer, positions=positions, mask=mask)
    logits = target.logits(adapter(x))[0, len(PROMPT.ids) - 1 :, NAMED_IDS]
    best = NAMED_IDS[logits.topk(top_k).indices].tolist()
    return sum(token in row for row, token in zip(best, tokens, strict=True))


@torch.inference_mode()
def test_a_position_is_covered_if_the_next_token_is_among_the_exits_best(target):
    exits = ExitHeads(adapters=tiny_adapters(target, (1, 3)), kept_ids=KEPT_IDS)
    found = EXIT_COVERAGE.cover(target, exits, PROMPT, max_new_tokens=40)
    tokens = target_text(EagerBackend(target), PROMPT.ids, max_new_tokens=40, layers=()).tokens
    assert (found.category, found.num_positions) == ("qa", len(tokens))
    for layer in (1, 3):
        for top_k in EXIT_COVERAGE.TOP_K:
            trained = by_hand(target, tokens, layer, exits.adapters[layer], top_k)
            assert found.hits[layer, "trained", top_k] == trained
            assert found.hits[layer, "untrained", top_k] == by_hand(target, tokens, layer, torch.nn.Identity(), top_k)
    assert len(set(found.hits.values())) > 4  # or this would show little


def test_kinds_of_task_are_told_apart_and_weighed_by_their_positions():
    def text(category, num_positions, hits):
        return EXIT_COVERAGE.Covered(
            category, num_positions, Counter({(4, "trained", 1): hits, (4, "untrained", 1): 0})
        )

    found = EXIT_COVERAGE.by_category([text("qa", 10, 5), text("rag", 30, 3), text("qa", 10, 7)])
    assert found["num_positions"] == 50
    assert found["coverage"] == {"4": {"trained": {"1": 0.3}, "untrained": {"1": 0.0}}}
    kinds = found["by_category"]
    assert {name: kind["num_positions"] for name, kind in kinds.items()} == {"qa": 20, "rag": 30}
    assert [kind["coverage"]["4"]["trained"]["1"] for kind in kinds.values()] == [0.6, 0.1]


def test_an_adapter_costs_its_parameters_and_their_bytes(target, tmp_path):
    folder = save_exits_of(target, tmp_path / "exits", layers=(2, 3))
    exits = load_exits(folder, target, dtype=torch.bfloat16)
    costs = EXIT_COVERAGE.adapter_costs(exits, folder)
    hidden, width = 16, 8
    num_parameters = hidden * hidden + hidden + hidden + 2 * hidden * width
    on_disk = 2 * (hidden * hidden + 2 * hidden) + 2 * hidden * width + 4 * (hidden + width)
    one = {"num_parameters": num_parameters, "num_bytes": 2 * num_parameters, "num_bytes_on_disk": on_disk}
    assert costs == {"2": one, "3": one}


def test_the_page_says_what_an_adapter_costs():
    page = PAGE.read_text(encoding="utf-8")
    for layer, cost in json.loads((RESULTS / "exit-coverage-shipped.json").read_text())["adapters"].items():
        assert f"{cost['num_parameters']:,} parameters" in page, layer
        assert f"{cost['num_bytes']:,} bytes" in page, layer
