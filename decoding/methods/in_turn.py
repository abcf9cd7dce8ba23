"""Methods without overlap: plain decoding, drafting and then verifying, and drafting within the target's pass.

All methods that draft a window and then verify it share one loop; they differ in their traits and drafters.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from decoding.lanes import Lanes, MethodFlow
from decoding.messages import NO_WINDOW, Verdict, Window
from decoding.method_traits import CHAIN_RULES, TREE_RULES, MethodTraits

if TYPE_CHECKING:
    from decoding.schedule import Schedule


def autoregressive(lanes: Lanes, schedule: "Schedule") -> MethodFlow:  # noqa: ARG001
    """Verify empty windows, each of which gives one token, until the sequence ends."""
    while lanes.unfinished:
        verdict: Verdict = yield lanes.target.verify(NO_WINDOW)
        lanes.commit(NO_WINDOW, verdict)


def draft_then_verify(lanes: Lanes, schedule: "Schedule") -> MethodFlow:  # noqa: ARG001
    """Draft a window, then verify it, until the sequence ends."""
    verdict: Verdict | None = None
    while lanes.unfinished:
        window: Window = yield lanes.draft.rollout(verdict)
        verdict = yield lanes.target.verify(window)
        lanes.commit(window, verdict)


def speculative_streaming(lanes: Lanes, schedule: "Schedule") -> MethodFlow:  # noqa: ARG001
    """Verify a tree and draft the next one in the same pass; the first pass has nothing to verify."""
    window = NO_WINDOW
    while lanes.unfinished:
        verdict: Verdict = yield lanes.target.stream(window)
        lanes.commit(window, verdict)
        window = verdict.window or NO_WINDOW


AUTOREGRESSIVE = MethodTraits(
    name="autoregressive",
    title="plain decoding",
    flow=autoregressive,
    drafts="nobody",
    window="none",
    rules=CHAIN_RULES,
)
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
    title="block drafting",
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
SPECULATIVE_STREAMING = MethodTraits(
    name="speculative_streaming",  # on the target itself: 2402.11131
    title="speculative streaming",
    flow=speculative_streaming,
    drafts="target",
    window="static tree",
    rules=TREE_RULES,
)
