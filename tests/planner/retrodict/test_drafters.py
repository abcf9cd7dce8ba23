"""What a drafter of a public measurement is, by what people call it, and what it takes."""

from itertools import product

import pytest

from decoding.errors import PlanError
from hwprofiles.model_shape import model_shape
from mirrorsd.pair_on_platform import question_of
from planner.retrodict.cases import CaseDrafter
from planner.retrodict.drafters import Draft, draft_of
from sim.derived.roofline import StoredModel

TARGET = StoredModel(shape=model_shape("llama-2-7b"), weights="bf16")
SMALL = "llama-68m"


def drafting(kind: str, shape: str | None = None, *, parallel: bool = False) -> Draft:
    return draft_of(CaseDrafter(kind=kind, shape=shape, parallel=parallel), TARGET)


@pytest.mark.parametrize(
    "kind",
    ["standalone", "assisted generation", "vanilla", "SpS", "sequoia", "SpecInfer", "draft with block verification"],
)
def test_a_drafter_whose_shape_is_told_is_a_draft_model_whatever_it_is_called(kind):
    assert drafting(kind, SMALL) == drafting("draft", SMALL)


@pytest.mark.parametrize("kind", ["PEARL", "AMUSD", "SSD", "parallel draft-and-verify", "Mirror-SD"])
def test_some_names_say_that_it_drafts_while_the_target_verifies(kind):
    assert drafting(kind, SMALL) == drafting("draft", SMALL, parallel=True)
    assert drafting("draft", SMALL) != drafting("draft", SMALL, parallel=True)


@pytest.mark.parametrize(("kind", "shape", "of"), [("PARD", SMALL, "draft"), ("P-EAGLE", None, "eagle3")])
def test_some_draft_their_window_in_one_step(kind, shape, of):
    once, each = drafting(kind, shape), drafting(of, shape)
    assert (once.step_bytes, once.num_steps(5), each.num_steps(5)) == (each.step_bytes, 1, 5)


@pytest.mark.parametrize(
    ("kind", "num_layers"),
    [
        ("self-speculative", 16),
        ("Draft & Verify", 16),
        ("early exit", 16),
        ("SWIFT (layer skipping)", 16),
        ("LayerSkip", 8),
        ("Kangaroo", 3),
    ],
)
def test_a_target_that_drafts_for_itself_runs_some_of_its_layers_and_its_head(kind, num_layers):
    found, layer, head = drafting(kind), TARGET.shape.layer_weight_bytes("bf16"), TARGET.shape.head_bytes("bf16")
    assert (found.kind, found.num_layers, found.num_steps(3)) == ("self", num_layers, 3)
    assert found.step_bytes == pytest.approx(num_layers * layer + head, rel=1e-3), "and states between them"
    assert not found.model.reads_verified_rows, "what it keeps is the target's"


@pytest.mark.parametrize("kind", ["ReDrafter", "recurrent drafter", "Hydra", "mlp_speculator", "LSTM speculator"])
def test_heads_that_need_the_token_before_run_one_after_the_other(kind):
    found, medusa = drafting(kind), drafting("medusa")
    assert (found.kind, found.num_steps(4), medusa.num_steps(4)) == (medusa.kind, 4, 1)
    assert 4 * found.step_bytes == pytest.approx(medusa.step_bytes, rel=0.3), "four heads, which read more"


@pytest.mark.parametrize(
    ("kind", "known"),
    [
        ("HASS", "eagle"),
        ("DeepSeek MTP (NextN)", "mtp"),
        ("draft-mtp", "mtp"),
        ("DFlash", "block"),
        ("block diffusion", "block"),
        ("Jacobi", "lookup"),
        ("prompt_lookup", "lookup"),
        ("REST", "lookup"),
        ("n-gram", "lookup"),
        ("n_gram", "lookup"),
        ("n gram", "lookup"),
        ("ngram-map-k4v", "lookup"),
        ("Token Recycling", "lookup"),
        ("SAM decoding", "lookup"),
        ("suffix decoding", "lookup"),
        ("PLD", "lookup"),
        ("qwen3_next_mtp", "mtp"),
    ],
)
def test_names_of_papers_and_engines_mean_a_kind(kind, known):
    assert drafting(kind).kind == known


def test_a_drafter_of_an_unknown_name_without_a_shape_is_refused():
    with pytest.raises(PlanError, match="the cost of a drafter of kind 'oracle' is not known"):
        drafting("oracle")
    with pytest.raises(PlanError, match="no drafter is called 'egale3'; did you mean eagle-3 or eagle"):
        drafting("egale3")
    with pytest.raises(PlanError, match="no drafter is called 'medsua'; did you mean medusa"):
        drafting("medsua")


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("EAGLE", 128_256),
        ("eagle-2", 128_256),
        ("HASS", 128_256),
        ("EAGLE-3", 32_000),
        ("eagle_3", 32_000),
        ("EAGLE v3", 32_000),
    ],
)
def test_eagles_third_version_alone_has_an_output_head_of_few_rows(kind, rows):
    """Its first two take the target's whole `lm_head` (arXiv 2401.15077, 2406.16858, 2503.01840)."""
    target = StoredModel(shape=model_shape("llama-3.1-8b"), weights="bf16")
    found = draft_of(CaseDrafter(kind=kind), target)
    assert found.model.head_bytes == rows * target.shape.hidden_size * 2


@pytest.mark.parametrize(
    ("target", "kind"),
    [
        *product(["qwen3.6-27b", "gemma-4-31b"], ["mtp", "eagle3", "dflash", "medusa", "prompt-lookup"]),
        *product(["gpt-oss-20b"], ["eagle3", "dflash", "medusa", "prompt-lookup"]),  # it has no MTP layers
    ],
)
def test_a_head_is_the_same_in_a_plan(target, kind):
    planned = question_of(target, kind, "h100", lengths=(64, 32))
    found = draft_of(CaseDrafter(kind=kind), planned.target)
    assert found.model == planned.draft
    assert found.step_bytes == pytest.approx(planned.draft.shared_work("draft_step", 1).num_bytes)


@pytest.mark.parametrize(
    ("kind", "engine", "rows"),
    [
        ("medusa", "", 64),
        ("hydra", "transformers", 64),
        ("medusa", "TensorRT-LLM", 64),
        ("medusa", "vLLM 0.27", 5),
        ("mtp", "", 5),
        ("eagle3", "sglang", 5),
    ],
)
def test_trees_of_heads_are_verified_whole(kind, engine, rows):
    assert drafting(kind).num_rows(4, engine) == rows


@pytest.mark.parametrize(
    ("kind", "target", "reads"),
    [("mtp", "qwen3.6-27b", True), ("mtp", "gemma-4-31b", False), ("eagle3", "qwen3-8b", False)],
)
def test_layers_of_a_target_read_verified_rows_again_and_assistants_that_share_its_cache_do_not(kind, target, reads):
    found = draft_of(CaseDrafter(kind=kind), StoredModel(shape=model_shape(target), weights="q4_k_m"))
    assert found.model.reads_verified_rows == reads
    again, layer = (found.model.shared_work(part, 4).num_bytes for part in ("draft_reads", "layer"))
    assert again == found.num_layers * layer, "no token is named"
