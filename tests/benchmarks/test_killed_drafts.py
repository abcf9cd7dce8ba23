"""Drafts that are killed: at which moment, in which schedules, and what is counted of it."""

import random
from types import SimpleNamespace

import pytest

from decoding.schedule import Schedule
from runtime.engine import Engine
from runtime.lanes.lane import LaneSpec
from tests.benchmarks.scripts import load_script
from tests.runtime import plain
from tests.runtime.tiny_folders import save_draft_of, save_target
from tests.tiny_models import EOS, tiny_target

KILLED_DRAFTS = load_script("exactness")

PROMPTS = ([5, 17, 3, 44, 8], [7, 7, 30], [1, 2, 3, 4])
PLACE = {"target_lane": "big", "draft_lane": "small"}
MIRROR = {"method": "mirror", "root_source": "draft", "draft_top_k": 2, "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def killed(tmp_path_factory, forked_lanes):
    """Decodes the prompts with kills."""
    root, target = tmp_path_factory.mktemp("tiny"), tiny_target()
    folder, drafter = save_target(target, root / "target"), save_draft_of(target, root / "drafter")
    lanes = [LaneSpec(name="big"), LaneSpec(name="small")]
    right = [tuple(plain.continue_text(target, prompt, 20, eos=(EOS,))) for prompt in PROMPTS]
    with Engine(folder, lanes=lanes, dtype="float32", draft_deadline_s=60.0) as engine:

        def run(**fields):
            schedule = Schedule(**fields, **PLACE, drafter=str(drafter))
            return KILLED_DRAFTS.with_kills(engine, schedule, PROMPTS, right, random.Random(0))

        yield run


def test_every_draft_is_lost_and_every_text_is_as_it_was(killed):
    assert killed(**MIRROR) == KILLED_DRAFTS.Killed(texts_equal=3, num_lost_drafts=3)


@pytest.mark.parametrize(("after", "place"), [(1, 0), (2, 0), (3, 1), (4, 2), (6, 2), (7, None)])
def test_the_lane_is_killed_once_by_the_round_that_commits_so_many_tokens(monkeypatch, after, place):
    seen, ended = [], []
    monkeypatch.setattr(KILLED_DRAFTS.os, "kill", lambda process, _: ended.append((process, len(seen))))
    engine = SimpleNamespace(lane=lambda name: SimpleNamespace(process_id=f"that of {name}"))
    kill = KILLED_DRAFTS._Kill(engine, Schedule(**MIRROR, **PLACE), after=after)
    for tokens in ((1, 2), (3,), (4, 5, 6)):
        kill(tokens)
        seen.append(tokens)
    assert ended == ([] if place is None else [("that of small", place)])


@pytest.mark.parametrize(
    ("can", "fields"),
    [
        (True, PLACE | MIRROR),
        (True, PLACE | {"method": "speculative", "num_speculative_tokens": 2}),
        (True, PLACE | {"method": "prompt_lookup", "num_speculative_tokens": 2}),
        (False, {"method": "speculative", "num_speculative_tokens": 2, "target_lane": "big", "draft_lane": "big"}),
        (False, {"method": "autoregressive", "target_lane": "big"}),
        (False, PLACE | {"method": "medusa", "num_speculative_tokens": 2, "tree_size": 4}),
    ],
)
def test_drafts_of_chains_are_killed_where_they_have_a_lane_of_their_own(can, fields):
    assert KILLED_DRAFTS.can_lose_its_draft(Schedule(**fields)) is can
