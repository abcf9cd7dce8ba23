"""Metrics of traces, defined and named as in the field; ratios are of sums over all traces (micro averages)."""

from collections.abc import Sequence

from decoding.trace import Trace


def num_tokens(traces: Sequence[Trace]) -> int:
    """Return the number of committed tokens."""
    return sum(entry.num_committed for trace in traces for entry in trace.rounds)


def num_rounds(traces: Sequence[Trace]) -> int:
    """Return the number of verifications."""
    return sum(len(trace.rounds) for trace in traces)


def num_accepted_tokens(traces: Sequence[Trace]) -> int:
    """Return the number of drafted tokens that were committed."""
    return sum(entry.num_accepted for trace in traces for entry in trace.rounds)


def mean_acceptance_length(traces: Sequence[Trace]) -> float:
    """Return the committed tokens per verification, bonus tokens included (vLLM's definition); NaN without rounds."""
    return _ratio(num_tokens(traces), num_rounds(traces))


def per_position_acceptance_rate(traces: Sequence[Trace]) -> list[float]:
    """Return for each drafted position the share of all rounds that accepted it (unconditional)."""
    rounds = [entry for trace in traces for entry in trace.rounds]
    width = max((entry.num_drafted for entry in rounds), default=0)
    return [_ratio(sum(entry.num_accepted > place for entry in rounds), len(rounds)) for place in range(width)]


def reuse_rate(traces: Sequence[Trace]) -> float:
    """Return hits / rounds that looked for a branch; NaN without such rounds."""
    asked = [entry.hit for trace in traces for entry in trace.rounds if entry.hit is not None]
    return _ratio(sum(asked), len(asked))


def decode_s(traces: Sequence[Trace]) -> float:
    """Return the time spent decoding, prefill excluded."""
    return sum(trace.decode_s for trace in traces)


def prefill_s(traces: Sequence[Trace]) -> float | None:
    """Return the sum of the times before decoding; None if that of any trace is unknown, or without traces."""
    known = [trace.prefill_s for trace in traces if trace.prefill_s is not None]
    return sum(known) if traces and len(known) == len(traces) else None


def ttft_s(traces: Sequence[Trace]) -> float | None:
    """Return the mean time to first token: prefill and the first round; None as in `prefill_s`."""
    return _mean_after_prefill(traces, [trace.rounds[0].end_s for trace in traces])


def e2e_s(traces: Sequence[Trace]) -> float | None:
    """Return the mean time from a request to its last token; None as in `prefill_s`."""
    return _mean_after_prefill(traces, [trace.decode_s for trace in traces])


def tpot_s(traces: Sequence[Trace]) -> float:
    """Return the decoding time per committed token."""
    return _ratio(decode_s(traces), num_tokens(traces))


def _mean_after_prefill(traces: Sequence[Trace], seconds: Sequence[float]) -> float | None:
    before_s = prefill_s(traces)
    return None if before_s is None else (before_s + sum(seconds)) / len(traces)


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else float("nan")
