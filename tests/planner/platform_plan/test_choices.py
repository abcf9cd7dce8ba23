from dataclasses import replace

import pytest

from decoding.errors import ModelError, PlanError
from decoding.record import AcceptanceRecord
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.model_shape import model_shape
from hwprofiles.models.head_shapes import MEDUSA_HEADS, head_named, head_shape
from mirrorsd.pair_on_platform import Accepted, plan_pair, question_of
from planner.platform_plan.advice import held_back
from planner.platform_plan.choices import MachineChoice, choose_draft, choose_machine
from planner.platform_plan.default_acceptance import HEAD_RATES
from planner.platform_plan.device_pairs import LanePair
from planner.platform_plan.plan_page import render_page
from planner.platform_plan.platform_plan import RATES
from planner.wording import percent
from sim.acceptance.assumed import Bernoulli

TARGET = "qwen3-8b"
WITH_MTP = "mimo-7b"


def planned(draft, target=TARGET, **settings):
    return plan_pair(target, draft, "rtx4090", lengths=(64, 32), **settings)


@pytest.fixture(scope="module")
def choices():
    return choose_draft([(draft, planned(draft)) for draft in ("qwen3-1.7b", "qwen3-0.6b")])


def test_the_fastest_comes_first_and_needs_nothing(choices):
    assert [one.name for one in choices] == ["qwen3-0.6b", "qwen3-1.7b"]
    assert choices[0].acceptance_to_lead is None


def test_a_draft_that_does_not_fit_is_no_answer_beside_one_that_does():
    asked = {"acceptance": Bernoulli(0.2), "weights": ("bf16", None), "lengths": (64, 32)}
    plans = [(name, plan_pair("qwen3-4b", name, "m1-gpu", **asked)) for name in ("qwen3-4b", "qwen3-0.6b")]
    assert plans[0][1].drafting is None
    assert plans[1][1].drafting.tpot_s > plans[1][1].plain.tpot_s
    assert [one.name for one in choose_draft(plans)] == ["qwen3-0.6b", "qwen3-4b"]


def test_with_the_acceptance_that_it_needs_a_draft_is_as_fast_as_the_fastest(choices):
    first, second = choices
    assert second.acceptance_to_lead > second.plan.question.acceptance.value
    better = planned(second.name, acceptance=Bernoulli(second.acceptance_to_lead))
    assert better.drafting.tpot_s == pytest.approx(first.best.tpot_s, rel=0.05)


def test_a_page_shows_every_draft_over_its_acceptance_and_whose_that_is(choices):
    page = render_page(choices[0].plan, machines=[MachineChoice("card", choices)])
    assert "Which draft" in page
    assert all(len(one.times_s) == len(RATES) and sorted(one.times_s, reverse=True) == one.times_s for one in choices)
    assert percent(choices[1].acceptance_to_lead) in page
    assert "Which draft" not in render_page(choices[0].plan, machines=[MachineChoice("card", choices[:1])])


def test_a_page_about_the_fastest_of_several_machines_compares_all(choices):
    machines = [MachineChoice("fast card", choices), MachineChoice("old card", [], "8 GB are too small")]
    page = render_page(choices[0].plan, machines=machines)
    assert "Which machine" in page
    assert f'<td class="n">{1 / choices[0].plan.plain.tpot_s:.1f}' in page
    assert '<tr><td>old card<td colspan="8">8 GB are too small</tr>' in page
    assert "Which machine" not in render_page(choices[0].plan, machines=machines[:1])


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "eagle3"),
        ("RedHatAI/Qwen3-8B-speculator.eagle3", "eagle3"),
        ("AngelSlim/Qwen3-8B_eagle3", "eagle3"),
        ("z-lab/Qwen3-8B-DFlash-b16", "dflash"),
        ("FasterDecoding/medusa-vicuna-7b-v1.3", "medusa"),
        ("google/gemma-4-31b-it-assistant", "mtp"),
        ("eagle3-lab/Qwen3-0.6B", None),
        ("Qwen/Qwen3-0.6B", None),
        ("google/gemma-4-31b-it", None),
    ],
)
def test_a_published_head_is_one_of_those_that_are_planned(name, head):
    assert head_named(name) == head


