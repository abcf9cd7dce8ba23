"""The default acceptance rates, from public measurements, for plans without a record or given rates."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from decoding.schedule import MAX_WINDOW
from hwprofiles.models.head_shapes import LOOKUP
from planner.published.stream_rates import NUM_STREAMS, stream_rate
from planner.published.usual_rates import usual_rate
from sim.acceptance.rates import TaskRates
from sim.derived.assumption import Assumption

TASK_RATES: Final[Mapping[str, float]] = {
    "mt_bench": 0.59,
    "translation": 0.64,
    "summarization": 0.51,
    "qa": 0.53,
    "math_reasoning": 0.71,
    "rag": 0.58,
}
RATES_SOURCE: Final = (
    "mean 0.59: accepted shares .60 / .40 of 1 / 3 drafted tokens, measured for Qwen3-14B with Qwen3-0.6B "
    "(openvino discussion 36484); spread over tasks as vanilla speculation's published speed-ups of the same pair at "
    "temperature 0 (arXiv 2510.13161, Table 1)"
)
HEAD_RATES: Final[Mapping[str, Assumption]] = {
    "mtp": usual_rate("mtp"),
    "eagle3": usual_rate("eagle"),
    "dflash": usual_rate("block"),
    LOOKUP: usual_rate("lookup"),
    "medusa": Assumption.shipped("acceptance.rate/medusa"),
}
"""Acceptance of drafters that are no separate model; a lookup that finds nothing counts as a refused token."""
ALTERNATIVES: Final = (0.20, 0.28, 0.35, 0.38, 0.41, 0.42, 0.44, 0.44)
"""How often the target's token is among the draft's next 1 to 8 candidates where its first one was refused."""
ALTERNATIVES_SOURCE: Final = (
    "the draft shipped for SmolLM2-135M, where its token was refused: 133 positions of this project's demos"
)
COVERAGE: Final[Mapping[float, Sequence[float]]] = {
    0.5: (0.21, 0.25, 0.29, 0.32, 0.33, 0.36, 0.38, 0.39),
    2 / 3: (0.29, 0.35, 0.39, 0.42, 0.44, 0.47, 0.50, 0.50),
    0.8: (0.48, 0.57, 0.60, 0.67, 0.69, 0.69, 0.74, 0.74),
}
"""How often the target's token is among an exit's 1 to 8 best, by the share of layers before the exit."""
TRAINED_EXITS_OF: Final = "SmolLM2-135M"
"""The model whose trained exits ship."""
COVERAGE_SOURCE: Final = (
    "the trained exits shipped for SmolLM2-135M after half, two thirds and four fifths of its layers, where the draft "
    "was refused: 133 positions of this project's demos; an untrained exit (final norm and lm_head only) covers less"
)

STREAM_RATES: Final = (round(stream_rate(), 2),) * NUM_STREAMS
STREAMS_SOURCE: Final = (
    f"assumed: {NUM_STREAMS} streams, each guess right at a rate of {STREAM_RATES[0]:g} if those before it are, as "
    "derived from the 3 to 4 hidden steps for 7 tokens of arXiv 2510.13161. The streams that this project trained for "
    "SmolLM2-135M are right far less often: at most 1.27 tokens a step in windows of 8"
)


def default_rates(num_layers: int) -> dict[str, TaskRates]:
    """Return rates by task for a target of so many layers."""
    layers = [min(num_layers - 1, max(1, round(share * num_layers))) for share in COVERAGE]
    found = dict(zip(layers, map(tuple, COVERAGE.values()), strict=True))
    coverage = {layer: shares for layer, shares in found.items() if layer}  # a single layer has no exit
    return {
        task: TaskRates(rates=(rate,) * MAX_WINDOW, alternative_rates=ALTERNATIVES, exit_coverage=coverage)
        for task, rate in TASK_RATES.items()
    }


def mean_rate(by_task: Mapping[str, TaskRates]) -> float:
    """Return the mean over tasks of the acceptance rate of a draft's first token."""
    return fmean(rates.rates[0] for rates in by_task.values())


def with_mean_rate(by_task: Mapping[str, TaskRates], mean: float) -> dict[str, TaskRates]:
    """Return the rates moved to another mean (0..1): a share of right tokens becomes wrong, or of wrong ones right.

    `planner.what_if.mixed_record` does the same with a record.
    """
    now = mean_rate(by_task)
    kept = mean / now if mean < now else 1.0
    learned = (mean - now) / (1 - now) if mean > now else 0.0
    return {
        task: rates.model_copy(update={"rates": tuple(kept * rate + learned * (1 - rate) for rate in rates.rates)})
        for task, rates in by_task.items()
    }


def scaled(by_task: Mapping[str, TaskRates], kind: str, factor: float) -> dict[str, TaskRates]:
    """Return the rates with `alternative_rates` or `exit_coverage` (`kind`) multiplied by `factor`, capped at 1."""

    def changed(shares: Any) -> Any:
        if isinstance(shares, Mapping):
            return {layer: changed(one) for layer, one in shares.items()}
        return tuple(min(1.0, factor * share) for share in shares)

    return {task: rates.model_copy(update={kind: changed(getattr(rates, kind))}) for task, rates in by_task.items()}
