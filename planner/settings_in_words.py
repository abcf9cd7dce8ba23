"""What a schedule does in a round, and which model runs where, in words."""

from __future__ import annotations

from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from planner.wording import counted, listing


def settings(schedule: Schedule, profile: Profile) -> str:
    """What a round does, such as `draft 2 tokens per round`."""
    if schedule.traits.window == "none":
        return "one target pass per token"
    if schedule.is_tree:
        return _tree(schedule)
    if schedule.traits.finds_text:
        return f"verify up to {counted(schedule.num_speculative_tokens, 'token')} that followed the last ones before"
    features = ", reading the target's exit features" if schedule.exit_features else ""
    if schedule.draft_streams:
        features += f", guessing {counted(schedule.draft_streams, 'token')} ahead in every step but the first"
    drafted = f"draft {counted(schedule.num_speculative_tokens, 'token')} per round{features}"
    if not schedule.traits.overlaps:
        return drafted
    exit_taken = f", exit after layer {schedule.exit_layer} of {profile.num_layers}" if schedule.uses_exit else ""
    return f"{drafted}{exit_taken}, prepare {_branches(schedule)}"


def lanes(schedule: Schedule, profile: Profile) -> str:
    """A sentence on which model runs where."""
    target = _lane(profile, schedule.target_lane)
    if schedule.draft_lane is None or (schedule.is_pooled and schedule.traits.finds_text):
        return f"The target runs on {target}."
    if schedule.is_pooled and schedule.is_tree:
        return f"The target and its head take turns on {target}."
    if schedule.is_pooled:
        return f"Target and draft take turns on {target}."
    return f"The target runs on {target}, the draft on {_lane(profile, schedule.draft_lane)}."


def _tree(schedule: Schedule) -> str:
    by = "the target's own streams draft" if schedule.draft_lane is None else f"{schedule.drafter} drafts"
    expanded = f", {schedule.tree_top_k} nodes expanded per level" if schedule.tree_top_k else ""
    depth = f"{schedule.num_speculative_tokens} deep{expanded}"
    return f"{by} a tree of {counted(schedule.tree_size, 'token')} per round, {depth}"


def _branches(schedule: Schedule) -> str:
    if schedule.roots_per_row is not None:
        branches = " / ".join(str(count) for count in schedule.roots_per_row)
        accepted = " / ".join(str(count) for count in range(len(schedule.roots_per_row)))
        return f"{branches} branches for {accepted} accepted tokens, from the {schedule.root_source}"
    sources = [(schedule.exit_top_k, "exit"), (schedule.draft_top_k, "draft")]
    return listing(
        [f"{counted(count, 'branch', 'branches')} per row from the {name}" for count, name in sources if count]
    )


def _lane(profile: Profile, name: str) -> str:
    lane = profile.lane(name)
    facts = [] if name.startswith(lane.device) else [lane.device]
    if lane.cores:
        facts.append(f"core {lane.cores[0]}" if len(lane.cores) == 1 else f"{len(lane.cores)} cores")
    return f"lane {name} ({', '.join(facts)})" if facts else f"lane {name}"
