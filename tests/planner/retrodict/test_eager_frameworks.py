"""Frameworks whose host starts every operation: layers cost its time, whatever they read and however many rows."""

import pytest

from costs.prices import calls_s
from hwprofiles.engines import run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.sheets import device_sheet
from planner.retrodict.cases import Case
from planner.retrodict.predicted_speeds import PredictedCase
from planner.row_curve import row_curve
from sim.derived.roofline import StoredModel


def asked(device, model, engine="transformers", **drafter) -> PredictedCase:
    told = {
        "id": "a paper",
        "device": device,
        "engine": engine,
        "target": {"shape": model, "weights": "bf16"},
        "drafter": {"kind": "lookup"} | drafter,
        "published_tokens_per_s": {5: 50.0},
    }
    return PredictedCase.of(Case.model_validate(told))


@pytest.mark.parametrize(
    ("device", "model", "tokens_per_s"),
    [
        ("H100", "llama-3.1-8b", 40.99),
        ("H100", "qwen2.5-32b", 19.67),
        ("RTX 4090", "llama-3.1-8b", 47.46),
        ("T4", "qwen2.5-3b", 25.66),
        ("A100 80GB", "qwen2.5-0.5b", 47.40),
        ("A100 80GB", "qwen2.5-7b", 40.38),
        ("2x A100 80GB", "qwen2.5-72b", 8.73),
        ("4x A100 40GB", "llama-2-70b", 7.6),
        ("H20", "qwen3-0.6b", 58.57),
        ("H20", "qwen3-32b", 26.24),
        ("H20", "qwen3-30b-a3b", 1.89),
        ("A100 80GB", "vicuna-7b", 40.24),
    ],
)
def test_published_speeds_of_transformers_lie_within_the_interval(device, model, tokens_per_s):
    """Sources are those of guesses.yaml; as an engine nobody knows, most were 2 to 13 times too fast."""
    plain = asked(device, model).plain(1024)
    assert plain.low < tokens_per_s < plain.high


def test_a_small_draft_costs_its_share_of_layers():
    found = asked("A100 80GB", "llama-3.1-8b", kind="draft", shape="llama-3.2-1b")
    share = calls_s(found._drafting, found.draft.step, 1, 512) / found.plain_s(512)
    assert share == pytest.approx(16 / 32, abs=0.03)


def test_a_model_that_takes_long_to_read_is_read_as_fast_as_by_others():
    eager, fused = (
        asked("4x A100 80GB, layer split", "llama-3.1-70b", engine).plain_s(512) for engine in ("HF", "no name")
    )
    assert eager == pytest.approx(fused, rel=0.3)


def test_rows_are_nearly_free_while_the_host_is_what_a_pass_waits_for():
    sheet = run_by(device_sheet("h100-sxm"), "transformers")
    curve = row_curve(StoredModel(shape=model_shape("llama-3.1-8b"), weights="bf16"), "h100", sheet, (1, 8, 16), 512)
    assert all(one.ratio == pytest.approx(1, abs=0.02) for one in curve.rows)


def test_a_cpu_is_priced_as_before():
    default, eager = (asked("Ryzen 9 7950X", "qwen3-0.6b", engine).plain_s(512) for engine in ("no name", "PyTorch"))
    assert eager == default
