"""Drafts on an NPU's lane, whose path runs on the CPU here: next to a compiled target, and when its compiler fails."""

from contextlib import ExitStack
from functools import cache

import pytest

from decoding.errors import ConfigError
from runtime.engine import Engine
from runtime.lanes import lane_set
from runtime.lanes.lane import Lane, LaneSpec
from runtime.wire.measurement import Measurement
from tests.runtime.engine import schedules
from tests.runtime.engine.schedules import PROMPT, on_lanes
from tests.runtime.reading import npu_here
from tests.runtime.thread_lanes import ThreadLane

TARGET, DRAFT, TORCH = "openvino:CPU@0", "openvino:NPU", "cpu1"
NUM_TOKENS = 40
SCHEDULES = {name: on_lanes(schedules.SCHEDULES[name], TARGET, DRAFT) for name in ("speculative", "hybrid mirror")}
PLAIN = on_lanes(schedules.AUTOREGRESSIVE, TARGET)


def new_engine(folders, form):
    """An engine with the draft's weights in a form; the target's are float32."""
    lanes = [
        LaneSpec(name=TARGET, cores=(0,)),
        LaneSpec(name=TORCH, cores=(1,)),
        LaneSpec(name=DRAFT, cores=(1,), dtype=form),
    ]
    options = {"drafter_folder": folders.drafter, "exits_folder": folders.exits, "draft_deadline_s": 60.0}
    return Engine(folders.target, lanes=lanes, dtype="float32", **options)


@pytest.fixture(scope="module")
def engine_with(long_folders, own_cache):
    """Engines by the form of the draft's weights; their lanes are threads."""
    with npu_here(), pytest.MonkeyPatch.context() as patch, ExitStack() as opened:
        patch.setattr(lane_set, "Lane", ThreadLane)
        yield cache(lambda form: opened.enter_context(new_engine(long_folders, form)))


def generate(engine, schedule):
    return engine.generate(schedule, PROMPT, max_new_tokens=NUM_TOKENS, eos_token_ids=())


def rounds(generation):
    return [(one.num_drafted, one.num_accepted, one.hit) for one in generation.trace.rounds]


@pytest.fixture(scope="module")
def plain(engine_with):
    return generate(engine_with("float32"), PLAIN).tokens


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("form", ["float32", "int4"])
def test_a_draft_on_the_npus_path_leaves_the_text_of_plain_decoding(engine_with, plain, form, name):
    found = generate(engine_with(form), SCHEDULES[name])
    assert found.tokens == plain
    assert found.trace.events == []
    assert {span.lane for span in found.trace.spans} >= {TARGET, DRAFT}


@pytest.mark.parametrize("name", SCHEDULES)
def test_in_float32_it_drafts_what_the_draft_under_torch_does(engine_with, name):
    """Round by round: what was drafted, accepted, and hit or missed."""
    engine, schedule = engine_with("float32"), SCHEDULES[name]
    by_torch = generate(engine, schedule.model_copy(update={"draft_lane": TORCH}))
    on_npu = generate(engine, schedule)
    assert rounds(on_npu) == rounds(by_torch)
    assert len(on_npu.trace.rounds) < 0.9 * NUM_TOKENS


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_steps_of_any_rows_can_be_timed(engine_with, rows):
    lane = engine_with("int4").load_draft(DRAFT)
    seconds = lane.measure(Measurement(part="draft_step", rows=rows, context=20))
    assert min(seconds) > 0


def test_more_branches_than_graphs_have_rows_are_refused_by_their_number_and_the_lanes_go_on(engine_with, plain):
    engine = engine_with("float32")
    wide = SCHEDULES["hybrid mirror"].model_copy(update={"draft_top_k": 20})
    with pytest.raises(ConfigError, match=r"a step of 88 rows does not fit openvino:NPU: its graphs have 64 at most"):
        generate(engine, wide)
    assert generate(engine, SCHEDULES["speculative"]).tokens == plain


def test_a_compiler_that_ends_its_process_costs_the_draft_alone(long_folders, plain, monkeypatch, tmp_path):
    monkeypatch.setenv("MIRRORSD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(lane_set, "Lane", Lane)
    is_compiler = "any(word.endswith('openvino.compiler') for word in sys.orig_argv)"
    (tmp_path / "sitecustomize.py").write_text(f"import os, sys\nif {is_compiler}:\n    os.abort()\n")
    with new_engine(long_folders, "int8") as engine:
        found = generate(engine, SCHEDULES["hybrid mirror"])
        assert found.tokens == plain
        [event] = found.trace.events
        assert "ended its process (SIGABRT)" in event.text
        assert "The graph is layers 1 to" in event.text
        assert event.text.endswith("the target goes on alone")
        assert generate(engine, PLAIN).tokens == plain
