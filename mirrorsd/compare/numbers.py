"""The numbers that scripts get, under the same names for both worlds; definitions are those of `decoding.metrics`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from decoding import metrics
from decoding.trace import Trace
from sim.prediction import Prediction


def measured_numbers(traces: Sequence[Trace]) -> dict[str, Any]:
    """Numbers of the traces of one schedule, one per prompt."""
    return {
        "tpot_s": metrics.tpot_s(traces),
        "num_rounds": metrics.num_rounds(traces),
        "num_accepted_tokens": metrics.num_accepted_tokens(traces),
        "mean_acceptance_length": metrics.mean_acceptance_length(traces),
        "reuse_rate": metrics.reuse_rate(traces),
        "num_tokens": metrics.num_tokens(traces),
        "decode_s": metrics.decode_s(traces),
    }


def predicted_numbers(prediction: Prediction) -> dict[str, Any]:
    """The same numbers of a prediction, with the interval of the time per token."""
    return {
        "tpot_s": prediction.tpot_s,
        "tpot_s_low": prediction.tpot_s_low,
        "tpot_s_high": prediction.tpot_s_high,
        "num_rounds": prediction.num_rounds,
        "num_accepted_tokens": prediction.num_accepted_tokens,
        "mean_acceptance_length": prediction.mean_acceptance_length,
        "reuse_rate": prediction.reuse_rate,
        "num_tokens": prediction.num_tokens,
        "decode_s": prediction.decode_s,
    }


def prompt_numbers(trace: Trace) -> dict[str, Any]:
    """Numbers of one prompt. `accept_lengths` are committed tokens by round; they sum up to the new tokens."""
    return {
        "num_rounds": len(trace.rounds),
        "accept_lengths": [entry.num_committed for entry in trace.rounds],
        "prefill_s": trace.prefill_s,
        "decode_s": trace.decode_s,
    }
