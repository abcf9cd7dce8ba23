"""Every format is read into what its own numbers say, worked out by hand, and no page is more than refused."""

import json
from pathlib import Path

import pytest

from decoding.errors import MirrorsdError
from decoding.schedule import Schedule
from planner.imported.engine_page import Page, Told
from planner.imported.engine_profile import engine_profile
from planner.imported.import_file import READERS, import_files
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts
from sim.evaluator import predict

PAGES = Path(__file__).parent / "pages"


LLAMA = "llama-3.1-8b"


def read(*names, **told):
    return import_files([PAGES / name for name in names], Told(**told))


def test_runs_of_llama_bench_that_keep_experts_elsewhere_are_other_curves(tmp_path):
    alike = {"model_type": "qwen3moe", "gpu_info": "RTX 4090", "n_prompt": 0, "n_gen": 1, "stddev_ns": 0}
    rows = [alike | {"n_cpu_moe": there, "avg_ns": 1e6 * ms} for there, ms in ((0, 10), (40, 40))]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = import_files([tmp_path / "l.jsonl"], Told()).curves
    assert sorted(times_of(curve)[1] for curve in found) == pytest.approx([0.010, 0.040])


def times_of(curve):
    return {rows: time.time_s for rows, time in curve.times.items()}


@pytest.mark.parametrize(
    ("names", "told", "times", "context"),
    [
        (["vllm-latency.json"], {"batch_size": 2, "new_tokens": 128}, {2: 0.01}, 0),
        (["vllm-latency.pytorch.json"], {}, {4: 1.535 / 128}, 0),
        (["vllm-serve-1.json", "vllm-serve-4.json"], {}, {1: 0.010, 4: 0.012}, 512),
        (["sglang-serving.jsonl"], {}, {2: 0.009}, 100),
        (["sglang-one-batch.jsonl"], {}, {1: 0.010, 8: 0.013}, 256),
        (["sglang-one-batch-server.jsonl"], {}, {2: 0.02}, 256),
        (["perf"], {}, {1: 1.005e-3 + 32 * 114e-6, 4: 1.016e-3 + 32 * 136e-6}, 512),
        (["perf"], {"context": 4000}, {1: 1.005e-3 + 32 * 144e-6}, 4096),
        (["layers.csv"], {"target": LLAMA}, {1: 0.3e-3 + 32 * 52e-6}, 0),
        (["gemm_perf.txt"], {"target": LLAMA}, {1: 7.50e9 * 2 / 3e12, 8: 7.50e9 * 2 / 3e12 * 1.07}, 0),
    ],
)
def test_a_curve_is_what_its_times_come_to(names, told, times, context):
    (found,) = read(*names, **told).curves
    assert (found.of.how, found.of.context) == ("several sequences", context)
    assert times_of(found) == pytest.approx(times, rel=1e-3)


def test_runs_over_sampled_prompts_make_one_curve_unless_these_are_of_another_length(tmp_path):
    """Of real data sets no two runs read equally many tokens."""
    runs = [(1, 10, 10_240), (4, 40, 40_957), (8, 80, 81_911), (4, 10, 13_000)]
    for place, (sequences, completed, tokens) in enumerate(runs):
        run = {"model_id": "m", "max_concurrency": sequences, "completed": completed, "total_input_tokens": tokens}
        (tmp_path / f"{place}.json").write_text(json.dumps(run | {"median_itl_ms": 10.0 + place}))
    alike, longer = import_files([tmp_path / f"{place}.json" for place in range(len(runs))], Told()).curves
    assert (alike.of.context, longer.of.context) == (1023, 1300)
    assert times_of(alike) == pytest.approx({1: 0.010, 4: 0.011, 8: 0.012})
    assert times_of(longer) == pytest.approx({4: 0.013})