@pytest.mark.parametrize(
    ("head", "layers", "output_heads", "of_them_own", "method"),
    [
        ("mtp", 1, 1, 0, "speculative"),
        ("EAGLE-3", 1, 32_000 / 151_936, 1, "speculative"),
        ("DFlash", 5, 1, 0, "block"),
        ("medusa", 0, 4, 1, "medusa"),
        ("ngram", 0, 0, 0, "prompt_lookup"),
    ],
)
def test_a_head_is_some_layers_and_output_heads_of_its_target_and_drafts_on_its_lane_alone(
    head, layers, output_heads, of_them_own, method
):
    asked = WITH_MTP if head == "mtp" else TARGET
    target, name = model_shape(asked), head_named(head)
    shape = head_shape(name, target)
    squares = {"medusa": MEDUSA_HEADS, "mtp": 2, "eagle3": 2}.get(name, 0) * target.hidden_size**2
    own = shape.num_layers * shape.layer_parameters
    assert own == pytest.approx(layers * target.layer_parameters + squares, rel=1e-3, abs=3 * target.hidden_size)
    head_bytes = shape.head_bytes("bf16")
    assert head_bytes == pytest.approx(output_heads * target.head_bytes("bf16"), abs=1e4)
    assert shape.weight_bytes("bf16") == pytest.approx(2 * own + of_them_own * head_bytes, abs=1e4), "no embeddings"
    plan = planned(head, asked)
    assert all(one.pair.is_pooled for one in plan.ranking)
    assert {one.schedule.method for one in plan.speculation} == {method}
    assert plan.question.acceptance == HEAD_RATES[name]
    assert planned(head, asked, acceptance=Bernoulli(0.5)).question.acceptance.value == 0.5


@pytest.mark.parametrize(("target", "millions"), [("gemma-4-31b", 470), ("gemma-4-12b", 423), ("gemma-4-26b-a4b", 420)])
def test_what_drafts_for_a_gemma_4_is_a_model_of_its_own(target, millions):
    """Parameters by the cards of google/gemma-4-31B-it-assistant and -12B-; that of 26B-A4B by its config."""
    shape = head_shape("mtp", model_shape(target))
    assert shape.num_parameters == pytest.approx(millions * 1e6, rel=2e-3)
    assert (shape.num_layers, shape.num_experts, shape.borrows_lm_head) == (4, 0, False)
    narrow = model_shape(target).model_copy(update={"hidden_size": 2560})  # E4B's
    assert head_shape("mtp", narrow).hidden_size == 256


def test_how_often_text_repeats_itself_is_a_guess():
    assert planned("ngram").question.acceptance.status == "guessed"


def test_what_a_record_found_in_its_texts_is_replayed():
    record = AcceptanceRecord.load("benchmarks/results/demos/3/record.npz")
    plan = plan_pair("smollm2-135m-instruct", "prompt-lookup", "cpu-2core", acceptance=record, weights=("bf16", None))
    assert plan.question.acceptance.status == "measured"
    assert {one.schedule.method for one in plan.speculation} == {"prompt_lookup"}
    without = replace(record, chains=(), prompts=tuple(replace(one, chain_drafts=()) for one in record.prompts))
    with pytest.raises(PlanError, match=r"has no prompt lookup: record it"):
        plan_pair("smollm2-135m", "prompt-lookup", "cpu-2core", acceptance=Accepted(without, replayed=True))
    with pytest.raises(ModelError, match=r"'medussa'.*or one of mtp, eagle3, medusa, dflash, prompt-lookup"):
        planned("medussa")


