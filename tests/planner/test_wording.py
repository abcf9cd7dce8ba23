"""Names and human units."""

import pytest

from decoding.schedule import Schedule
from planner.search.search import search
from planner.search.space import SearchSpace
from planner.wording import (
    between,
    capital,
    counted,
    digits,
    duration,
    factor,
    listing,
    milliseconds,
    percent,
    schedule_name,
    schedule_names,
    seconds,
    si,
    tokens_per_second,
)
from tests.planner.synthetic import TREES, acceptance_record, machine

MIRROR = {"method": "mirror", "target_lane": "a", "draft_lane": "b", "num_speculative_tokens": 3}
IN_TURN = {"method": "speculative", "target_lane": "a", "draft_lane": "a", "num_speculative_tokens": 2}
TREE = {"target_lane": "a", "num_speculative_tokens": 5, "tree_size": 16, "drafter": "d"}
NAMES = {
    "plain, pooled": {"method": "autoregressive", "target_lane": "a"},
    "synchronous, 2 drafted, exit features, pooled": IN_TURN | {"exit_features": True},
    "synchronous, 2 drafted, 1 stream, pooled": IN_TURN | {"draft_streams": 1},
    "mirror from exit 15, 3 drafted, 1 root per row": MIRROR
    | {"root_source": "exit", "exit_layer": 15, "exit_top_k": 1},
    "mirror from exit 20 + draft, 3 drafted, 4 + 2 roots per row": MIRROR
    | {"root_source": "hybrid", "exit_layer": 20, "exit_top_k": 4, "draft_top_k": 2},
    "mirror from draft, 3 drafted, 6 roots, uneven": MIRROR | {"root_source": "draft", "roots_per_row": (3, 2, 1)},
    "EAGLE-3, tree of 16, 5 deep, top 4, pooled": TREE | {"method": "eagle3", "draft_lane": "a", "tree_top_k": 4},
    "speculative streaming, tree of 16, 5 deep, pooled": TREE | {"method": "speculative_streaming"},
}


@pytest.mark.parametrize("name", NAMES)
def test_schedules_are_named_by_what_tells_them_apart(name):
    assert schedule_name(Schedule(**NAMES[name]), "pooled") == name


BY_DRAFT = MIRROR | {"root_source": "draft", "draft_top_k": 4}
UNEVEN = MIRROR | {"root_source": "draft"}
NAME = "mirror from draft, 3 drafted, 4 roots per row"


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ([BY_DRAFT], [NAME]),
        (
            [BY_DRAFT, BY_DRAFT | {"target_lane": "b", "draft_lane": "a"}],
            [f"{NAME}, target on a", f"{NAME}, target on b"],
        ),
        ([BY_DRAFT, BY_DRAFT | {"draft_lane": "c"}], [f"{NAME}, draft on b", f"{NAME}, draft on c"]),
        (
            [UNEVEN | {"roots_per_row": (3, 2, 1)}, UNEVEN | {"roots_per_row": (1, 2, 3)}],
            [f"mirror from draft, 3 drafted, 6 roots, uneven, roots {roots}" for roots in ("3/2/1", "1/2/3")],
        ),
    ],
)
def test_no_two_schedules_of_a_table_share_a_name(settings, names):
    schedules = [(Schedule(**each), "split") for each in settings]
    assert list(schedule_names(schedules)) == names


def test_every_schedule_of_a_whole_search_has_its_own_name():
    space = SearchSpace(windows=(1, 2, 3), tree_sizes=(4, 8))
    found = search(space, machine(), acceptance_record(trees=TREES)).candidates
    names = schedule_names([(candidate.schedule, candidate.placement) for candidate in found])
    assert len(names) == len(set(names)) > 100
    assert len({schedule_name(candidate.schedule, candidate.placement) for candidate in found}) < len(names)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (milliseconds(0.0271), "27.1 ms"),
        (milliseconds(0.00123), "1.23 ms"),
        (milliseconds(0.1234), "123 ms"),
        (between(0.0141, 0.0165), "14.1 to 16.5"),
        (between(0.0, 0.455), "up to 455"),
        (duration(0.4254), "425 ms"),
        (duration(8.712), "8.71 s"),
        (duration(190), "3 min 10 s"),
        (seconds(4.25), "4.25 s"),
        (seconds(45.2), "45 s"),
        (seconds(190), "3 min 10 s"),
        (seconds(180), "3 min"),
        (tokens_per_second(0.02), "50.0 tokens/s"),
        (digits(1234.5), "1234"),  # and not 1.23e+03
        (digits(9.996), "10.0"),  # and not 10.00: three digits
        (digits(-9.996), "-10.0"),
        (digits(99.96), "100"),
        (si(999.7e9, "B/s"), "1 TB/s"),  # and not 1e+03 GB/s
        (si(999.4e9, "B/s"), "999 GB/s"),
        (si(0.0, "B"), "0 B"),
        (factor(1.5678), "1.57×"),
        (factor(1.6), "1.60×"),
        (factor(8.0), "8×"),
        (percent(0.234), "23 %"),
        (percent(0.0062), "0.6 %"),
        (percent(0.0), "0 %"),
        (listing(["a"]), "a"),
        (listing(["a", "b", "c"]), "a, b and c"),
        (counted(1, "round"), "1 round"),
        (counted(1200, "round"), "1,200 rounds"),
        (capital("mirror"), "Mirror"),
    ],
)
def test_units_are_those_a_person_reads(said, expected):
    assert said == expected
