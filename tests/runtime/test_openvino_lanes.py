"""Compiled lanes: every schedule's text is that of plain decoding in the same lane, to the last token."""

import os
import signal

import pytest
from numpy.random import default_rng

from decoding.errors import LaneError, LaneTimeoutError
from runtime.backends.lane_device import Device
from runtime.backends.openvino.compiled_decoder import CompiledDecoder
from runtime.backends.openvino.compiler import Compiler
from runtime.drafters.head_drafter import save_tree_heads
from runtime.drafters.medusa import MedusaFolderConfig
from runtime.lanes import lane_calls, lane_set
from runtime.lanes.lane import Lane
from runtime.lanes.sequence_lanes import Listener
from runtime.target.target_model import TargetModel
from runtime.wire.measurement import Measurement
from runtime.worker.roles import DraftRole
from tests.runtime.engine.schedules import AUTOREGRESSIVE, CHAINS, PROMPT, SCHEDULES, for_folders, new_engine, on_lanes
from tests.runtime.plain import continue_text
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_all
from tests.tiny_heads import tiny_medusa
from tests.tiny_models import VOCAB_SIZE, tiny_target

pytestmark = pytest.mark.usefixtures("own_cache")
TARGET, DRAFT = "openvino:CPU@0", "openvino:CPU@1"
PLAIN = on_lanes(AUTOREGRESSIVE, TARGET)


def chain(name, folders):
    return on_lanes(for_folders(SCHEDULES[name], folders), TARGET, DRAFT)


MODELS = {
    "grouped queries": {},
    "norms of queries and keys": {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "num_kv_heads": 4},
}


@pytest.fixture(
    scope="module",
    params=[("grouped queries", "bfloat16"), ("norms of queries and keys", "int8"), ("grouped queries", "int4")],
)
def engine_and_folders(request, tmp_path_factory):
    model, dtype = request.param
    folders = save_all(tiny_target(**MODELS[model], max_position=400), tmp_path_factory.mktemp("models"))
    with thread_engine(folders.target, dtype=dtype, lanes=(TARGET, DRAFT), exits_folder=folders.exits) as engine:
        yield engine, folders


def test_every_schedule_writes_the_text_of_plain_decoding(engine_and_folders):
    """A text that moves into larger buffers on the way."""
    engine, folders = engine_and_folders
    prompt = default_rng(0).integers(3, VOCAB_SIZE, 195).tolist()
    sizes = [Device.of_lane(TARGET).num_slots(count) for count in (len(prompt) + 10, len(prompt) + 50)]
    assert sizes[0] < sizes[1]
    expected = engine.generate(PLAIN, prompt, max_new_tokens=60, eos_token_ids=())
    assert len(set(expected.tokens)) > 5
    for name in CHAINS:
        found = engine.generate(chain(name, folders), prompt, max_new_tokens=60, eos_token_ids=())
        assert found.tokens == expected.tokens, name
        assert found.trace.events == [], name
        # the draft is the target, a little blurred: if it were fed wrongly, nothing would be accepted
        assert len(found.trace.rounds) < 0.9 * 60, name
    assert engine.row_invariance(TARGET).is_invariant


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(part="verify", rows=5, context=20),
        Measurement(part="verify_tree", rows=6, context=20),
        Measurement(part="lm_head", rows=2, context=20),
        Measurement(part="exit", rows=3, context=20, exit_layer=2),
        Measurement(part="prefill", rows=40),
        Measurement(part="draft_step", rows=1, context=20),
        Measurement(part="draft_step", rows=4, context=140, num_alternatives=2),
        Measurement(part="draft_step", rows=3, context=20, with_features=True),
        Measurement(part="draft_prefill", rows=20),
    ],
    ids=lambda one: f"{one.part}-{one.rows}",
)
def test_every_part_can_be_timed(engine_and_folders, measurement):
    engine, folders = engine_and_folders
    engine.load_target(TARGET)
    lane = engine.load_draft(TARGET, str(folders.feature_drafter))
    seconds = lane.measure(measurement)
    assert len(seconds) == measurement.repeats
    assert min(seconds) > 0


def test_a_second_text_compiles_nothing(long_folders, monkeypatch):
    """Lanes are threads here, so that graphs can be counted."""
    names, compile_graph = [], Compiler.compiled

    def counted(self, model):
        names.append(model.get_friendly_name())
        return compile_graph(self, model)

    monkeypatch.setattr(Compiler, "compiled", counted)
    monkeypatch.setattr("runtime.backends.openvino.buckets.COPIES_BYTES", 0)
    monkeypatch.setattr(CompiledDecoder, "_probed_floor", 1)  # nothing is compiled for a probe
    schedule = chain("mirror with features", long_folders)
    options = {"dtype": "bfloat16", "lanes": (TARGET, DRAFT), "exits_folder": long_folders.exits}
    with thread_engine(long_folders.target, **options) as engine:
        engine.generate(schedule, PROMPT, max_new_tokens=24, eos_token_ids=())
        of_target = ["layers 1 to 2", "layers 3 to 4"]
        of_draft = ["layers 1 to 2", "layers 3 to 4"]
        # heads of target, exits and draft, what fuses features, and the three products of an adapter
        heads = ["a head"] * (3 + 1 + 3)
        assert sorted(names) == sorted([*of_target, *of_draft, *heads])
        names.clear()
        engine.generate(schedule, PROMPT, max_new_tokens=150, eos_token_ids=())
        assert names == []


