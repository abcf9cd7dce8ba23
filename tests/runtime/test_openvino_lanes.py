"""Compiled lanes: every schedule's text is that of plain decoding in the same lane, to the last token."""

from dataclasses import replace

import pytest

from decoding.errors import LaneError
from decoding.schedule import Schedule
from runtime.backends.openvino.compiler import Compiler
from runtime.drafters.medusa.folder import save_medusa
from runtime.engine import Engine
from runtime.lanes.lane import Lane, LaneSpec
from runtime.lanes.sequence_lanes import Listener
from runtime.wire.measurement import Measurement
from runtime.wire.operations import PrepareDraft
from tests.runtime.plain import continue_text
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_heads import tiny_medusa
from tests.tiny_models import tiny_target

TARGET, DRAFT = "openvino:CPU@0", "openvino:CPU@1"
PROMPT = [5, 17, 3, 44, 8]
SPLIT = {"target_lane": TARGET, "draft_lane": DRAFT}
SCHEDULES = {
    "speculative": Schedule(method="speculative", num_speculative_tokens=4, **SPLIT),
    "pooled": Schedule(method="speculative", num_speculative_tokens=3, **SPLIT | {"draft_lane": TARGET}),
    "with features": Schedule(method="speculative", num_speculative_tokens=3, exit_features=True, **SPLIT),
    "mirror from the exit": Schedule(
        method="mirror", num_speculative_tokens=3, root_source="exit", exit_layer=2, exit_top_k=4, **SPLIT
    ),
    "hybrid mirror": Schedule(
        method="mirror",
        num_speculative_tokens=3,
        root_source="hybrid",
        exit_layer=3,
        exit_top_k=2,
        draft_top_k=2,
        **SPLIT,
    ),
    "mirror with features": Schedule(
        method="mirror",
        num_speculative_tokens=3,
        root_source="exit",
        exit_layer=2,
        exit_top_k=3,
        exit_features=True,
        **SPLIT,
    ),
}
MODELS = {
    "grouped queries": {},
    "norms of queries and keys": {"architecture": "Qwen3ForCausalLM", "qk_norm": True, "num_kv_heads": 4},
}


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(
    scope="module",
    params=[("grouped queries", "bfloat16"), ("norms of queries and keys", "int8"), ("grouped queries", "int4")],
)
def engine_and_drafts(request, tmp_path_factory):
    model, dtype = request.param
    root = tmp_path_factory.mktemp("models")
    target = tiny_target(**MODELS[model], max_position=400)
    drafts = {
        False: save_draft_of(target, root / "drafter"),
        True: save_draft_of(target, root / "feature_drafter", exit_features=(1, 2)),
    }
    lanes = [LaneSpec(name=TARGET), LaneSpec(name=DRAFT)]
    exits = save_exits_of(target, root / "exits")
    folder = save_target(target, root / "target")
    with Engine(folder, lanes=lanes, exits_folder=exits, dtype=dtype, draft_deadline_s=60.0) as engine:
        yield engine, drafts


@pytest.mark.parametrize("num_tokens", [24, 150])
def test_every_schedule_writes_the_text_of_plain_decoding(engine_and_drafts, num_tokens) -> None:
    """The longer text moves into larger buffers on the way."""
    engine, drafts = engine_and_drafts
    plain = Schedule(method="autoregressive", target_lane=TARGET)
    expected = engine.generate(plain, PROMPT, max_new_tokens=num_tokens, eos_token_ids=())
    assert len(set(expected.tokens)) > 5
    for name, schedule in SCHEDULES.items():
        chosen = schedule.model_copy(update={"drafter": str(drafts[schedule.exit_features])})
        found = engine.generate(chosen, PROMPT, max_new_tokens=num_tokens, eos_token_ids=())
        assert found.tokens == expected.tokens, name
        assert found.trace.events == [], name
        # the draft is the target, a little blurred: if it were fed wrongly, nothing would be accepted
        assert len(found.trace.rounds) < 0.9 * num_tokens, name
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
def test_every_part_can_be_timed(engine_and_drafts, measurement) -> None:
    engine, drafts = engine_and_drafts
    engine.load_target(TARGET)
    lane = engine.load_draft(TARGET, str(drafts[True]))
    seconds = lane.measure(measurement)
    assert len(seconds) == measurement.repeats
    assert min(seconds) > 0


def test_a_second_text_compiles_nothing(tmp_path, monkeypatch) -> None:
    """Lanes are threads here, so that graphs can be counted."""
    target = tiny_target(max_position=400)
    folder, exits = save_target(target, tmp_path / "target"), save_exits_of(target, tmp_path / "exits")
    drafter = save_draft_of(target, tmp_path / "drafter", exit_features=(1, 2))
    names, compile_graph = [], Compiler.compiled

    def counted(self, model):
        names.append(model.get_friendly_name())
        return compile_graph(self, model)

    monkeypatch.setattr(Compiler, "compiled", counted)
    monkeypatch.setattr("runtime.backends.openvino.buckets.COPIES_BYTES", 0)
    schedule = SCHEDULES["mirror with features"].model_copy(update={"drafter": str(drafter)})
    with thread_engine(folder, dtype="bfloat16", lanes=(TARGET, DRAFT), exits_folder=exits) as engine:
        engine.generate(schedule, PROMPT, max_new_tokens=24, eos_token_ids=())
        of_target = ["layers 1 to 1", "layers 2 to 2", "layers 3 to 4"]
        of_draft = ["layers 1 to 2", "layers 3 to 4"]
        # heads of target, exits and draft, what fuses features, and the three products of an adapter
        probes, heads = ["layers 1 to 1"] * 2, ["a head"] * (3 + 1 + 3)
        assert sorted(names) == sorted([*of_target, *of_draft, *probes, *heads])
        names.clear()
        engine.generate(schedule, PROMPT, max_new_tokens=150, eos_token_ids=())
        assert names == []


