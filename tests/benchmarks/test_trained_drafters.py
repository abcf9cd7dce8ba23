"""Scripts about trained drafters: their figures, held against counting by hand."""

import json

import pytest
import torch

from calibrate.prompts import EncodedPrompt
from calibrate.recording.recorded_text import TextWriter, WantedText
from runtime.backends.eager import EagerBackend
from runtime.drafters.registry import SHIPPED_FOLDER, find_drafter
from runtime.models.decoder import causal_mask
from runtime.target.early_exits import ExitHeads
from sim.acceptance.assumed import AssumedAcceptance
from sim.acceptance.rates import TaskRates, Texts
from tests.benchmarks.scripts import PAGE, RESULTS, load_script
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


TRAINING_CURVES = load_script("training_curves")


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


EXIT_COVERAGE = load_script("exit_coverage")


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
    tokens = TextWriter(EagerBackend(target), max_new_tokens=40, layers=()).alone(WantedText(PROMPT.ids)).tokens
    assert (found.category, found.num_positions) == ("qa", len(tokens))
    for layer in (1, 3):
        for top_k in EXIT_COVERAGE.TOP_K:
            trained = by_hand(target, tokens, layer, exits.adapters[layer], top_k)
            assert found.hits[layer, "trained", top_k] == trained
            assert found.hits[layer, "untrained", top_k] == by_hand(target, tokens, layer, torch.nn.Identity(), top_k)
    assert len(set(found.hits.values())) > 4  # or this would show little


def test_the_page_says_what_an_adapter_costs():
    page = PAGE.read_text(encoding="utf-8")
    for layer, cost in json.loads((RESULTS / "exit-coverage-shipped.json").read_text())["adapters"].items():
        assert f"{cost['num_parameters']:,} parameters" in page, layer
        assert f"{cost['num_bytes']:,} bytes" in page, layer