def test_a_target_without_mtp_layers_is_not_planned_with_any():
    """They are in its checkpoint: no engine loads any from elsewhere, as it does EAGLE's."""
    others = "give a draft model, or one of eagle3, medusa, dflash, prompt-lookup"
    with pytest.raises(PlanError, match=rf"draft 'NextN': Qwen3-8B has no MTP layers .*; {others}"):
        planned("NextN")
    assert planned("mtp", "gemma-4-12b").drafting is not None, "whose assistant has files of its own"


def test_a_head_of_a_mixture_keeps_its_experts_or_reads_what_a_token_does():
    target = model_shape("qwen3-30b-a3b")
    assert target.layer_kinds, "which it keeps, and its head has others"
    assert head_shape("mtp", target).num_experts == target.num_experts
    assert head_shape("eagle3", target).num_experts == 0


def test_a_card_that_holds_a_target_and_one_layer_more_holds_a_head_that_shares_its_tables():
    """17.9 GB of 23.0; tables of the head's own would take 5.1 GB more."""
    plan = plan_pair("qwen3.6-27b", "mtp", "rtx4090", weights=("awq", None), lengths=(64, 32))
    assert plan.recommended.pair == LanePair.alone("gpu")
    assert plan.pays == "yes"


def test_a_head_of_a_model_whose_layers_share_indexers_has_one_of_its_own():
    mtp = head_shape("mtp", model_shape("glm-5.2"))
    assert mtp.kv_bytes(1000) == 1000 * ((512 + 64) * 2 + 128), "the indexer's key has eight bits"


@pytest.mark.parametrize("target", ["glm-5.3-flash", "qwen3.8-flash-next", "deepseek-v3"])
def test_a_head_that_is_a_layer_of_its_target_keeps_as_much_as_one_with_full_attention(target):
    full = model_shape(target).layer_kinds[-1]
    mtp = head_shape("mtp", model_shape(target))
    assert mtp.kv_bytes(1000) == full.kept_bytes(1000, 16)
    assert mtp.layer_kv_bytes(1, 131_072.0) == full.moved_bytes(1, 131_072.0, 16, num_states=1), "no more is read"


def test_machines_are_ranked_and_one_that_holds_nothing_says_why():
    asked = {
        name: {"qwen3-0.6b": question_of("qwen3-32b", "qwen3-0.6b", name, lengths=(64, 32), weights=("bf16", None))}
        for name in ("rtx4090", "lunar-lake", "h200")
    }
    first, second, last = choose_machine(asked)
    assert (first.name, second.name) == ("h200", "rtx4090")
    assert (last.name, last.drafts) == ("lunar-lake", [])
    assert last.refused.endswith("28.8 GB are usable: too little. --weights q6_k would fit on gpu.")
    with pytest.raises(PlanError, match="fits nowhere"):
        choose_machine({"lunar-lake": asked["lunar-lake"]})


def test_a_machine_and_a_draft_are_as_fast_as_the_split_of_layers_there():
    """Nine tenths of a 14B fit on a card of 8 GB, which is faster than all of it on an M4."""
    asked = {
        name: {
            draft: question_of("qwen3-14b", draft, name, lengths=(64, 32), weights=("q4_k_m", None)) for draft in drafts
        }
        for name, drafts in {"M4 16GB": ["qwen3-0.6b"], "rtx4060": ["qwen3-0.6b", "prompt-lookup"]}.items()
    }
    first, second = choose_machine(asked)
    assert (first.name, second.name) == ("rtx4060", "M4 16GB")
    assert all(LayerSplit.of(one.plan.recommended.pair.target) for one in first.drafts)
    assert [one.name for one in first.drafts] == ["prompt-lookup", "qwen3-0.6b"], "which takes the room of layers"
    assert [len(one.times_s) for one in first.drafts] == [len(RATES)] * 2
    assert first.drafts[1].acceptance_to_lead > first.drafts[1].plan.question.acceptance.value


def test_a_mixture_that_fits_nowhere_is_told_what_llama_cpp_would_split():
    for platform, told in (
        ("a100-40-pcie", r"--engine llama.cpp would have 36 of 36 layers on gpu and the experts of 16 on cpu\.$"),
        ("lunar-lake", r"too little\.$"),
    ):
        with pytest.raises(PlanError, match=told):
            plan_pair("gpt-oss-120b", "prompt-lookup", platform, weights=("mxfp4", None))


