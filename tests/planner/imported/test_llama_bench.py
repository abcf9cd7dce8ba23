"""Curves of rows are read from every form in which llama.cpp's benchmarks write, and anything else is named by line."""

import csv
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError, ProfileError
from planner.imported.bench_curves import settings_apart
from planner.imported.engine_page import Told
from planner.imported.engine_profile import engine_profile
from planner.imported.import_file import import_files

JSONL = Path(__file__).parent / "pages" / "llama-bench.jsonl"
ROWS = [json.loads(line) for line in JSONL.read_text().splitlines()]
TABLE = """
warming up
| model          |     size | params | backend | ngl | threads |        test |            t/s |
| -------------- | -------: | -----: | ------- | --: | ------: | ----------: | -------------: |
| qwen2 7B Q4_K  | 4.36 GiB | 7.62 B | CUDA    |  -1 |       8 |        pp 2 | 220.00 \u00b1 2.20 |
| qwen2 7B Q4_K  | 4.36 GiB | 7.62 B | CUDA    |  -1 |       8 |         pp8 |  640.00 \u00b1 0.0 |
| qwen2 7B Q4_K  | 4.36 GiB | 7.62 B | CUDA    |  -1 |       8 |       tg128 | 120.00 \u00b1 0.60 |
| qwen2 7B Q4_K  | 4.36 GiB | 7.62 B | CUDA    |  -1 |       8 | pp512 @ d64 |  6425.9 \u00b1 9.0 |
| qwen2 7B Q4_K  | 4.36 GiB | 7.62 B | CUDA    |  -1 |       4 |         pp8 |  320.00 \u00b1 0.0 |
| qwen2 7B Q4_K  | 4.36 GiB | 7.62 B | CUDA    |  -1 |       4 |       tg128 |   80.00 \u00b1 0.0 |

build: 0 (made up)
"""
SIZES = f"{ROWS[0]['model_n_params'] / 1e9:.3g} B parameters, {ROWS[0]['model_size'] / 2**30:.3g} GiB"
SIZES_OF_TABLE = "7.62 B parameters, 4.36 GiB"
BATCHED = """
|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   512 |     32 |    1 |    544 |    0.100 |  5120.00 |    0.320 |   100.00 |    0.420 |  1295.24 |
|   512 |     32 |    4 |   2176 |    0.400 |  5120.00 |    0.448 |   285.71 |    0.848 |  2566.04 |
"""


def read_bench(path):
    return import_files([path], Told()).curves


def written(tmp_path, text):
    path = tmp_path / "bench"
    path.write_text(text, encoding="utf-8")
    return path


def as_csv():
    file = io.StringIO()
    writer = csv.DictWriter(file, list(ROWS[0]))
    writer.writeheader()
    writer.writerows(ROWS)
    return file.getvalue()


@pytest.mark.parametrize(
    "text", [JSONL.read_text(), json.dumps(ROWS), as_csv(), "a line of a log\n" + JSONL.read_text()]
)
def test_every_form_of_a_benchmark_gives_the_same_curve(tmp_path, text):
    (found,) = read_bench(written(tmp_path, text))
    assert (found.of.model, found.of.device, found.of.how) == (
        "llama 8B Q4_0",
        "NVIDIA GeForce RTX 3090",
        "one sequence",
    )
    assert list(found.times) == [1, 2, 3, 4, 5, 6, 8, 12, 16]  # and not 512
    assert found.times[8].time_s == pytest.approx(18e-3)
    assert found.times[8].low < found.times[8].time_s < found.times[8].high


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("text", [json.dumps(ROWS), as_csv(), TABLE])
def test_what_powershell_redirects_into_a_file_is_read_like_any_other(tmp_path, text, encoding):
    plain, other = tmp_path / "plain", tmp_path / "other"
    plain.write_text(text, encoding="utf-8")
    other.write_text(text, encoding=encoding)
    assert [one.times for one in read_bench(other)] == [one.times for one in read_bench(plain)]


