"""What engines count of drafted tokens becomes the acceptance that it is, worked out by hand."""

import json

import pytest

from decoding.errors import MirrorsdError
from planner.imported.engine_page import Told
from planner.imported.import_file import import_files
from tests.planner.imported.test_import_file import PAGES, read


@pytest.mark.parametrize(
    ("name", "engine", "rates", "rounds"),
    [
        ("vllm-metrics.txt", "vllm", (0.8, 0.625, 0.4), 100),
        ("llama-server-metrics.txt", "llama.cpp", (0.75, 2 / 3), 40),
        ("vllm-answer.json", "vllm", (0.75, 2 / 3, 0.5), 4),
        ("speculation_profile.json", "eagle3", (0.8, 0.75, 0.5), None),
        ("vllm-serve-drafting.json", "vllm", (0.8, 0.5), 50),
    ],
)
def test_what_is_counted_by_place_is_the_share_of_those_that_got_there(name, engine, rates, rounds):
    (found,) = read(name).acceptance
    assert (found.engine, found.how, found.num_rounds) == (engine, "by position", rounds)
    assert found.rates == pytest.approx(rates)


def test_files_of_one_name_are_told_apart_by_their_folders_and_one_given_twice_counts_once(tmp_path):
    for folder in ("monday", "tuesday"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.txt").write_bytes((PAGES / "vllm-metrics.txt").read_bytes())
    monday, tuesday = (tmp_path / folder / "metrics.txt" for folder in ("monday", "tuesday"))
    again = tmp_path / "tuesday" / ".." / "monday" / "metrics.txt"
    found = import_files([monday, tuesday, PAGES / "trtllm-metrics.txt", again], Told(window=4))
    assert [one.source for one in found.acceptance] == [
        "monday/metrics.txt",
        "tuesday/metrics.txt",
        "trtllm-metrics.txt",
    ]
    assert found.repeated == (f"{again} is the same file as {monday}: it was read once.",)
    assert import_files([monday, monday], Told()).repeated == (
        f"{monday} is the same file as {monday}: it was read once.",
    )


@pytest.mark.parametrize(
    ("name", "window", "mean"),
    [
        ("sglang-metrics.txt", 3, 2.5),
        ("trtllm-metrics.txt", 4, 3.0),
        # 40 rounds: 60 accepted tokens of 120 drafted ones, and one token each; the first of each answer came before
        ("llama-server-answers.jsonl", 3, 100 / 40),
        ("sglang-answer.json", 3, 2.5),
    ],
)
def test_what_is_counted_as_a_mean_is_one_rate_that_comes_to_it(name, window, mean):
    (found,) = read(name).acceptance
    assert (len(found.rates), len({*found.rates})) == (window, 1)
    assert found.mean_acceptance_length == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize(
    ("drafted", "accepted", "new", "window", "rate"),
    [
        (75, 68, 101, 2, 0.9442),  # 32 rounds of 2.34 drafted tokens, which commit 3.125
        (240, 160, 261, 2, 0.7866),  # 1 + r + r^2 + 0.4 r^3 = 2.6
        (60, 40, 141, 1, 2 / 3),
    ],
)
def test_drafts_of_several_lengths_are_counted_by_their_mean(drafted, accepted, new, window, rate, tmp_path):
    timings = {"draft_n": drafted, "draft_n_accepted": accepted, "predicted_n": new}
    (tmp_path / "answer.json").write_text(json.dumps({"timings": timings}))
    (found,) = import_files([tmp_path / "answer.json"], Told()).acceptance
    assert found.rates == pytest.approx((rate,) * window, abs=1e-4)
    rounds = new - accepted - 1
    assert found.entry["mean_acceptance_length"] == pytest.approx(1 + accepted / rounds), "what the file tells"
    assert found.entry["drafted"] == drafted / rounds
    mean = f"{1 + accepted / rounds:.2f} tokens per verification with {drafted / rounds:.3g} drafted on average"
    told = f"{mean}; at these rates, "
    assert found.in_words.startswith(told) == (drafted % rounds > 0)


HISTOGRAMS = {
    "vllm": "num_spec_steps num_accepted_draft_tokens num_draft_tokens acceptance_histogram",
    "sglang": "spec_verify_ct spec_num_correct_drafts spec_num_proposed_drafts spec_correct_drafts_histogram",
}


@pytest.mark.parametrize("engine", HISTOGRAMS)
@pytest.mark.parametrize(
    ("answers", "rates"),
    [
        ([(40, 60, [10, 10, 10, 10])], (3 / 4, 2 / 3, 1 / 2)),
        ([(38, 54, [10, 10, 10, 8]), (2, 6, [0, 0, 0, 2])], (3 / 4, 2 / 3, 1 / 2)),
        ([(40, 50, [10, 10, 20]), (10, 0, [10])], (3 / 5, 2 / 3, 0)),  # a list ends where nothing more was accepted
        ([(40, 60, None)], (0.69, 0.69, 0.69)),
        ([(40, 60, [10, 30, 10])], (0.69, 0.69, 0.69)),  # of other steps than were counted
        ([(10, 28, [3, 0, 0, 0, 7])], (0.966, 0.966, 0.966)),  # some drafts are longer than three tokens
    ],
)
def test_histograms_of_answers_tell_acceptance_by_position(engine, answers, rates, tmp_path):
    """A histogram counts steps by how many of their three drafted tokens were accepted."""
    lines = []
    for steps, accepted, histogram in answers:
        told = dict(zip(HISTOGRAMS[engine].split(), (steps, accepted, 3 * steps, histogram), strict=True))
        lines.append({"meta_info": told} if engine == "sglang" else {"metrics": {"speculative_decoding": told}})
    (tmp_path / "answers.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (found,) = import_files([tmp_path / "answers.jsonl"], Told()).acceptance
    assert found.rates == pytest.approx(rates, abs=0.005)


def test_drafts_are_as_long_as_what_was_accepted_of_them_whatever_is_said(tmp_path):
    told = {"num_spec_steps": 4, "num_accepted_draft_tokens": 15, "per_step_accepted": [5, 5, 5, 0]}
    (tmp_path / "answer.json").write_text(json.dumps({"metrics": {"speculative_decoding": told}}))
    (found,) = import_files([tmp_path / "answer.json"], Told(window=3)).acceptance
    assert found.rates == (3 / 4, 1, 1, 1, 1)


def test_iterations_of_tensorrt_llm_are_added_up_but_not_what_other_ranks_repeat(tmp_path):
    stats = {"numDraftTokens": 30, "numAcceptedTokens": 18, "numRequestsWithDraftTokens": 10, "acceptanceLength": 2.8}
    idle = dict.fromkeys(stats, 0)
    entries = [{"iter": 1}, {"iter": 2, "specDecodingStats": stats}, {"iter": 3, "specDecodingStats": idle}]
    entries += [
        {"iter": 3, "attentionDpRank": rank, "specDecodingStats": stats | {"numAcceptedTokens": 6}} for rank in (0, 1)
    ]
    (tmp_path / "metrics.json").write_text(json.dumps(entries))
    (found,) = import_files([tmp_path / "metrics.json"], Told()).acceptance
    assert (found.engine, found.num_rounds, len(found.rates)) == ("tensorrt-llm", 20, 3)
    assert found.mean_acceptance_length == pytest.approx(1 + (18 + 6) / 20)


@pytest.mark.parametrize(
    ("lengths", "calls", "mean"),
    [
        ((2.6, 2.8), (1000, 3000), 2.75),
        ((2.6, 2.8), (), 2.7),
        ((2.6, 0.0), (), 2.6),
        ((2.6, 0.0), (1000, 0), 2.6),
        ((2.6, 1.0), (1000,), 2.6),  # SGLang counts from the first verification on
        ((2.6, 0.0, 2.8), (1000, 0, 3000), 2.75),
    ],
)
def test_accept_lengths_of_several_ranks_are_weighed_by_what_each_verified(lengths, calls, mean, tmp_path):
    """Each of two workers that compute a pass of a rank together tells all of it."""
    told = {"accept_length": lengths, "verify_calls_total": calls}
    lines = [
        f'sglang:spec_{name}{{tp_rank="{2 * rank + worker}",dp_rank="{rank}"}} {value}'
        for name, values in told.items()
        for rank, value in enumerate(values)
        for worker in range(2)
    ]
    (tmp_path / "metrics").write_text("\n".join(lines))
    (found,) = import_files([tmp_path / "metrics"], Told(window=3)).acceptance
    assert found.mean_acceptance_length == pytest.approx(mean)
    assert found.num_rounds == (sum(calls) or None)


COUNTED = {"num_drafts": 1000, "num_accepted_tokens": 1560, "num_draft_tokens": 1900}


BY_PLACE = (850, 370, 340, 0)


@pytest.mark.parametrize("engine", ["vllm", "llamacpp"])
def test_a_token_that_was_not_drafted_was_not_refused(engine, tmp_path):
    """So drafts that ended before the last place are counted by their mean, as without counts by place."""
    totals = [f"{engine}:spec_decode_{name}_total {count}" for name, count in COUNTED.items()]
    of_place = f"{engine}:spec_decode_num_accepted_tokens_per_pos_total"
    places = [f'{of_place}{{position="{place}"}} {count}' for place, count in enumerate(BY_PLACE)]
    (tmp_path / "places").write_text("\n".join(totals + places))
    (tmp_path / "means").write_text("\n".join(totals))
    (found,), (mean,) = (import_files([tmp_path / name], Told()).acceptance for name in ("places", "means"))
    assert (found.rates, found.how) == (mean.rates, "one rate from the mean")


@pytest.mark.parametrize(("drafted", "how"), [(1900, "one rate from the mean"), (4000, "by position")])
def test_a_serving_benchmark_counts_drafts_that_ended_early_by_their_mean(drafted, how, tmp_path):
    run = {"model_id": "m", "max_concurrency": 1, "completed": 8, "median_itl_ms": 14.0, "total_input_tokens": 4096}
    run |= {"spec_decode_num_drafts": 1000, "spec_decode_accepted_tokens": 1560, "spec_decode_draft_tokens": drafted}
    shares = [count / 1000 for count in BY_PLACE]
    (tmp_path / "run").write_text(json.dumps(run | {"spec_decode_per_position_acceptance_rates": shares}))
    (tmp_path / "bare").write_text(json.dumps(run | {"spec_decode_per_position_acceptance_rates": []}))
    (found,), (mean,) = (import_files([tmp_path / name], Told()).acceptance for name in ("run", "bare"))
    assert (found.how, mean.how) == (how, "one rate from the mean")
    assert (found.num_rounds, mean.num_rounds) == (1000, 1000)


@pytest.mark.parametrize(
    "row",
    [
        {"max_concurrency": 2, "completed": 4, "total_input_tokens": 400, "median_itl_ms": 9.0, "accept_length": 2.5},
        {"batch_size": 2, "input_len": 256, "output_len": 11, "latency": 0.3, "last_ttft": 0.1, "acc_length": 2.5},
    ],
    ids=["serving", "one batch"],
)
def test_acceptance_of_a_benchmark_of_sglang_needs_the_window_and_takes_it(row, tmp_path):
    (tmp_path / "s.jsonl").write_text(json.dumps(row))
    with pytest.raises(MirrorsdError, match="give the number, such as --window 4"):
        import_files([tmp_path / "s.jsonl"], Told())
    (found,) = import_files([tmp_path / "s.jsonl"], Told(window=4)).acceptance
    assert len(found.rates) == 4
    assert found.mean_acceptance_length == pytest.approx(2.5)
