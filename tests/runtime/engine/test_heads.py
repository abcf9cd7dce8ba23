"""Every kind of head from its own folder, and streams of the target: the text is that of plain decoding."""

import json

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from decoding import metrics
from decoding.errors import ConfigError, LaneError, ModelError, ModelFormatError
from decoding.schedule import Schedule
from decoding.trace import Work
from runtime.backends.eager import EagerBackend
from runtime.backends.lane_device import Device
from runtime.drafters.registry import DrafterContext, load_drafter
from runtime.verification.rules import Sampling, seed_of
from runtime.wire.measurement import Measurement
from runtime.worker.torch_models import TorchModels
from tests.runtime import plain
from tests.runtime.drafters.folders.kinds import save_head
from tests.runtime.engine.schedules import NEAR_TIE, PROMPT, new_engine
from tests.runtime.thread_lanes import thread_engine
from tests.tiny_heads import PATHS
from tests.tiny_models import EOS, VOCAB_SIZE

HEADS = ("medusa", "hydra", "eagle2", "eagle3")
METHODS = (*HEADS, "speculative_streaming")


@pytest.fixture(scope="module")
def folders(tiny_folders, tmp_path_factory):
    """By method: the folder of its drafter."""
    root, target = tmp_path_factory.mktemp("heads"), tiny_folders.decoder
    (root / "chain").symlink_to(tiny_folders.drafter)
    for kind in ("medusa", "hydra", "eagle3"):
        save_head(kind, target, root / kind)
    save_head("eagle1", target, root / "eagle2", feature_layers=())
    paths = tuple(path for path in PATHS if len(path) <= 3)
    save_head("streams", target, root / "speculative_streaming", paths=paths)
    return root


def schedule_of(folders, method, **options):
    fields = {
        "draft_lane": None if method == "speculative_streaming" else "small",
        "num_speculative_tokens": 3,
        "tree_size": 9,
        "tree_top_k": 3 if method in ("eagle2", "eagle3") else 0,
        "drafter": str(folders / method),
    }
    return Schedule(method=method, target_lane="big", **fields | options)


@pytest.fixture(scope="module")
def engine(tiny_folders):
    with thread_engine(tiny_folders.target) as engine:
        yield engine


@pytest.mark.parametrize("method", METHODS)
@given(prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=8), max_new_tokens=st.integers(1, 25))
@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_greedy_text_is_that_of_plain_decoding(engine, folders, tiny_folders, method, prompt, max_new_tokens):
    expected = plain.continue_text(tiny_folders.decoder, prompt, max_new_tokens, eos=(EOS,))
    assume(plain.smallest_margin(tiny_folders.decoder, prompt, expected) > NEAR_TIE)
    found = engine.generate(schedule_of(folders, method), prompt, max_new_tokens=max_new_tokens)
    assert list(found.tokens) == expected
    assert found.trace.events == []


@pytest.mark.parametrize("method", METHODS)
def test_drafted_trees_are_accepted_in_part(engine, folders, method):
    traces = [
        engine.generate(schedule_of(folders, method), [token, 9, 4], max_new_tokens=25).trace for token in range(6)
    ]
    assert metrics.mean_acceptance_length(traces) > 1.03
    assert max(entry.num_drafted for trace in traces for entry in trace.rounds) == 9


@pytest.mark.parametrize("method", HEADS)
def test_a_head_in_the_targets_own_lane_says_the_same(engine, folders, method):
    split, pooled = (
        engine.generate(schedule_of(folders, method, draft_lane=lane), PROMPT, max_new_tokens=25, eos_token_ids=())
        for lane in ("small", "big")
    )
    assert split.tokens == pooled.tokens
    assert [entry[2:] for entry in split.trace.rounds] == [entry[2:] for entry in pooled.trace.rounds]


@pytest.mark.parametrize("method", METHODS)
def test_sampled_text_under_match_is_that_of_plain_sampling(engine, folders, tiny_folders, method):
    for seed in range(3):
        sampling = Sampling("match", 1.0, seed_of(seed, PROMPT))
        expected = plain.continue_text(tiny_folders.decoder, PROMPT, 20, sampling, eos=(EOS,))
        found = engine.generate(schedule_of(folders, method), PROMPT, max_new_tokens=20, temperature=1.0, seed=seed)
        assert list(found.tokens) == expected


def test_every_round_of_streaming_is_one_span(engine, folders):
    found = engine.generate(schedule_of(folders, "speculative_streaming"), PROMPT, max_new_tokens=20, eos_token_ids=())
    rounds, spans = found.trace.rounds, found.trace.spans
    assert {span.work for span in spans} == {Work.STREAM}
    assert [span.round for span in spans] == list(range(len(rounds)))
    assert [entry.num_drafted for entry in rounds] == [0] + [9] * (len(rounds) - 1)
    assert [span.rows for span in spans] == [entry.num_drafted + 1 for entry in rounds]


