"""A lane whose target is on two ranks: real processes, the texts of one rank, and lanes that end when a rank does.

In float32 two ranks add up the same numbers as one, in another order: their logits differ in last bits, and where the
two best are as near as that either may win. So texts of two ranks are compared with those of one where no token was a
near tie. What is compared to the last bit, in bfloat16 too, is what speculation promises: the text of the same group
decoding plainly.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from decoding.errors import ConfigError, LaneDiedError, LaneError, ModelError
from decoding.schedule import Schedule
from runtime.drafters.registry import find_drafter
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.tokenizer import Tokenizer
from runtime.verification.replayed_text import ReplayedText
from runtime.wire.measurement import Measurement
from runtime.worker.server import LaneServer
from tests.runtime import plain
from tests.runtime.engine.schedules import (
    AUTOREGRESSIVE,
    NEAR_TIE,
    PROMPT,
    SCHEDULES,
    for_folders,
    new_engine,
    on_lanes,
)
from tests.tiny_models import EOS, VOCAB_SIZE

DEADLINE_S = 60.0
ROOT = Path(__file__).parents[3]
BIG, TWO = "big-2ranks", "two-2ranks"
DRAFT, EXITS = "smollm2-135m-draft4", "smollm2-135m-exits"
pytestmark = pytest.mark.usefixtures("forked_lanes")

PLAIN = on_lanes(AUTOREGRESSIVE, BIG)
_DRAW = random.Random(3)
PROMPTS = [[_DRAW.randrange(VOCAB_SIZE) for _ in range(_DRAW.randint(1, 8))] for _ in range(5)]


@pytest.fixture(scope="module")
def engine(tiny_folders, forked_lanes):
    with new_engine(tiny_folders, lanes=(BIG, "small")) as engine:
        yield engine


def schedules_for(folders):
    return [(name, for_folders(on_lanes(schedule, BIG), folders)) for name, schedule in SCHEDULES.items()]


def followers_of(process_id):
    found = subprocess.run(["pgrep", "-P", str(process_id)], capture_output=True, check=False, text=True)
    return list(map(int, found.stdout.split()))


def is_running(process_id):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(process_id)], capture_output=True, check=False, text=True)
    return bool(state.stdout.strip()) and "Z" not in state.stdout


def ended(process_ids):
    deadline = time.monotonic() + DEADLINE_S
    while any(map(is_running, process_ids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not any(map(is_running, process_ids))


def test_greedy_text_is_that_of_one_rank(engine, tiny_folders):
    expected = {tuple(prompt): plain.continue_text(tiny_folders.decoder, prompt, 20, eos=(EOS,)) for prompt in PROMPTS}
    certain = {
        prompt: text
        for prompt, text in expected.items()
        if plain.smallest_margin(tiny_folders.decoder, prompt, text) > NEAR_TIE
    }
    assert len(certain) >= 3
    for name, schedule in schedules_for(tiny_folders):
        for prompt, text in list(certain.items())[:2]:
            assert list(engine.generate(schedule, prompt, max_new_tokens=20).tokens) == text, name


def test_text_in_bfloat16_is_that_of_the_same_group_decoding_plainly(tiny_folders):
    with new_engine(tiny_folders, lanes=(BIG, "small"), dtype="bfloat16") as engine:
        for prompt in PROMPTS[:2]:
            expected = engine.generate(PLAIN, prompt, max_new_tokens=20).tokens
            for name, schedule in schedules_for(tiny_folders):
                assert engine.generate(schedule, prompt, max_new_tokens=20).tokens == expected, name


def test_sampled_text_is_that_of_the_same_group_sampling_plainly(engine, tiny_folders):
    for seed in range(3):
        sampled = {"max_new_tokens": 20, "temperature": 1.0, "seed": seed}
        expected = engine.generate(PLAIN, PROMPT, **sampled).tokens
        for name, schedule in schedules_for(tiny_folders):
            if name in ("speculative", "hybrid mirror"):
                assert engine.generate(schedule, PROMPT, **sampled).tokens == expected, name


def test_the_self_test_of_exact_text_passes(engine):
    assert engine.row_invariance(BIG).is_invariant


@pytest.mark.parametrize("part", ["verify", "verify_tree", "lm_head", "exit", "prefill"])
def test_every_part_of_the_target_can_be_timed(engine, part):
    lane = engine.load_target(BIG)
    measurement = Measurement(part=part, rows=4, context=20, repeats=3, exit_layer=2 if part == "exit" else None)
    seconds = lane.measure(measurement)
    assert len(seconds) == 3
    assert min(seconds) > 0


def test_what_cannot_be_loaded_leaves_a_lane_that_serves(engine, tiny_folders, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="has neither architectures nor"):
        engine.load_draft(BIG, str(tmp_path))
    assert engine.generate(PLAIN, PROMPT, max_new_tokens=3).tokens


def test_streams_of_a_split_target_are_refused(engine, tiny_folders):
    with pytest.raises(LaneError, match="on 2 ranks"):
        engine.load_streams(BIG, str(tiny_folders.drafter))


def test_a_group_of_more_ranks_than_heads_is_refused(tiny_folders):
    lanes = [LaneSpec(name="big-3ranks")]
    with Engine(tiny_folders.target, lanes=lanes) as engine, pytest.raises(ModelError, match="num_kv_heads 2"):
        engine.load_target("big-3ranks")


def test_a_lanes_name_says_its_ranks():
    assert [LaneSpec(name=name).num_ranks for name in ("cpu0+1", "cpu0+1-2ranks", "cpu0-1rank")] == [1, 2, 1]
    with pytest.raises(ConfigError, match="has no ranks"):
        LaneSpec(name="cpu0-0ranks")
    with pytest.raises(ConfigError, match="several ranks compute by torch on cores or GPUs, not by OpenVINO"):
        LaneSpec(name="openvino:CPU-2ranks")


def test_a_rank_that_is_killed_ends_the_lane_and_the_next_call_starts_it_again(tiny_folders):
    """And the others end with rank 0, and all of them with the engine."""
    with new_engine(tiny_folders, lanes=(BIG, "small")) as engine:
        expected = engine.generate(PLAIN, PROMPT, max_new_tokens=5).tokens
        leader = engine.lane(BIG).process_id
        [follower] = followers_of(leader)
        os.kill(follower, signal.SIGKILL)
        with pytest.raises(LaneDiedError, match="group of 2 ranks is lost"):
            engine.generate(PLAIN, PROMPT, max_new_tokens=5)
        assert ended([leader])
        assert engine.generate(PLAIN, PROMPT, max_new_tokens=5).tokens == expected
        leader = engine.lane(BIG).process_id
        [follower] = followers_of(leader)
        os.kill(leader, signal.SIGKILL)
        assert ended([follower])
        engine.lane(BIG)._process.wait(10)
        assert engine.generate(PLAIN, PROMPT, max_new_tokens=5).tokens == expected
        leader = engine.lane(BIG).process_id
        processes = [leader, *followers_of(leader)]
    assert len(processes) == 2
    assert ended(processes)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prctl")
@pytest.mark.parametrize("how", ["kill", "close"])
def test_a_rank_that_hangs_ends_with_its_lane(tiny_folders, how):
    with new_engine(tiny_folders, lanes=(BIG,)) as engine:
        lane = engine.load_target(BIG)
        [follower] = followers_of(lane.process_id)
        os.kill(follower, signal.SIGSTOP)
        if how == "kill":
            lane.kill("it was late")
        else:
            lane.close()
            with pytest.raises(LaneDiedError, match="it was closed$"):  # rank 0 need not be killed
                lane.request(LaneServer.ping).result()
    assert ended([follower])


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's prctl")
def test_a_rank_that_starts_after_rank_0_has_ended_ends():
    options = ["--rank", "1", "--ranks", "2", "--leader", "0", "--device", "cpu", "--threads", "1", "--store", "1"]
    command = [sys.executable, "-m", "runtime.worker.process", *options]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (1, "rank 0 has ended before the other ranks had begun\n")


def test_a_shape_with_random_weights_is_replayed(tiny_folders, tmp_path):
    config = json.loads((tiny_folders.target / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"mirrorsd_random_weights": 0}))
    words, known = (9, 8, 7, 6, 5, 4, 3, 1), (True,) * 8
    text = ReplayedText(prompt_length=len(PROMPT), text=words, drafted=words, in_draft=known, in_exit=known)
    with Engine(tmp_path, lanes=[LaneSpec(name=BIG)], dtype="float32") as engine:
        found = engine.replay(PLAIN, PROMPT, text)
    assert found.tokens == words
    assert found.trace.label == "random weights, replayed acceptance"


def test_the_embedded_model_writes_on_two_ranks_what_it_writes_on_one(embedded_model_folder):
    """Nine query heads and three of keys and values: shares of one third and two thirds."""
    prompt = Tokenizer.from_folder(embedded_model_folder).encode_chat(
        [{"role": "user", "content": "What is a lighthouse?"}]
    )
    lanes = [LaneSpec(name="one"), LaneSpec(name=TWO)]
    split = {"target_lane": TWO, "draft_lane": "one", "num_speculative_tokens": 3, "drafter": DRAFT}
    schedules = {
        "one rank": Schedule(method="autoregressive", target_lane="one"),
        "plain": Schedule(method="autoregressive", target_lane=TWO),
        "synchronous": Schedule(method="speculative", **split),
        "mirror": Schedule(method="mirror", root_source="exit", exit_layer=20, exit_top_k=2, **split),
    }
    exits = find_drafter(EXITS)
    with Engine(
        embedded_model_folder, lanes=lanes, exits_folder=exits, dtype="float32", draft_deadline_s=DEADLINE_S
    ) as engine:
        texts = {name: engine.generate(one, prompt, max_new_tokens=16).tokens for name, one in schedules.items()}
    assert len(texts["one rank"]) == 16
    assert set(texts.values()) == {texts["one rank"]}