def test_a_line_that_was_cut_is_no_shorter_time(tmp_path):
    whole, quoted = as_csv(), '"' + as_csv().replace(",", '","').replace("\r\n", '"\r\n"')
    last = str(ROWS[-1]["avg_ns"])
    for text in (whole, quoted):
        cut = text[: text.rindex(last) + len(last) // 2]
        with pytest.raises(ConfigError, match=r":1\d: fewer values than the heading has names|not a table"):
            read_bench(written(tmp_path, cut))


def test_depths_that_were_asked_for_are_contexts_of_their_own_however_near(tmp_path):
    text = "\n".join(json.dumps(ROWS[-1] | {"n_depth": depth}) for depth in (1000, 1001))
    assert [one.of.context for one in read_bench(written(tmp_path, text))] == [1000, 1001]


def test_one_row_is_a_step_of_plain_decoding_where_that_was_timed_and_a_prompt_of_one_token_else(tmp_path):
    (found,) = read_bench(JSONL)
    assert found.times[1].time_s == pytest.approx(8.0e-3)
    without = "\n".join(json.dumps(row) for row in ROWS if not row["n_gen"])
    assert read_bench(written(tmp_path, without))[0].times[1].time_s == pytest.approx(8.4e-3)


def test_tables_are_read_by_their_headings_and_settings_make_curves_of_their_own(tmp_path):
    eight, four = read_bench(written(tmp_path, TABLE))
    assert "threads 8" in eight.of.settings
    assert "threads 4" in four.of.settings
    assert {rows: time.time_s for rows, time in eight.times.items()} == pytest.approx(
        {1: 1 / 120, 2: 2 / 220, 8: 8 / 640}
    )
    assert eight.times[8].low == eight.times[8].high
    assert four.ratio(8) == pytest.approx(80 / 320 * 8)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("no_kv_offload", (False, True)),
        ("tensor_split", ("0.50/0.50", "0.90/0.10")),
        ("backends", ("CUDA", "Vulkan")),
        ("cpu_mask", ("0xff", "0xff00")),
        ("build_commit", ("aaa", "bbb")),
    ],
)
def test_whatever_a_run_was_set_to_makes_a_curve_of_its_own_however_much_else_is_told(field, values, tmp_path):
    """Entries of llama-bench tell 20 settings and more."""
    entry = ROWS[-1] | {"type_k": 150 * "k", "devices": 150 * "d"}
    rows = [entry | {field: value, "avg_ns": 1e6 * (1 + place)} for place, value in enumerate(values)]
    one, other = read_bench(written(tmp_path, "\n".join(map(json.dumps, rows))))
    (own, shared), (others, same) = settings_apart((one, other))
    assert ([own, others], shared) == ([[f"{field} {value}"] for value in values], same)
    with pytest.raises(ProfileError, match=f"in several ways .*{field} {values[0]}; .*{field} {values[1]}\\)"):
        engine_profile((one, other))


def test_two_models_of_one_name_are_told_apart_by_their_sizes_in_every_form(tmp_path):
    smaller = [row | {"model_n_params": 596049920, "model_size": 639446688} for row in ROWS]
    smaller = [row | {"avg_ns": row["avg_ns"] / 8} for row in smaller]
    target, draft = read_bench(written(tmp_path, json.dumps(ROWS + smaller)))
    assert (target.times, target.of.model) == (read_bench(JSONL)[0].times, f"{ROWS[0]['model_type']} ({SIZES})")
    assert draft.of.model == f"{ROWS[0]['model_type']} (0.596 B parameters, 0.596 GiB)"
    assert draft.ratio(8) == pytest.approx(target.ratio(8))
    table = TABLE + TABLE.replace("4.36 GiB | 7.62 B", "639.45 MiB | 596.05 M")
    names = {one.of.model for one in read_bench(written(tmp_path, table))}
    assert names == {f"qwen2 7B Q4_K ({told})" for told in (SIZES_OF_TABLE, "0.596 B parameters, 0.624 GiB")}


def test_a_model_is_none_of_another_size_where_a_table_rounds_it(tmp_path):
    exact = [row | {"model_n_params": 70553706496, "model_size": 42511409152} for row in ROWS]
    name, rule = exact[0]["model_type"], "|---|---|---|---|---|---|"
    table = [
        "| model | size | params | backend | test | t/s |",
        rule,
        f"| {name} | 39.59 GiB | 70.55 B | CUDA | tg32 | 9 |",
    ]
    (tmp_path / "a.json").write_text(json.dumps(exact))
    (tmp_path / "b.md").write_text("\n".join(table))
    found = import_files([tmp_path / "a.json", tmp_path / "b.md"], Told()).curves
    assert {one.of.model for one in found} == {name}