def test_work_aside_in_every_rest_leaves_the_text_as_it_is(engine_and_drafts) -> None:
    engine, drafts = engine_and_drafts
    anchor = Measurement(part="verify", rows=1, context=130, warm_up=0, is_aside=True)
    schedule = SCHEDULES["mirror with features"].model_copy(update={"drafter": str(drafts[True])})
    rests: list[float] = []

    def at_rest() -> None:
        for lane in (TARGET, DRAFT):
            rests.extend(engine.load_target(lane).measure(anchor))
        rests.extend(engine.load_draft(DRAFT, schedule.drafter).measure(replace(anchor, part="draft_step")))

    expected = engine.generate(schedule, PROMPT, max_new_tokens=40, eos_token_ids=())
    found = engine.generate(schedule, PROMPT, max_new_tokens=40, eos_token_ids=(), listener=Listener(at_rest=at_rest))
    assert found.tokens == expected.tokens
    assert [one.outcome for one in found.trace.rounds] == [one.outcome for one in expected.trace.rounds]
    assert len(rests) == 3 * len(found.trace.rounds)


def test_a_draft_that_dies_over_its_preparation_leaves_the_text_as_it_is(engine_and_drafts, monkeypatch) -> None:
    engine, drafts = engine_and_drafts
    plain = Schedule(method="autoregressive", target_lane=TARGET)
    expected = engine.generate(plain, PROMPT, max_new_tokens=8, eos_token_ids=())
    schedule = SCHEDULES["speculative"].model_copy(update={"drafter": str(drafts[False])})
    lane, ask = engine.load_draft(DRAFT, str(drafts[False])), Lane.request

    def request(self, operation):
        if isinstance(operation, PrepareDraft):
            lane.kill("the test ends it")
        return ask(self, operation)

    monkeypatch.setattr(Lane, "request", request)
    found = engine.generate(schedule, PROMPT, max_new_tokens=8, eos_token_ids=())
    assert found.tokens == expected.tokens
    [event] = found.trace.events
    assert "the test ends it" in event.text
    assert event.text.endswith("; the target goes on alone")


def test_streams_need_a_lane_of_torch(engine_and_drafts, tmp_path) -> None:
    engine, _ = engine_and_drafts
    with pytest.raises(LaneError, match="streams of a target need a lane of torch"):
        engine.load_streams(TARGET, "smollm2-135m-streams")


@pytest.fixture
def no_torch(tmp_path, monkeypatch):
    """Importing torch is an error in every process that is started from now on."""
    folder = tmp_path / "modules" / "torch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('torch was imported')\n")
    monkeypatch.setenv("PYTHONPATH", str(folder.parent))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lanes_of_graphs_need_no_torch(tmp_path, no_torch, temperature) -> None:
    target = tiny_target(max_position=400)
    folder, exits = save_target(target, tmp_path / "target"), save_exits_of(target, tmp_path / "exits")
    drafts = {
        False: save_draft_of(target, tmp_path / "drafter"),
        True: save_draft_of(target, tmp_path / "feature_drafter", exit_features=(1, 2)),
    }
    verification = "match" if temperature else "greedy"
    plain = Schedule(method="autoregressive", target_lane=TARGET, verification=verification)
    lanes = [LaneSpec(name=TARGET), LaneSpec(name=DRAFT)]
    with Engine(folder, lanes=lanes, exits_folder=exits, dtype="float32", draft_deadline_s=60.0) as engine:

        def text_of(schedule):
            return engine.generate(
                schedule, PROMPT, max_new_tokens=20, temperature=temperature, seed=3, eos_token_ids=()
            )

        expected = text_of(plain).tokens
        for name, schedule in SCHEDULES.items():
            own = {"drafter": str(drafts[schedule.exit_features]), "verification": verification}
            found = text_of(schedule.model_copy(update=own))
            assert found.tokens == expected, name
            assert len(found.trace.rounds) < 20, name
        assert engine.row_invariance(TARGET).is_invariant
        for lane in (TARGET, DRAFT):
            assert engine.load_draft(lane, str(drafts[False])).measure(
                Measurement(part="draft_step", rows=1, context=9)
            )
    if not temperature:
        assert list(expected) == continue_text(target, PROMPT, 20)


def test_a_head_of_the_target_brings_torch_to_its_lane(tmp_path, no_torch) -> None:
    target = tiny_target(max_position=400)
    folder = save_target(target, tmp_path / "target")
    save_medusa(tiny_medusa(target), [(0,), (0, 0)], tmp_path / "heads", target=target, target_name="tiny", metadata={})
    with (
        Engine(folder, lanes=[LaneSpec(name=TARGET)], dtype="float32") as engine,
        pytest.raises(LaneError, match="torch was imported"),
    ):
        engine.load_draft(TARGET, str(tmp_path / "heads"))
