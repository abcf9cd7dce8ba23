"""What only a GPU can show: that captures replay what was captured. Skipped where there is none."""

import gc

import pytest
import torch

from decoding.methods import METHODS
from decoding.schedule import Schedule
from runtime.backends.backend import Preparation, segments_between
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.cuda.captured_calls import GraphCapture
from runtime.backends.eager import EagerBackend, wait
from runtime.backends.lane_device import Device
from runtime.drafters.eagle.drafter import EagleDrafter
from runtime.drafters.registry import known_kind
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from runtime.models.decoder import load_decoder
from runtime.models.default_model import embedded_folder, is_present
from runtime.wire.measurement import Measurement
from runtime.worker.server import models_on
from tests.runtime.drafters.folders.kinds import KINDS
from tests.runtime.plain import features
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_heads import TEXT, run
from tests.tiny_models import VOCAB_SIZE, tiny_target

pytestmark = pytest.mark.gpu
GPU = "cuda:0"
EMBEDDED = embedded_folder() if is_present() else None
"""Looked up before the tests of this folder get a cache of their own."""


def chosen(backend, prompt, num_tokens):
    """The greedy text of a back end."""
    layers, ids = backend.config.num_layers, list(prompt)
    text = backend.new_text()
    backend.prepare(
        Preparation(
            num_slots=len(prompt) + num_tokens,
            num_prompt=len(prompt),
            rows=(1,),
            segments=segments_between(layers // 2, layers),
            prompt_segments=segments_between(layers // 2, layers),
        )
    )
    text.start(len(prompt) + num_tokens)
    while len(ids) < len(prompt) + num_tokens:
        x = backend.embedding(torch.tensor([ids[text.cursor :]]))
        positions = torch.arange(text.cursor, len(ids))
        for start, stop in segments_between(layers // 2, layers):
            x = backend.run_layers(x, start, stop, positions=positions, cache=text)
        text.advance(len(positions))
        ids.append(int(backend.logits(x)[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.skipif(EMBEDDED is None, reason="the embedded model is not in the cache")
def test_tokens_of_the_embedded_model_in_float32_are_those_of_the_cpu():
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = list(range(100, 160))
    with torch.inference_mode():
        cpu, gpu = (load_decoder(EMBEDDED, dtype=torch.float32) for _ in range(2))
        assert chosen(CudaBackend(gpu, device=GPU), prompt, 200) == chosen(EagerBackend(cpu), prompt, 200)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_replay_is_what_the_same_calls_give_without_capture(dtype, monkeypatch):
    prompt = torch.randint(VOCAB_SIZE, (140,)).tolist()
    replayed = chosen(CudaBackend(tiny_target(max_position=400).to(dtype), device=GPU), prompt, 60)
    monkeypatch.setattr(GraphCapture, "captured", lambda _, run: run)
    assert replayed == chosen(CudaBackend(tiny_target(max_position=400).to(dtype), device=GPU), prompt, 60)


def test_a_long_text_in_float32_is_that_of_the_cpu():
    torch.backends.cuda.matmul.allow_tf32 = False
    prompt = torch.randint(VOCAB_SIZE, (1260,), generator=torch.Generator().manual_seed(3)).tolist()
    with torch.inference_mode():
        gpu = chosen(CudaBackend(tiny_target(max_position=1500), device=GPU), prompt, 60)
        assert gpu == chosen(EagerBackend(tiny_target(max_position=1500)), prompt, 60)


def test_garbage_that_holds_graphs_is_not_collected_within_a_capture():
    capture, own, seen = GraphCapture(torch.device(GPU)), torch.zeros(1, device=GPU), []

    def run():
        seen.append(gc.isenabled())
        own.add_(1)

    garbage = [capture.captured(run)]
    garbage.append(garbage)
    del garbage
    capture.captured(run)()
    assert not any(seen)
    assert gc.isenabled()


def test_functions_are_captured_after_all_that_were_captured_before_are_gone():
    capture, own = GraphCapture(torch.device(GPU)), torch.zeros(1, device=GPU)
    for _ in range(4):
        replay = capture.captured(lambda: own.add_(1))
        replay()
        del replay
        gc.collect()
    assert int(own) >= 4


def test_two_streams_each_do_their_own():
    device = torch.device(GPU)
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    counts = [torch.zeros(1, device=device) for _ in streams]
    replays = [GraphCapture(device).captured(lambda own=own: own.add_(1)) for own in counts]
    wait(device)
    for own in counts:
        own.zero_()
    wait(device)
    for _ in range(50):
        for replay, stream in zip(replays, streams, strict=True):
            with torch.cuda.stream(stream):
                replay()
    for stream in streams:
        stream.synchronize()
    assert [int(own) for own in counts] == [50, 50]


@pytest.mark.parametrize("draft", ["cuda:0#2", "cpu0"])
def test_lanes_on_a_gpu_run_and_are_timed(draft, tmp_path):
    target = tiny_target(max_position=400)
    drafter = save_draft_of(target, tmp_path / "drafter")
    folder, exits = save_target(target, tmp_path / "target"), save_exits_of(target, tmp_path / "exits")
    split = {"target_lane": GPU, "draft_lane": draft, "drafter": str(drafter), "num_speculative_tokens": 3}
    schedules = [
        Schedule(method="speculative", **split),
        Schedule(method="mirror", root_source="exit", exit_layer=2, exit_top_k=3, **split),
    ]
    lanes = [LaneSpec(name=GPU), LaneSpec(name=draft)]
    with Engine(folder, lanes=lanes, exits_folder=exits, dtype="float32", draft_deadline_s=60.0) as engine:
        plain = Schedule(method="autoregressive", target_lane=GPU)
        expected = engine.generate(plain, [5, 17, 3], max_new_tokens=60, eos_token_ids=()).tokens
        for schedule in schedules:
            assert engine.generate(schedule, [5, 17, 3], max_new_tokens=60, eos_token_ids=()).tokens == expected
        measured = engine.load_target(GPU).measure(Measurement(part="verify", rows=4, context=100, repeats=3))
        assert min(measured) > 0


@pytest.fixture(params=["medusa", "hydra", "eagle1", "eagle3"])
def head(request, tmp_path):
    """A target's folder, and that of a head of it."""
    target, kind = tiny_target(max_position=400), KINDS[request.param]
    kind.save(kind.make(target), tmp_path / "head", target)
    return save_target(target, tmp_path / "target"), tmp_path / "head"


def drafted(device, folder, head):
    """The trees that a head drafts along a text in a lane of a device, and where a record finds the text in them."""
    models = models_on(Device.of_lane(device), 1)
    models.load_target(folder, None, "float32")
    drafter = models.load_drafter(folder, head, "float32")
    known = features(load_decoder(folder, dtype=torch.float32), TEXT, drafter.feature_layers)
    drafter.prefill(TEXT[:4], schedule=tree_of(drafter.methods[0], GPU), capacity=32, features_TE=known[:3])
    windows = [run(drafter.rollout())[0]]
    windows += [run(drafter.rollout(TEXT[at : at + 2], known[at - 1 : at + 1]))[0] for at in (4, 6, 8)]
    if isinstance(drafter, EagleDrafter):
        return windows, drafter.ranks_along(TEXT, start=3, features_TE=known, shapes=[(3, 3)])[0].tolist()
    return windows, drafter.level_ranks(TEXT, start=3, features_TE=known).tolist()


def tree_of(method, lane, drafter="head"):
    top_k = 3 * METHODS[method].has_dynamic_trees
    return Schedule(
        method=method,
        target_lane=GPU,
        draft_lane=lane,
        drafter=drafter,
        num_speculative_tokens=3,
        tree_size=9,
        tree_top_k=top_k,
    )


def test_heads_on_a_gpu_draft_what_they_draft_on_the_cpu(head):
    torch.backends.cuda.matmul.allow_tf32 = False
    assert drafted(GPU, *head) == drafted("cpu0", *head)


@pytest.mark.parametrize("lane", [GPU, "cuda:0#2", "cpu0"])
def test_texts_with_heads_are_those_of_plain_decoding(lane, head):
    folder, drafter = head
    method = known_kind(drafter).method
    with Engine(folder, lanes=[LaneSpec(name=one) for one in {GPU, lane}], dtype="float32") as engine:
        plain = Schedule(method="autoregressive", target_lane=GPU)
        expected = engine.generate(plain, [5, 17, 3], max_new_tokens=60, eos_token_ids=()).tokens
        schedule = tree_of(method, lane, str(drafter))
        found = engine.generate(schedule, [5, 17, 3], max_new_tokens=60, eos_token_ids=())
        assert found.tokens == expected
        assert not found.trace.events
        measured = engine.load_draft(lane, str(drafter)).measure(
            Measurement(part="head_step", rows=3, context=100, repeats=3)
        )
        assert min(measured) > 0