def test_times_of_two_models_that_nothing_tells_apart_are_refused(tmp_path):
    faster = BATCHED.replace("0.320", "0.060").replace("0.448", "0.080")
    with pytest.raises(
        ConfigError, match=r"bench: a pass over 1 row of .* took 1\.88 ms and 10\.0 ms, so these seem to be two models"
    ):
        read_bench(written(tmp_path, BATCHED + faster))
    again = BATCHED.replace("0.320", "0.360")
    (curve,) = read_bench(written(tmp_path, BATCHED + again))
    assert curve.times[1].time_s == pytest.approx(0.340 / 32)


@pytest.mark.parametrize("seconds", ["44.8", "0.000448"])
def test_times_of_several_units_are_refused(tmp_path, seconds):
    """A curve of them would tell that further rows cost nothing, or a thousand passes each."""
    with pytest.raises(
        ConfigError, match=r"bench: passes of .* over 1 row and 4 rows took 10\.0 ms and .* so the units seem to differ"
    ):
        read_bench(written(tmp_path, BATCHED.replace("0.448", seconds)))


def test_sequences_of_a_batch_are_rows_with_caches_of_their_own(tmp_path):
    (found,) = read_bench(written(tmp_path, BATCHED))
    assert (found.of.how, found.of.context) == ("several sequences", 512)
    assert {rows: time.time_s for rows, time in found.times.items()} == pytest.approx({1: 0.01, 4: 0.014})


@given(growth=st.floats(0.001, 1), rows=st.sets(st.integers(2, 8), min_size=1))
def test_growth_by_rows_is_found_again(tmp_path_factory, growth, rows):
    lines = [{"model_type": "m", "gpu_info": "g", "n_prompt": count, "n_gen": 0} for count in (1, *sorted(rows))]
    text = "\n".join(json.dumps(line | {"avg_ns": 1e7 * (1 + growth * (line["n_prompt"] - 1))}) for line in lines)
    (found,) = read_bench(written(tmp_path_factory.mktemp("growth"), text))
    assert found.growth_per_row == pytest.approx((growth, growth, growth), rel=1e-6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n", ": is empty"),
        ("no benchmark", "an unknown kind of file; known: "),
        ("hello\nworld\n", "llama-bench"),
        ('{"n_prompt": 8', ":1: not JSON"),
        ('{"n_prompt": 8, "n_gen": 0}', ":1: avg_ns is missing; expected a number"),
        ('[{"n_prompt": -8}]', ":1: n_prompt is -8; expected a number from 0"),
        ('{"n_prompt": 1.5, "avg_ns": 1}', ":1: n_prompt is 1.5; expected a whole number"),
        ('{"n_prompt": 1, "avg_ns": 0, "model_type": "m", "cpu_info": "c"}', ":1: avg_ns is 0; expected"),
        ('{"n_prompt": 1, "avg_ns": NaN, "model_type": "m", "cpu_info": "c"}', ":1: avg_ns is nan; expected"),
        ('log\n{"n_prompt": 1, "avg_ns": 1e6, "cpu_info": "c"}', ":2: model_type is missing; expected a name"),
        ('{"n_prompt": 512, "avg_ns": 1e9, "model_type": "m", "cpu_info": "c"}', "no times of 1 to 64 rows"),
        ("| PP | TG | B | T_TG s |\n|---|---|---|---|\n| 1 | 0 | 1 | 2.0 |", ":3: TG is '0'; expected"),
        ('{"pl": 4, "tg": 16, "pp": 64, "t_tg": 0.4, "is_tg_separate": 1}', ":1: is_tg_separate is 1; expected 0"),
        ('[\n{"n_prompt": 8,\n"n_gen": 0},\n\n {"n_prompt": -8}\n]', ":2: avg_ns is missing"),
        ('[{"n_prompt": 512, "n_gen": 1,\n"avg_ns": 1},\n\n {"n_prompt": -8}\n]', ":4: n_prompt is -8"),
        ("| model | test | t/s |\n|---|---|---|\n| m | pp8 | fast |", ":3: t/s is 'fast'; expected tokens per second"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line_and_what_was_expected(tmp_path, text, told):
    with pytest.raises(ConfigError) as failed:
        read_bench(written(tmp_path, text))
    assert told in str(failed.value)
    assert str(tmp_path) in str(failed.value)


def test_curves_without_a_pass_over_one_row_have_times_and_no_ratios(tmp_path):
    text = '{"n_prompt": 8, "n_gen": 0, "avg_ns": 1e6, "model_type": "m", "cpu_info": "c"}'
    (found,) = read_bench(written(tmp_path, text))
    assert (found.ratio(8), found.growth_per_row) == (None, None)


@given(st.binary(max_size=200))
def test_no_file_is_more_than_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("any") / "bench"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_bench(path)
