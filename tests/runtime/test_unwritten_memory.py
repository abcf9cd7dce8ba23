"""What a request is answered depends on nothing but the request: not on memory, nor on those before it."""

import random
from contextlib import ExitStack, nullcontext
from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.backends.cuda.captured_backend import CudaBackend
from runtime.lanes.sequence_lanes import Listener
from runtime.worker import torch_models
from tests.runtime.engine.schedules import CHAINS, SCHEDULES, for_folders, on_lanes
from tests.runtime.poison import loud_numbers_in_slots_that_are_not_written, no_numbers_in_memory_that_is_taken
from tests.runtime.reading import npu_here
from tests.runtime.thread_lanes import thread_engine
from tests.tiny_models import VOCAB_SIZE

LENGTHS = (1, 17, 63, 65, 215, 255, 256, 257, 511, 513, 1025)
"""Of prompts: around every number of slots, rows and keys where anything changes."""
NUM_TOKENS = 12
"""New ones of a text: enough to be beyond the number that it began below."""
LANES = {
    "torch": ("big", "small", "float32"),
    "graphs in float32": ("openvino:CPU@0", "openvino:CPU@1", "float32"),
    "graphs in bfloat16": ("openvino:CPU@0", "openvino:CPU@1", "bfloat16"),
    "captured calls": ("big", "small", "float32"),
    "a draft on an NPU": ("openvino:CPU@0", "openvino:NPU", "float32"),
}
POISONS = {"NaN": no_numbers_in_memory_that_is_taken, "loud": loud_numbers_in_slots_that_are_not_written}


@cache
def prompt_of(length):
    return tuple(random.Random(length).choices(range(3, VOCAB_SIZE), k=length))


@pytest.fixture(scope="module", params=LANES)
def ask(request, long_folders, tmp_path_factory):
    """Asks lanes of a kind: `ask(schedule name, prompt length)`; those of plain memory see no other, nor these them."""
    target_lane, draft_lane, dtype = LANES[request.param]
    engines, opened = {}, ExitStack()

    def ask(name, length, *, memory, listener=None):
        is_poisoned = memory in POISONS
        if is_poisoned not in engines:
            of_engine = {"exits_folder": long_folders.exits, "dtype": dtype, "lanes": (target_lane, draft_lane)}
            engines[is_poisoned] = opened.enter_context(thread_engine(long_folders.target, **of_engine))
        schedule = on_lanes(for_folders(SCHEDULES[name], long_folders), target_lane, draft_lane)
        options = {} if listener is None else {"listener": listener}
        with POISONS.get(memory, nullcontext)():
            made = engines[is_poisoned].generate(
                schedule, prompt_of(length), max_new_tokens=NUM_TOKENS, eos_token_ids=(), **options
            )
        assert made.trace.events == [], "the target had to go on alone"
        return made.tokens

    with pytest.MonkeyPatch.context() as patch, npu_here() if draft_lane == "openvino:NPU" else nullcontext():
        patch.setenv("MIRRORSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        if request.param == "captured calls":
            patch.setattr(torch_models, "backend_opener", lambda *_: lambda one: CudaBackend(one, device="cpu"))
        yield ask
        opened.close()


@pytest.fixture(scope="module")
def alone(ask):
    """The text of a prompt by plain decoding."""
    return cache(lambda length: ask("autoregressive", length, memory="as it comes"))


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


names = st.sampled_from(["autoregressive", *CHAINS])
asked = st.tuples(names, st.sampled_from(LENGTHS), st.none() | st.integers(1, NUM_TOKENS - 1))


@pytest.mark.parametrize("memory", POISONS)
@given(requests=st.lists(asked, min_size=3, max_size=6))
@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_answers_depend_neither_on_unwritten_memory_nor_on_requests_before(ask, alone, memory, requests):
    for name, length, cancelled_after in requests:
        if cancelled_after is not None:
            with pytest.raises(CancelledError):
                ask(name, length, memory=memory, listener=cancelling(cancelled_after))
        else:
            assert ask(name, length, memory=memory) == alone(length), (name, length)
