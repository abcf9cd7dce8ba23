"""Draft a window, then verify it: one loop for all methods that do not overlap. Their traits and drafters differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from decoding.messages import Verdict, Window
from decoding.method_traits import CHAIN_RULES, TREE_RULES, MethodTraits

if TYPE_CHECKING:
    from decoding.lanes import Lanes, MethodFlow
    from decoding.schedule import Schedule


def draft_then_verify(lanes: Lanes, schedule: Schedule) -> MethodFlow:  # noqa: ARG001
    """Draft and verify in turn."""
    verdict: Verdict | None = None
    while lanes.unfinished:
        window: Window = yield lanes.draft.rollout(verdict)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)


SPECULATIVE = MethodTraits(
    name="speculative",  # Leviathan 2211.17192, Chen 2302.01318
    title="synchronous speculation",
    flow=draft_then_verify,
    drafts="draft",
    window="chain",
    rules=CHAIN_RULES,
)
PROMPT_LOOKUP = MethodTraits(
    name="prompt_lookup",  # LLMA 2304.04487; Saxena's prompt lookup decoding, 2023
    title="prompt lookup",
    flow=draft_then_verify,
    drafts="text",
    window="chain",
    rules=("greedy", "match"),
)
BLOCK = MethodTraits(
    name="block",  # DFlash, P-EAGLE, heads for multi-token prediction: one pass drafts the whole chain
    title="block drafting (simulated only)",
    flow=draft_then_verify,
    drafts="head",
    window="chain",
    rules=CHAIN_RULES,
    drafts_block=True,
    is_simulated_only=True,
)
MEDUSA = MethodTraits(
    name="medusa",  # 2401.10774
    title="Medusa",
    flow=draft_then_verify,
    drafts="head",
    window="static tree",
    rules=TREE_RULES,
)
HYDRA = replace(MEDUSA, name="hydra", title="Hydra", drafts_by_level=True)  # 2402.05109
EAGLE2 = replace(MEDUSA, name="eagle2", title="EAGLE-2", window="dynamic tree")  # 2406.16858
EAGLE3 = replace(EAGLE2, name="eagle3", title="EAGLE-3")  # 2503.01840