def test_times_without_repeats_have_an_interval_all_the_same():
    """Servers' benchmarks tell one number; predictions from single passes are off by up to 8 %."""
    profile = engine_profile(read("vllm-serve-1.json", "vllm-serve-4.json").curves)
    plain = Schedule(method="autoregressive", target_lane=profile.lanes[0].name)
    found = predict(plain, profile, Bernoulli(0.5, texts=Texts(num_texts=2, num_tokens=4, prompt_length=512)))
    assert (profile.relative_error, found.tpot_s) == (0, pytest.approx(0.010))
    assert (found.tpot_s_low, found.tpot_s_high) == pytest.approx((0.010 / 1.08, 0.010 * 1.08), rel=0.01)


@pytest.mark.parametrize(
    "run",
    [
        {"pl": 1, "tg": 16, "pp": 64, "t_tg": 0.16},
        {"avg_latency": 1.28, "latencies": [1.28]},
        {"batch_size": 1, "input_len": 256, "output_len": 8, "median_decode_latency": 0.01, "run_name": "default"},
        {"batch_size": 1, "input_len": 256, "output_len": 11, "latency": 0.3, "last_ttft": 0.1},
        {"max_concurrency": 1, "completed": 4, "total_input_tokens": 400, "median_itl_ms": 9.0},
    ],
    ids=["batched bench", "latency", "one batch", "server", "serving"],
)
def test_models_that_files_do_not_name_are_those_of_their_files(run, tmp_path):
    files = [tmp_path / folder / "bench.json" for folder in ("target", "draft")]
    for file in files:
        file.parent.mkdir()
        file.write_text(json.dumps(run))
    found = import_files(files, Told(batch_size=1, new_tokens=128)).curves
    assert [one.of.model for one in found] == [*map(str, files)]


def test_a_run_of_sglang_that_was_given_a_name_is_of_that_model():
    (found,) = read("sglang-one-batch.jsonl").curves
    assert found.of.model == "r"


