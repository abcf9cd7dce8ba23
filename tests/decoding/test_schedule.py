from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from decoding.schedule import MAX_WINDOW, Schedule, load_schedule, save_schedule

MIRROR: dict[str, Any] = {
    "method": "mirror",
    "target_lane": "gpu",
    "draft_lane": "npu",
    "num_speculative_tokens": 3,
    "root_source": "exit",
    "exit_layer": 15,
    "exit_top_k": 2,
}
SPECULATIVE: dict[str, Any] = {
    "method": "speculative",
    "target_lane": "gpu",
    "draft_lane": "gpu",
    "num_speculative_tokens": 3,
}
LOOKUP: dict[str, Any] = SPECULATIVE | {"method": "prompt_lookup"}
EAGLE: dict[str, Any] = {
    "method": "eagle3",
    "target_lane": "gpu",
    "draft_lane": "gpu",
    "num_speculative_tokens": 5,
    "tree_size": 20,
    "tree_top_k": 4,
}
MEDUSA: dict[str, Any] = EAGLE | {"method": "medusa", "tree_top_k": 0}
STREAMING: dict[str, Any] = MEDUSA | {"method": "speculative_streaming", "draft_lane": None}
PLAIN: dict[str, Any] = {"method": "autoregressive", "target_lane": "gpu"}
DRAFT_ROOTS: dict[str, Any] = {"root_source": "draft", "exit_layer": None, "exit_top_k": 0}


@pytest.mark.parametrize(
    ("base", "changes", "rule"),
    [
        (PLAIN, {"num_speculative_tokens": 2}, "autoregressive takes 0"),
        (SPECULATIVE, {"num_speculative_tokens": 0}, "speculative takes at least 1"),
        (PLAIN, {"draft_lane": "npu"}, "draft_lane is npu: autoregressive has none"),
        (SPECULATIVE, {"draft_lane": None}, "speculative needs a draft_lane"),
        (MIRROR, {"draft_lane": "gpu"}, "mirror needs two lanes: target_lane and draft_lane are both gpu"),
        (MIRROR, {"root_source": None}, "root_source is None: mirror needs exit, draft or hybrid"),
        (SPECULATIVE, {"root_source": "draft"}, "other methods none"),
        (MIRROR, {"exit_layer": None}, "root sources exit and hybrid need one"),
        (MIRROR, DRAFT_ROOTS | {"exit_layer": 3, "draft_top_k": 1}, "everything else has none"),
        (MIRROR, {"root_source": "hybrid", "draft_top_k": 1, "exit_features": True}, "exit_features are an option of"),
        (PLAIN, {"exit_features": True}, "exit_features are an option of"),
        (MIRROR, DRAFT_ROOTS | {"exit_top_k": 1, "draft_top_k": 1}, "exit_top_k belongs to"),
        (MIRROR, {"draft_top_k": 1}, "draft_top_k belongs to"),
        (MIRROR, {"exit_top_k": 0}, "root_source exit needs exit_top_k > 0"),
        (MIRROR, DRAFT_ROOTS, "root_source draft needs draft_top_k > 0"),
        (MIRROR, {"root_source": "hybrid"}, "root_source hybrid needs draft_top_k > 0"),
        (MIRROR, {"roots_per_row": (1, 1)}, "roots_per_row replaces"),
        (MIRROR, {"exit_top_k": 0, "roots_per_row": (1,) * 5}, "roots_per_row has 5 entries for 4 rows"),
        (MIRROR, {"exit_top_k": 0, "roots_per_row": (0, 0)}, "roots_per_row allows no root at all"),
        (MIRROR, {"root_source": "hybrid", "roots_per_row": (1,)}, "roots_per_row belongs to"),
        (MIRROR, {"num_speculative_tokens": MAX_WINDOW + 1}, "less than or equal to 16"),
        (
            MIRROR,
            {"method": "lookahead"},
            "no method 'lookahead'; methods: autoregressive, speculative, mirror, medusa",
        ),
        (SPECULATIVE, {"tree_size": 4}, "tree_size and tree_top_k belong to medusa, hydra, eagle2, eagle3, spec"),
        (SPECULATIVE, {"tree_top_k": 4}, "tree_size and tree_top_k belong to"),
        (SPECULATIVE, {"verification": "one-hot"}, "verification is one-hot: speculative takes greedy, match, ratio"),
        (MIRROR, {"verification": "typical"}, "verification is typical: mirror takes greedy, match, ratio"),
        (EAGLE, {"verification": "ratio"}, "verification is ratio: eagle3 takes greedy, match, one-hot, typical"),
        (EAGLE, {"tree_size": 4}, "tree_size is 4: a tree of depth 5"),
        (EAGLE, {"tree_top_k": 0}, "eagle3 needs tree_top_k > 0"),
        (MEDUSA, {"tree_top_k": 2}, "tree_top_k belongs to eagle2, eagle3"),
        (MEDUSA, {"draft_lane": None}, "medusa needs a draft_lane"),
        (MEDUSA, {"exit_features": True}, "exit_features are an option of"),
        (MEDUSA, {"draft_streams": 2}, "draft_streams belong to speculative, mirror"),
        (STREAMING, {"draft_lane": "gpu"}, "draft_lane is gpu: speculative_streaming has none"),
        (LOOKUP, {"verification": "ratio"}, "verification is ratio: prompt_lookup takes greedy, match"),
        (LOOKUP, {"draft_streams": 2}, "draft_streams belong to speculative, mirror"),
        (LOOKUP, {"exit_features": True}, "exit_features are an option of"),
    ],
)
def test_a_contradictory_schedule_is_refused(base, changes, rule):
    Schedule(**base)
    with pytest.raises(ConfigError, match=rule):
        Schedule(**base | changes)
    with pytest.raises(ConfigError, match=rule):
        Schedule(**base).model_copy(update=changes)