def test_a_card_with_experts_on_the_cpu_is_ranked_by_that_split():
    """A 30B mixture in four bits: six tenths of it on a card of 12 GB is faster than all of it in an M4's memory."""
    asked = {
        name: {"prompt-lookup": question_of("qwen3-30b-a3b", "prompt-lookup", name, weights=("q4_k_m", None))}
        for name in ("M4 32GB", "rtx3060", "rtx3090")
    }
    found = choose_machine(asked)
    assert [one.name for one in found] == ["rtx3090", "rtx3060", "M4 32GB"]
    splits = [LayerSplit.of(one.drafts[0].plan.recommended.pair.target) for one in found]
    assert [split and split.num_apart for split in splits] == [None, 19, None]


def test_a_machine_that_holds_a_target_in_two_memories_only_is_ranked_by_its_split():
    """Of 63 GB a card of 24 and a memory of 64 hold parts; an M4 Max of 128 GB has it whole, and more bandwidth."""
    asked = {
        name: {
            draft: question_of("gpt-oss-120b", draft, name, lengths=(64, 32), weights=("mxfp4_moe", None))
            for draft in ("gpt-oss-20b", "prompt-lookup")
        }
        for name in ("lunar-lake", "rtx3060", "rtx3090", "M4Max-128GB")
    }
    found = choose_machine(asked)
    assert [one.name for one in found] == ["M4Max-128GB", "rtx3090", "rtx3060", "lunar-lake"]
    assert [bool(one.refused) for one in found] == [False, False, False, True]
    plan = found[1].drafts[0].plan
    assert plan.recommended is plan.plain
    assert plan.plain.pair == LanePair.alone("gpu(36) + cpu(24 experts)")
    assert 30 < 1 / plan.plain.tpot_s < 40
    assert plan.drafting.tpot_s > plan.plain.tpot_s, "a verification reads more experts"
    with pytest.raises(PlanError, match="fits nowhere on Intel"):
        choose_machine({"lunar-lake": asked["lunar-lake"]})


def test_a_dense_target_in_two_memories_only_is_drafted_for_there():
    """Llama-3.1-70B in six bits is 58 GB."""
    draft = question_of("llama-3.1-70b", "llama-3.2-1b", "rtx3090", lengths=(64, 32), weights=("q6_k", None))
    (found,) = choose_machine({"rtx3090": {"llama-3.2-1b": draft}})
    plan = found.drafts[0].plan
    assert {bool(LayerSplit.of(one.pair.target)) for one in plan.ranking} == {True}
    assert plan.recommended is plan.drafting
    assert found.fastest_s == plan.drafting.tpot_s < plan.plain.tpot_s


@pytest.mark.parametrize(
    ("target", "platform", "hint"),
    [
        ("glm-4.5", "h100x8", "--weights fp8 would fit on gpus."),
        ("deepseek-v3", "4xh200", "--weights awq-int4 would fit on gpus."),
    ],
)
def test_weights_that_would_fit_are_such_as_the_engine_loads(target, platform, hint):
    with pytest.raises(PlanError, match="fits nowhere") as refused:
        plan_pair(target, "prompt-lookup", platform)
    assert str(refused.value).endswith(hint), "and no Q6_K for vLLM"


def test_weights_that_would_fit_are_named_for_each_memory():
    """Not for the host's alone, which holds more and is ten times as slow as the card."""
    told = "--weights int4 would fit on cpu, --weights q2_k would fit on gpu."
    with pytest.raises(PlanError, match=told):
        plan_pair("llama-3.1-70b", "llama-3.2-1b", "rtx5090", weights=("bf16", None))
    split = plan_pair("qwen3-32b", "qwen3-0.6b", "rtx4090", weights=("bf16", None))
    assert "--weights int4 or q3_k_m or q2_k would fit" in held_back(split)