def test_rows_that_were_not_timed_in_every_context_are_told(tmp_path):
    bench = {"model_type": "llama 8B", "gpu_info": "RTX 4090", "stddev_ns": 0, "avg_ns": 1e6}
    tests = [(0, 1, 0), (4, 0, 0), (8, 0, 0), (0, 1, 4096), (4, 0, 4096)]
    rows = [bench | {"n_prompt": prompt, "n_gen": new, "n_depth": depth} for prompt, new, depth in tests]
    (tmp_path / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
    profile = engine_profile(import_files([tmp_path / "l.jsonl"], Told()).curves)
    assert profile.lanes[0].layer.rows == (1, 4)
    told = "Left out of llama 8B: passes over 8 rows, since they were not timed at every context."
    assert told in profile.notes
    assert not any("Left out" in note for note in engine_profile(read("vllm-serve-1.json").curves).notes)


@pytest.mark.parametrize(
    ("label", "kind"),
    [
        ("NVIDIA A999 Tensor Core GPU", "gpu"),
        ("Apple M9 GPU 20-core", "gpu"),
        ("the device", "gpu"),
        ("Radeon 890M", "gpu"),
        ("Metal,BLAS", "gpu"),
        ("BLAS,CPU", "cpu"),
        ("BLAS,RPC", "cpu"),
        ("MKL, Intel(R) Xeon(R) Gold", "cpu"),
        ("Intel(R) Core(TM) i9-99999", "cpu"),
        ("AMD Zen 9 64-Core Processor", "cpu"),
        ("AMD EPYC 9654", "cpu"),
    ],
)
def test_what_an_engine_ran_on_is_told_by_the_device_that_its_files_name(label, kind, tmp_path):
    """A GPU that counts its cores is no CPU."""
    bench = {"model_type": "llama 8B", "gpu_info": label, "stddev_ns": 0, "avg_ns": 1e6, "n_prompt": 0, "n_gen": 1}
    (tmp_path / "l.jsonl").write_text(json.dumps(bench))
    profile = engine_profile(import_files([tmp_path / "l.jsonl"], Told()).curves)
    assert (profile.lanes[0].device, profile.lanes[0].kind) == (label, kind)


def benches(tmp_path, **rows):
    """Return the profile of llama.cpp's two benchmarks with these rows alone of `target` and `draft`."""
    for model, page in (("target", "llama-bench.jsonl"), ("draft", "draft-bench.jsonl")):
        lines = (PAGES / page).read_text().splitlines()
        kept = [line for line in lines if json.loads(line)["n_gen"] or json.loads(line)["n_prompt"] in rows[model]]
        (tmp_path / page).write_text("\n".join(kept))
    return engine_profile(import_files(sorted(tmp_path.iterdir()), Told()).curves)


def test_what_a_draft_reads_again_is_its_own_time_whichever_rows_the_target_was_timed_with(tmp_path):
    reads = benches(tmp_path, target=(8,), draft=(2, 3, 4, 8)).lanes[0].draft_reads
    (own,) = (curve for curve in import_files([tmp_path / "draft-bench.jsonl"], Told()).curves)
    assert {rows: reads.at(rows, 0) for rows in (2, 3, 4, 8)} == pytest.approx(
        {rows: own.times[rows].time_s for rows in (2, 3, 4, 8)}
    )


def test_a_drafts_steps_of_several_sequences_take_what_its_bench_took(tmp_path):
    bench = json.loads((PAGES / "vllm-serve-1.json").read_text())
    for model, tpot_ms in (("target", 24.0), ("draft", 3.0)):
        for rows in (1, 4, 8):
            pass_ms = tpot_ms * (1 + rows / 100)
            told = {"model_id": model, "max_concurrency": rows, "median_tpot_ms": pass_ms, "median_itl_ms": pass_ms}
            (tmp_path / f"{model}-{rows}.json").write_text(json.dumps(bench | told))
    step = engine_profile(import_files(sorted(tmp_path.iterdir()), Told()).curves).lanes[0].draft_step
    assert step.rows == (1, 4, 8)
    assert [step.at(rows, 0) for rows in step.rows] == pytest.approx([3.03e-3, 3.12e-3, 3.24e-3])


def test_drafts_that_cannot_be_predicted_for_want_of_the_drafts_rows_are_told(tmp_path):
    told = "Left out: drafts of {} or more tokens, since llama 1B Q4_0 reads verified rows again: time more rows, with"
    plain, short, long = (benches(tmp_path, target=(2, 4, 8), draft=rows).notes for rows in ((), (2, 4), (2, 8)))
    assert any(told.format(1) in note for note in plain)
    assert any(told.format(4) in note for note in short)
    assert not any("Left out" in note for note in long)


def test_an_engines_device_is_the_one_that_a_file_of_either_model_names(tmp_path):
    batched = {"pl": 1, "tg": 16, "pp": 0, "t_tg": 0.16}
    (tmp_path / "target.jsonl").write_text(json.dumps(batched))
    found = import_files([tmp_path / "target.jsonl", PAGES / "draft-bench.jsonl"], Told())
    assert engine_profile(found.curves).host["device"] == "NVIDIA GeForce RTX 3090"


@pytest.mark.parametrize(("context", "is_told"), [(512, False), (16_384, True)])
def test_rows_that_each_read_a_long_cache_are_told_to_be_no_windows(context, is_told, tmp_path):
    run = {"model_id": "m", "max_concurrency": 1, "completed": 1, "total_input_tokens": context, "median_itl_ms": 9.0}
    (tmp_path / "run.json").write_text(json.dumps(run))
    notes = engine_profile(import_files([tmp_path / "run.json"], Told()).curves).notes
    assert any("at long contexts are overestimated" in note for note in notes) == is_told


def test_devices_of_a_group_make_curves_of_their_own():
    alone, two = read("compute").curves
    assert (alone.of.model, alone.of.device) == ("Llama-3.1-8B", "a100")
    assert times_of(alone) == pytest.approx({1: 1e-5 + 32 * 104e-6, 8: 2e-5 + 32 * 114e-6})
    assert times_of(two) == pytest.approx({1: 1e-5 + 32 * 54e-6})
    assert ("devices" in alone.of.settings, "of 2 devices, without" in two.of.settings) == (False, True)


def test_tables_of_a_device_and_of_one_of_several_are_two_curves(tmp_path):
    """LLMServingSim calls both files `dense.csv`, and a kernel of a quarter takes less."""
    for folder, time_us in (("tp1", 100), ("tp4", 30)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "dense.csv").write_text(f"layer,tokens,time_us\nqkv_proj,1,{time_us}\n")
    alone, shared = import_files([tmp_path], Told(target=LLAMA)).curves
    assert (times_of(alone)[1], times_of(shared)[1]) == pytest.approx((32 * 100e-6, 32 * 30e-6))
    assert "of 4 devices, without communication" in shared.of.settings
    assert "devices" not in alone.of.settings


def test_every_format_has_a_page_here_that_it_alone_is_taken_for():
    pages = [path for path in sorted(PAGES.rglob("*")) if path.suffix in (".json", ".jsonl", ".txt", ".csv")]
    pages = [path for path in pages if path.name not in ("per_sequence.csv", "attention.csv")]
    taken = {path.name: [name for name, one in READERS.items() if one.looks_so(Page.read(path))] for path in pages}
    assert {len(names) for names in taken.values()} == {1}
    assert {name for (name,) in taken.values()} == {*READERS} - {"llama-batched-bench"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"schema_version": "1.0", "measured": false}', "measured is False; expected true"),
        (
            '{"schema_version": "1.0", "measured": true, "conditional_accept_rates": [0.5, 1.5]}',
            "accepted by position is [0.5, 0.75]; expected numbers from 0 to ",
        ),
        (
            f'{{"schema_version": "1.0", "measured": true, "conditional_accept_rates": [0.5, {10**400}]}}',
            "accepted by position is [0.5, nan]; expected numbers from 0 to ",
        ),
        (
            f'{{"schema_version": "1.0", "measured": true, "marginal_accept_rates": [{10**400}]}}',
            "expected numbers from 0 to ",
        ),
        (
            '{"schema_version": "1.0", "measured": true, "conditional_accept_rates": [0.5], "mean_accept_length": 3}',
            "mean_accept_length is 3; expected 1.5",
        ),
        ("vllm:spec_decode_num_drafts_total nine", ":1: vllm:spec_decode_num_drafts is 'nine'; expected a number"),
        ("\nvllm:spec_decode_num_drafts_total", ":2: line is"),
        ("vllm:spec_decode_num_drafts_total 0", ":1: vllm:spec_decode_num_drafts is 0.0; expected a number from 1"),
        (
            (
                "vllm:spec_decode_num_drafts_total 9\nvllm:spec_decode_num_accepted_tokens_total 12\n"
                'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 8\n'
            ),
            ":2: vllm:spec_decode_num_accepted_tokens is 12.0; expected 8, the sum of vllm:spec_decode",
        ),
        (
            (
                '{"metrics": {"speculative_decoding": {"num_spec_steps": 4, "num_accepted_draft_tokens": 7, '
                '"num_draft_tokens": 12, "per_step_accepted": [3, 0, 2, 1]}}}'
            ),
            ":1: num_accepted_draft_tokens is 7; expected 6, the sum of per_step_accepted",
        ),
        (
            '{"metrics": {"speculative_decoding": {"num_spec_steps": 5, "per_step_accepted": [3, 0, 2, 1]}}}',
            ":1: num_spec_steps is 5; expected 4, the sum of per_step_accepted",
        ),
        (
            (
                '{"metrics": {"speculative_decoding": {"num_spec_steps": 1, "num_accepted_draft_tokens": 1, '
                '"per_step_accepted": [1], "num_spec_tokens": 1000000000000}}}'
            ),
            "expected 1 to 16 positions",
        ),
        ("sglang:spec_accept_length 2.5", "give the number, such as --window 4"),
        ("sglang:spec_accept_length 2.0\nsglang:spec_accept_rate 0.5", "give the number, such as --window 4"),
        ('{"timings": {"predicted_n": 5, "draft_n": 8, "draft_n_accepted": 9}}', "draft_n_accepted is 9; expected"),
        (
            '{"timings": {"predicted_n": 101, "draft_n": 700, "draft_n_accepted": 68}}',
            "3.125 committed tokens per verification with 21.88 drafted ones; expected at most 16 drafted",
        ),
        ('{"avg_latency": 1, "latencies": [1.0]}', "--batch-size 8 --new-tokens 128"),
        ('{"completed": 1, "median_itl_ms": 0, "max_concurrency": 1, "total_input_tokens": 1}', "median_itl_ms is 0;"),
        ('{"completed": 0, "median_itl_ms": 9, "max_concurrency": 1, "total_input_tokens": 1}', "completed is 0;"),
        (
            '{"completed": 1, "median_itl_ms": 9.0, "max_concurrency": null}',
            "max_concurrency is None; expected a number",
        ),
        (
            '{"completed": 3, "median_itl_ms": 9.0, "max_concurrency": 4, "total_input_tokens": 9}',
            ":1: completed is 3; expected 4 requests or more",
        ),
        (
            (
                '{"completed": 20, "median_itl_ms": 9.0, "max_concurrency": 4, "total_input_tokens": 9, '
                '"request_rate": 0.5}'
            ),
            ":1: request_rate is 0.5; expected inf",
        ),
        ('{"batch_size": 1, "input_len": 1, "output_len": 9, "latency": 1, "last_ttft": 2}', "more than last_ttft"),
        (
            '{"batch_size": 1, "input_len": 1, "output_len": 9, "latency": 2, "last_ttft": 1, "acc_length": "x"}',
            ":1: acc_length is 'x'; expected a number from",
        ),
        (
            '{"metrics": {"speculative_decoding": {"num_spec_steps": 4, "per_step_accepted": 1}}}',
            ":1: per_step_accepted is 1; expected a list",
        ),
        ("layer,tokens,time_us\nqkv_proj,1,5\n", "--target llama-3.1-8b"),
        ("framework,device,gemm_dtype,m,n,k,latency\nv,d,bf16,1,128,128,1\n", "--target llama-3.1-8b"),
        ("PAR1\x00", "pip install pyarrow"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path, text, told):
    path = tmp_path / "page"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MirrorsdError) as failed:
        import_files([path], Told())
    assert told in str(failed.value)
    assert str(path) in str(failed.value)


def test_a_product_outside_of_a_table_is_no_guess(tmp_path):
    path = tmp_path / "gemm_perf.txt"
    path.write_text("framework,device,gemm_dtype,m,n,k,latency\nTRTLLM,NVIDIA H100,bfloat16,1,1024,1024,0.01\n")
    with pytest.raises(MirrorsdError, match="no products around n = 6144, k = 4096"):
        import_files([path], Told(target=LLAMA))


def test_what_else_an_answer_holds_does_not_matter(tmp_path):
    path = tmp_path / "vllm-answer.json"
    path.write_text((PAGES / path.name).read_text().replace('"text": "a"', '"text": []'))
    assert import_files([path], Told()) == read(path.name)


def test_an_older_sglang_is_read_by_its_own_names(tmp_path):
    answer = (PAGES / "sglang-answer.json").read_text()
    answer = answer.replace("num_correct_drafts", "accept_token_num").replace("num_proposed_drafts", "draft_token_num")
    (tmp_path / "older.json").write_text(answer)
    (found,) = import_files([tmp_path / "older.json"], Told()).acceptance
    assert (len(found.rates), found.mean_acceptance_length) == (3, pytest.approx(2.5))