def test_whole_numbers_of_numpy_are_taken():
    made = Schedule(method="prompt_lookup", target_lane="a", draft_lane="a", num_speculative_tokens=np.int64(3))
    assert (made.num_speculative_tokens, type(made.num_speculative_tokens)) == (3, int)
    assert made.model_copy(update={"num_speculative_tokens": np.int32(4)}).num_speculative_tokens == 4
    with pytest.raises(ConfigError, match="num_speculative_tokens"):
        made.model_copy(update={"num_speculative_tokens": np.float64(2.5)})


def test_a_tree_is_verified_in_one_row_per_node_and_the_root():
    eagle, medusa, streaming = Schedule(**EAGLE), Schedule(**MEDUSA), Schedule(**STREAMING)
    assert [one.num_rows for one in (eagle, medusa, streaming)] == [21, 21, 21]
    assert all(one.is_tree for one in (eagle, medusa, streaming))
    assert not Schedule(**SPECULATIVE).is_tree


def test_heads_always_read_features_and_drafts_when_asked_to():
    assert Schedule(**EAGLE).reads_features
    assert Schedule(**MEDUSA).reads_features
    assert not Schedule(**STREAMING).reads_features
    assert not Schedule(**SPECULATIVE).reads_features
    assert Schedule(**SPECULATIVE, exit_features=True).reads_features


def test_both_sources_have_budgets_in_a_hybrid():
    """One more candidate than the budget, since the drafted token is skipped."""
    schedule = Schedule(**MIRROR | {"root_source": "hybrid", "draft_top_k": 1})
    assert schedule.exit_roots_per_row == (2, 2, 2, 2)
    assert schedule.draft_roots_per_row == (1, 1, 1, 1)
    assert (schedule.num_exit_candidates, schedule.num_alternatives) == (3, 2)


def test_uneven_budgets_end_with_nothing():
    from_exit = Schedule(**MIRROR | {"exit_top_k": 0, "roots_per_row": (4, 1)})
    assert from_exit.exit_roots_per_row == (4, 1, 0, 0)
    assert (from_exit.num_exit_candidates, from_exit.num_alternatives) == (5, 0)
    from_draft = Schedule(**MIRROR | DRAFT_ROOTS | {"roots_per_row": (0, 3)})
    assert from_draft.draft_roots_per_row == (0, 3, 0, 0)
    assert from_draft.exit_roots_per_row == (0, 0, 0, 0)
    assert (from_draft.num_exit_candidates, from_draft.num_alternatives) == (0, 4)


@given(
    st.sampled_from([PLAIN, SPECULATIVE, MIRROR, MIRROR | {"exit_features": True, "drafter": "four-layer"}]),
    st.sampled_from(["greedy", "match", "ratio"]),
)
@example(EAGLE, "one-hot")
@example(STREAMING, "typical")
def test_a_file_brings_the_schedule_back(tmp_path_factory, fields, verification):
    path = tmp_path_factory.mktemp("schedules") / "schedule.yaml"
    schedule = Schedule(**fields, verification=verification)
    save_schedule(schedule, path)
    assert load_schedule(path) == schedule


def test_a_file_says_only_what_is_not_the_default(tmp_path):
    save_schedule(Schedule(**PLAIN), tmp_path / "schedule.yaml")
    assert (tmp_path / "schedule.yaml").read_text() == "method: autoregressive\ntarget_lane: gpu\n"


def test_a_wrong_file_is_refused_with_its_name(tmp_path):
    path = tmp_path / "schedule.yaml"
    path.write_text("method: mirror\ntarget_lane: gpu\ndraft_lane: gpu\nnum_speculative_tokens: 3\n")
    with pytest.raises(ConfigError, match=r"schedule\.yaml:1:1: .*mirror needs two lanes"):
        load_schedule(path)


@pytest.mark.parametrize(
    ("window", "streams", "guesses", "fewest"), [(1, 3, 0, 1), (2, 3, 0, 2), (3, 3, 1, 2), (7, 2, 2, 3), (7, 0, 0, 7)]
)
def test_branches_guess_as_far_as_a_window_of_one_token_has_room(window, streams, guesses, fewest):
    branching = Schedule(**MIRROR | {"num_speculative_tokens": window, "draft_streams": streams})
    in_turn = Schedule(**SPECULATIVE | {"num_speculative_tokens": window, "draft_streams": streams})
    assert (branching.branch_guesses, in_turn.branch_guesses) == (guesses, 0)
    assert branching.fewest_draft_steps == in_turn.fewest_draft_steps == fewest
