"""What a request is answered depends on nothing but the request: not on memory, nor on those before it."""

import random
from contextlib import ExitStack, nullcontext
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decoding.schedule import Schedule
from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.backends.lane_device import NPU_ON_CPU
from runtime.lanes.sequence_lanes import Listener
from runtime.worker import torch_models
from tests.runtime.backends.test_devices import forget
from tests.runtime.poison import loud_numbers_in_slots_that_are_not_written, no_numbers_in_memory_that_is_taken
from tests.runtime.thread_lanes import thread_engine
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_models import VOCAB_SIZE, tiny_target

LENGTHS = (1, 2, 17, 63, 65, 255, 256, 257, 258, 300, 448, 511, 513, 514, 700, 1023, 1025)
"""Of prompts: around every number of slots, rows and keys where anything changes."""
NUM_TOKENS = 24
LANES = {
    "torch": ("big", "small", "float32"),
    "graphs in float32": ("openvino:CPU@0", "openvino:CPU@1", "float32"),
    "graphs in bfloat16": ("openvino:CPU@0", "openvino:CPU@1", "bfloat16"),
    "captured calls": ("big", "small", "float32"),
    "a draft on an NPU": ("openvino:CPU@0", "openvino:NPU", "float32"),
}
POISONS = {
    "NaN": no_numbers_in_memory_that_is_taken,
    "loud": loud_numbers_in_slots_that_are_not_written,
}


def schedules_of(target_lane, draft_lane):
    """One of every kind whose windows are chains, so that its text is that of plain decoding."""
    split = {"target_lane": target_lane, "draft_lane": draft_lane, "num_speculative_tokens": 3}
    exit_layer = {"method": "mirror", "exit_layer": 2, "exit_top_k": 3}
    return {
        "plain": Schedule(method="autoregressive", target_lane=target_lane),
        "speculative": Schedule(method="speculative", **split),
        "pooled": Schedule(method="speculative", **split | {"draft_lane": target_lane}),
        "with features": Schedule(method="speculative", exit_features=True, **split),
        "mirror from the exit": Schedule(root_source="exit", **exit_layer, **split),
        "mirror from the draft": Schedule(method="mirror", root_source="draft", draft_top_k=2, **split),
        "hybrid mirror": Schedule(root_source="hybrid", draft_top_k=2, **exit_layer, **split),
        "mirror with features": Schedule(root_source="exit", exit_features=True, **exit_layer, **split),
    }


@cache
def prompt_of(length):
    return tuple(random.Random(length).choices(range(3, VOCAB_SIZE), k=length))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    target = tiny_target(max_position=1200)
    drafts = {
        False: save_draft_of(target, root / "drafter"),
        True: save_draft_of(target, root / "feature_drafter", exit_features=(1, 2)),
    }
    return save_target(target, root / "target"), save_exits_of(target, root / "exits"), drafts


@pytest.fixture(scope="module", params=LANES)
def ask(request, folders, tmp_path_factory):
    """Asks lanes of a kind: `ask(schedule name, prompt length)`; a new engine for every name of `memory`."""
    target_lane, draft_lane, dtype = LANES[request.param]
    folder, exits, drafts = folders
    engines, opened = {}, ExitStack()

    def ask(name, length, *, memory, listener=None):
        if memory not in engines:
            managed = thread_engine(folder, exits_folder=exits, dtype=dtype, lanes=(target_lane, draft_lane))
            engines[memory] = opened.enter_context(managed)
        schedule = schedules_of(target_lane, draft_lane)[name]
        if schedule.draft_lane is not None:
            schedule = schedule.model_copy(update={"drafter": str(drafts[schedule.exit_features])})
        options = {} if listener is None else {"listener": listener}
        with POISONS.get(memory, nullcontext)():
            made = engines[memory].generate(
                schedule, prompt_of(length), max_new_tokens=NUM_TOKENS, eos_token_ids=(), **options
            )
        assert made.trace.events == [], "the target had to go on alone"
        return made.tokens

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIRRORSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        if draft_lane == "openvino:NPU":
            patch.setenv(NPU_ON_CPU, "1")
            forget()
        if request.param == "captured calls":
            patch.setattr(torch_models, "backend_opener", lambda *_, **__: lambda one: CudaBackend(one, device="cpu"))
        yield ask
        opened.close()
    forget()


@pytest.fixture(scope="module")
def alone(ask):
    """The text of a prompt by plain decoding."""
    return cache(lambda length: ask("plain", length, memory="as it comes"))


class CancelledError(Exception):
    """Raised by who listens, in the middle of a text."""


def cancelling(after):
    left = after

    def on_tokens(tokens):
        nonlocal left
        left -= len(tokens)
        if left <= 0:
            raise CancelledError

    return Listener(on_tokens=on_tokens)


names = st.sampled_from(list(schedules_of("big", "small")))
asked = st.tuples(names, st.sampled_from(LENGTHS), st.none() | st.integers(1, NUM_TOKENS - 1))


@pytest.mark.parametrize("memory", POISONS)
@given(requests=st.lists(asked, min_size=3, max_size=6))
@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_depend_neither_on_unwritten_memory_nor_on_requests_before(ask, alone, memory, requests) -> None:
    for name, length, cancelled_after in requests:
        if cancelled_after is not None:
            with pytest.raises(CancelledError):
                ask(name, length, memory=memory, listener=cancelling(cancelled_after))
        else:
            assert ask(name, length, memory=memory) == alone(length), (name, length)