@pytest.mark.parametrize("method", ["eagle3", "speculative_streaming"])
def test_lanes_that_are_processes_run_heads_too(tiny_folders, folders, method, forked_lanes):
    expected = plain.continue_text(tiny_folders.decoder, PROMPT, 20)
    with new_engine(tiny_folders) as engine:
        found = engine.generate(schedule_of(folders, method), PROMPT, max_new_tokens=20, eos_token_ids=())
    assert (list(found.tokens), found.trace.events) == (expected, [])


@pytest.mark.parametrize(
    ("method", "folder", "message"),
    [
        ("medusa", "hydra", "method is medusa, but the drafter hydra is one for hydra"),
        ("medusa", "chain", "method is medusa, but the drafter chain is one for speculative or mirror"),
        ("eagle2", "eagle3", "method is eagle2, but the drafter eagle3 is one for eagle3"),
        ("eagle3", "speculative_streaming", "by the method speculative_streaming"),
        ("speculative_streaming", "medusa", "needs streams of the target .mirrorsd_streams., found 'mirrorsd_medusa'"),
    ],
)
def test_a_method_and_a_drafter_that_do_not_fit_are_refused(engine, folders, method, folder, message):
    schedule = schedule_of(folders, method, drafter=str(folders / folder))
    with pytest.raises(ConfigError, match=message):
        engine.generate(schedule, PROMPT, max_new_tokens=4)


def context_of(folders):
    return DrafterContext(
        target_folder=folders.target,
        dtype=torch.float32,
        load_target=lambda: folders.decoder,
        new_backend=EagerBackend,
    )


@pytest.mark.parametrize("kind", ["mirrorsd_exits", "eagle9", None])
def test_a_folder_of_no_known_kind_is_refused(tiny_folders, tmp_path, kind):
    (tmp_path / "config.json").write_text(json.dumps({"speculators_model_type": kind}))
    with pytest.raises(ModelFormatError, match=f"config.json: .*{kind}.* known kinds: mirrorsd_draft, mirrorsd_medusa"):
        load_drafter(tmp_path, context_of(tiny_folders))


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"medusa_num_heads": 3, "medusa_num_layers": 1}, "expected medusa_lm_head.safetensors"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "config.json"),
        ({"architectures": ["Eagle3MixtralForCausalLM"]}, "not that of a published EAGLE-3 head"),
    ],
)
def test_published_heads_are_known_by_their_configs(tiny_folders, tmp_path, config, complaint):
    """Their loaders complain here, for there is nothing else in the folder."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=complaint) as caught:
        load_drafter(tmp_path, context_of(tiny_folders))
    assert "known kinds" not in str(caught.value)


def test_a_config_that_is_no_json_is_refused(tiny_folders, tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFormatError, match=r"config\.json: not valid JSON"):
        load_drafter(tmp_path, context_of(tiny_folders))


@pytest.mark.parametrize("method", HEADS)
def test_a_step_of_every_head_can_be_timed_and_no_other(engine, folders, method):
    lane = engine.load_draft("small", str(folders / method))
    for rows, context in [(1, 30), (6, 8)]:
        measurement = Measurement(part="head_step", rows=rows, context=context, repeats=2)
        assert len(lane.measure(measurement)) == 2
    with pytest.raises(LaneError, match="is a head, its part is head_step"):
        lane.measure(Measurement(part="draft_step"))


def test_streaming_can_be_timed_where_there_are_streams(tiny_folders, folders):
    measurement = Measurement(part="stream", rows=9, context=20, repeats=2)
    with thread_engine(tiny_folders.target) as engine:
        lane = engine.load_target("big")
        with pytest.raises(LaneError, match="loaded no streams"):
            lane.measure(measurement)
        assert len(engine.load_streams("big", str(folders / "speculative_streaming")).measure(measurement)) == 2


def test_streams_are_refused_where_keys_are_not_open_before_anything_is_loaded(tiny_folders, folders):
    """A GPU's captured calls stay as they are: its lane serves what is asked for next."""
    schedule = schedule_of(folders, "speculative_streaming").model_copy(update={"target_lane": "openvino:CPU"})
    with thread_engine(tiny_folders.target, lanes=("openvino:CPU",)) as engine:
        with pytest.raises(ConfigError, match="needs a lane of torch, such as cpu0: streams read the KV cache, which"):
            engine.generate(schedule, PROMPT, max_new_tokens=4)
        assert not engine.lane("openvino:CPU").is_alive
    models = TorchModels(Device.of_lane("cuda:0"), num_threads=1)
    models.decoder = tiny_folders.decoder
    with pytest.raises(LaneError, match="streams of a target need a lane of torch: captured calls hide the keys"):
        models.load_streams(folders / "speculative_streaming")