def test_work_aside_in_every_rest_leaves_the_text_as_it_is(engine_and_folders):
    engine, folders = engine_and_folders
    anchor = Measurement(part="verify", rows=1, context=130, warm_up=0, is_aside=True)
    schedule = chain("mirror with features", folders)
    rests: list[float] = []

    def at_rest():
        for lane in (TARGET, DRAFT):
            rests.extend(engine.load_target(lane).measure(anchor))
        engine.load_target(TARGET).request(TargetModel.lay_out_again).result()

    expected = engine.generate(schedule, PROMPT, max_new_tokens=40, eos_token_ids=())
    found = engine.generate(schedule, PROMPT, max_new_tokens=40, eos_token_ids=(), listener=Listener(at_rest=at_rest))
    assert found.tokens == expected.tokens
    assert [one.outcome for one in found.trace.rounds] == [one.outcome for one in expected.trace.rounds]
    assert len(rests) == 2 * len(found.trace.rounds)


def test_streams_need_a_lane_of_torch(engine_and_folders):
    engine, _ = engine_and_folders
    with pytest.raises(LaneError, match="streams of a target need a lane of torch"):
        engine.load_streams(TARGET, "smollm2-135m-streams")


@pytest.fixture(scope="module")
def engine_without_torch(long_folders, tmp_path_factory):
    """Importing torch is an error in the processes of its lanes."""
    folder = tmp_path_factory.mktemp("modules") / "torch"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise ImportError('torch was imported')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder.parent))
        patch.setattr(lane_set, "Lane", Lane)
        with new_engine(long_folders, lanes=(TARGET, DRAFT)) as engine:
            yield engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lanes_of_graphs_need_no_torch(engine_without_torch, long_folders, temperature):
    engine, verification = engine_without_torch, {"verification": "match" if temperature else "greedy"}

    def text_of(schedule):
        sampled = {"temperature": temperature, "seed": 3, "eos_token_ids": ()}
        return engine.generate(schedule.model_copy(update=verification), PROMPT, max_new_tokens=20, **sampled)

    expected = text_of(PLAIN).tokens
    for name in CHAINS:
        found = text_of(chain(name, long_folders))
        assert found.tokens == expected, name
        assert len(found.trace.rounds) < 20, name
    assert engine.row_invariance(TARGET).is_invariant
    for lane in (TARGET, DRAFT):
        draft = engine.load_draft(lane, str(long_folders.drafter))
        assert draft.measure(Measurement(part="draft_step", rows=1, context=9))
    if not temperature:
        assert list(expected) == continue_text(long_folders.decoder, PROMPT, 20)


def test_a_head_of_the_target_brings_torch_to_its_lane(engine_without_torch, long_folders, tmp_path):
    target = long_folders.decoder
    named = {"target": target, "target_name": "tiny", "metadata": {}}
    save_tree_heads(MedusaFolderConfig, tiny_medusa(target), [(0,), (0, 0)], tmp_path / "heads", **named)
    with pytest.raises(LaneError, match="torch was imported"):
        engine_without_torch.load_draft(TARGET, str(tmp_path / "heads"))


def test_a_draft_that_dies_over_its_preparation_leaves_the_text_as_it_is(
    engine_without_torch, long_folders, monkeypatch
):
    engine, schedule = engine_without_torch, chain("speculative", long_folders)
    expected = engine.generate(PLAIN, PROMPT, max_new_tokens=8, eos_token_ids=())
    lane, ask = engine.load_draft(DRAFT, schedule.drafter), Lane.request

    def request(self, method, *args, **options):
        if method is DraftRole.prepare:
            lane.kill("the test ends it")
        return ask(self, method, *args, **options)

    monkeypatch.setattr(Lane, "request", request)
    found = engine.generate(schedule, PROMPT, max_new_tokens=8, eos_token_ids=())
    assert found.tokens == expected.tokens
    [event] = found.trace.events
    assert "the test ends it" in event.text
    assert event.text.endswith("; the target goes on alone")


def test_a_target_that_hangs_before_its_preparation_is_ended(engine_without_torch, monkeypatch):
    engine = engine_without_torch
    process_id = engine.load_target(TARGET).process_id
    monkeypatch.setattr(lane_calls, "DRAFT_LOAD_DEADLINE_S", 0.25)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_target_deadline_s", 0.25)
        os.kill(process_id, signal.SIGSTOP)
        with pytest.raises(LaneTimeoutError, match=f"'{TARGET}' has not answered for 0.5 s"):
            engine.generate(PLAIN, PROMPT, max_new_tokens=8, eos_token_ids=())
    with pytest.raises(ProcessLookupError):
        os.kill(process_id, 0)
    assert len(engine.generate(PLAIN, PROMPT, max_new_tokens=8, eos_token_ids=()).tokens) == 8
