"""Where a predicted time per token goes."""

from __future__ import annotations

from typing import Final

from planner.search.search import Candidate

TARGET_PARTS: Final = ("target_verify", "target_prefix", "target_suffix")


def seconds_per_token(candidate: Candidate) -> dict[str, float]:
    """Return predicted seconds per committed token by part, none negative; together the time per token.

    Where both lanes were measured faster together than alone, what they gain is taken off the target's parts.
    """
    parts = candidate.prediction.bottlenecks._asdict()
    scale = candidate.tpot_s / sum(parts.values())
    target_s = sum(parts[name] for name in TARGET_PARTS)
    faster = 1 + min(0.0, parts["contention"]) / target_s if target_s else 1.0
    parts |= {name: parts[name] * faster for name in TARGET_PARTS} | {"contention": max(0.0, parts["contention"])}
    return {name: time_s * scale for name, time_s in parts.items()}
