"""What a drafter of a public measurement is, by what people call it, and what it takes."""

import pytest

from decoding.errors import PlanError
from hwprofiles.model_shape import model_shape
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
    assert found.step_bytes == num_layers * layer + head


@pytest.mark.parametrize("kind", ["ReDrafter", "recurrent drafter", "Hydra", "mlp_speculator", "LSTM speculator"])
def test_heads_that_need_the_token_before_run_one_after_the_other(kind):
    found, medusa = drafting(kind), drafting("medusa")
    assert (found.kind, found.num_steps(4), medusa.num_steps(4)) == (medusa.kind, 4, 1)
    assert 4 * found.step_bytes == medusa.step_bytes, "four heads"


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
    ],
)
def test_names_of_papers_and_engines_mean_a_kind(kind, known):
    assert drafting(kind).kind == known


def test_a_drafter_of_an_unknown_name_without_a_shape_is_refused():
    with pytest.raises(PlanError, match="nobody knows what a drafter of kind 'oracle' takes"):
        drafting("oracle")
