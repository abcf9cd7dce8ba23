"""Errors of independent causes add up as their squares do, and nothing else of a lane changes."""

import pytest

from calibrate.fitting.fit import make_table
from calibrate.fitting.levels import Level
from calibrate.fitting.table_errors import at_level, with_check_errors, with_head_level
from hwprofiles.lane_profile import Overhead
from hwprofiles.profile import LaneProfile


def table(seconds: float = 1.0):
    return make_table((1, 2), (0,), [[seconds], [2 * seconds]], relative_error=0.03, source="test")


def lane(**changes) -> LaneProfile:
    single = ("layer", "lm_head", "draft_step", "draft_step_features", "draft_streams")
    tables = {name: table() for name in single} | {"exit": {4: table()}, "heads": {"m": table(), "e": table()}}
    return LaneProfile(name="a", device="test", dispatch_s=0.0, **tables | {"streams": {"s": table()}} | changes)


def test_errors_of_two_causes_add_up_as_squares() -> None:
    assert table().less_certain(0.04) == table().model_copy(update={"relative_error": pytest.approx(0.05)})


def test_parts_are_brought_to_their_level_and_are_as_uncertain_as_that() -> None:
    found = at_level(lane(draft_streams=None), ("draft_step", "draft_streams"), Level(1.5, 0.04))
    assert (found.draft_step.at(2, 0), found.draft_step.relative_error) == (3.0, pytest.approx(0.05))
    assert found.draft_streams is None
    assert (found.draft_step_features, found.layer) == (table(), table())


def test_a_heads_steps_and_the_start_of_its_rollouts_are_brought_to_their_level_alone() -> None:
    overheads = {key: Overhead(seconds=1.0) for key in ("rollout_start", "rollout_start:m", "rollout_start:e")}
    found = with_head_level(lane(overheads=overheads), "m", Level(1.5, 0.04))
    assert (found.heads["m"].at(2, 0), found.heads["m"].relative_error) == (3.0, pytest.approx(0.05))
    assert found.heads["e"] == table()
    assert [one.seconds for one in found.overheads.values()] == [1.0, 1.5, 1.0]


def test_what_checks_show_widens_every_table_that_decoding_uses() -> None:
    found = with_check_errors(lane(prefill=table()), 0.2, 0.04)
    tables = [found.layer, found.lm_head, found.draft_step, found.draft_step_features, found.draft_streams]
    tables += [*found.exit.values(), *found.heads.values(), *found.streams.values()]
    assert {round(one.relative_error, 12) for one in tables} == {0.05}
    assert (found.relative_error, found.prefill) == (0.2, table())
