"""The numbers that scripts get, under the same names for both worlds; definitions are those of `decoding.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding import metrics
from decoding.trace import Trace
from planner.search.search import Candidate
from sim.prediction import Prediction

_NAMES = (
    "num_rounds",
    "num_accepted_tokens",
    "mean_acceptance_length",
    "reuse_rate",
    "num_tokens",
    "decode_s",
    "prefill_s",
    "ttft_s",
    "e2e_s",
)


def measured_numbers(traces: Sequence[Trace]) -> dict[str, Any]:
    """Return numbers of the traces of one schedule, one per prompt."""
    return {name: getattr(metrics, name)(traces) for name in ("tpot_s", *_NAMES)}


def predicted_numbers(prediction: Prediction) -> dict[str, Any]:
    """Return the same numbers of a prediction, with the interval of the time per token."""
    return {name: getattr(prediction, name) for name in ("tpot_s", "tpot_s_low", "tpot_s_high", *_NAMES)}


def candidate_numbers(name: str, candidate: Candidate) -> dict[str, Any]:
    """Return a schedule by name with what is predicted of it."""
    return {
        "name": name,
        "method": candidate.schedule.method,
        "placement": candidate.placement,
        "schedule": candidate.schedule.model_dump(mode="json", exclude_defaults=True),
        "predicted": predicted_numbers(candidate.prediction),
    }


def prompt_numbers(trace: Trace) -> dict[str, Any]:
    """Return numbers of one prompt. `accept_lengths` are committed tokens by round; they sum up to the new tokens."""
    return {
        "num_rounds": len(trace.rounds),
        "accept_lengths": [entry.num_committed for entry in trace.rounds],
        "prefill_s": trace.prefill_s,
        "decode_s": trace.decode_s,
    }
