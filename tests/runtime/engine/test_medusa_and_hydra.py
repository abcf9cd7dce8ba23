"""Medusa and Hydra heads through engine, lanes and messages."""

from typing import Any, NamedTuple

import pytest
import torch

from runtime.drafters.hydra.folder import save_hydra
from runtime.drafters.medusa.folder import save_medusa
from runtime.drafters.registry import DrafterContext, load_drafter
from runtime.wire.measurement import Measurement
from tests.runtime import plain
from tests.runtime.thread_lanes import thread_engine
from tests.tiny_heads import PATHS, tiny_hydra, tiny_medusa, tree_schedule

PROMPT = [5, 17, 3, 44, 8]
NUM_TOKENS = 40


class Kind(NamedTuple):
    name: str
    make: Any
    save: Any


KINDS = [Kind("medusa", tiny_medusa, save_medusa), Kind("hydra", tiny_hydra, save_hydra)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def folder(kind, tiny_folders, tmp_path_factory):
    target = tiny_folders.decoder
    folder = tmp_path_factory.mktemp("heads") / kind.name
    kind.save(kind.make(target), PATHS, folder, target=target, target_name="tiny", metadata={})
    return folder


@pytest.fixture(scope="module")
def engine(tiny_folders):
    with thread_engine(tiny_folders.target) as engine:
        yield engine


def schedule_of(kind, folder, **options):
    lanes = {"target_lane": "big", "draft_lane": "small", "drafter": str(folder)}
    return tree_schedule(kind.name).model_copy(update=lanes | options)


@pytest.fixture
def decode(engine, kind, folder):
    def decode(prompt=PROMPT, **options):
        schedule = schedule_of(kind, folder, **options)
        return engine.generate(schedule, prompt, max_new_tokens=NUM_TOKENS, eos_token_ids=())

    return decode


@pytest.mark.parametrize("draft_lane", ["small", "big"])
@pytest.mark.parametrize("prompt", [PROMPT, PROMPT[:1]])
@pytest.mark.parametrize("tree_size", [12, 5])
def test_greedy_text_is_that_of_plain_decoding(decode, tiny_folders, draft_lane, prompt, tree_size) -> None:
    found = decode(prompt, draft_lane=draft_lane, tree_size=tree_size)
    assert list(found.tokens) == plain.continue_text(tiny_folders.decoder, prompt, NUM_TOKENS)
    assert found.trace.events == []
    assert max(entry.num_drafted for entry in found.trace.rounds) == tree_size


@pytest.mark.parametrize("tree_size", [12, 5])
def test_rounds_are_those_that_ranks_along_the_text_foretell(decode, folder, tiny_folders, tree_size) -> None:
    found = decode(tree_size=tree_size)
    target = tiny_folders.decoder
    text = [*PROMPT, *found.tokens]
    context = DrafterContext(target_folder=tiny_folders.target, dtype=torch.float32, load_target=lambda: target)
    drafter = load_drafter(folder, context)
    known = plain.features(target, text, drafter.feature_layers)
    ranks = drafter.ranks_along(text, start=len(PROMPT), features_TE=known, depth=4)
    foretold, place = [], 0
    while place < NUM_TOKENS:
        standing = [0 <= rank < tree_size for rank in ranks[place]]
        foretold.append(([*standing, False]).index(False))
        place += foretold[-1] + 1
    accepted = [entry.num_accepted for entry in found.trace.rounds]
    assert accepted == foretold
    assert max(accepted) > 0


def test_a_step_of_heads_can_be_timed(engine, folder) -> None:
    lane = engine.load_draft("small", str(folder))
    assert len(lane.measure(Measurement(part="head_step", rows=3, context=8, repeats=2))) == 2
