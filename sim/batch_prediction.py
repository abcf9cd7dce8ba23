"""Predicts batches: several sequences decoded at once on one machine (`sim.events.simulated_batch`).

Prompts are taken in order, `batch_size` at a time. A batch stays full: when a sequence ends, the next prompt takes its
place (after the last prompt the first one again), until all `batch_size` initial sequences have ended. So throughput is
`batch_size` over their time per token, however different their lengths are. Prefill is not counted.

The runtime decodes one sequence at a time, so batches exist in simulation only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice

from costs.cost_model import LaneCost
from costs.durations import DurationTables
from costs.round_plan import RoundPlan
from decoding.errors import ConfigError
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from sim.acceptance.replay import Acceptance, replay_of
from sim.events.round_costs import RoundCosts
from sim.events.simulated_batch import SimulatedBatch
from sim.prediction import Prediction

MAX_BATCH = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPrediction:
    """The prediction of one schedule at one batch size; totals are over all batches, one after the other.

    Attributes:
        tpot_s: decoding time of all prompts' sequences over their tokens.
        decode_s, num_passes: seconds and target passes until the last of each batch's initial sequences has ended.
        num_tokens: committed tokens of all prompts.
        mean_rows: mean number of rows per target pass.
    """

    schedule: Schedule
    batch_size: int
    tpot_s: float
    decode_s: float
    num_tokens: int
    num_passes: int
    mean_rows: float

    @property
    def tokens_per_s(self) -> float:
        """Committed tokens per second of a full batch."""
        return self.batch_size / self.tpot_s


class BatchPredictor:
    """Predicts batches for one machine and one acceptance; results that schedules share are computed once."""

    def __init__(
        self, profile: Profile, acceptance: Acceptance, *, costs: Mapping[str, LaneCost] | None = None
    ) -> None:
        """Take the arguments of `sim.evaluator.predict`."""
        self._acceptance = replay_of(acceptance)
        self._tables = DurationTables(profile, self._acceptance.contexts(None), costs)
        self._played = cache(self._play)

    def estimate(self, schedule: Schedule, batch_size: int, alone: Prediction) -> float:
        """Estimate a batch's tokens per second from the prediction of one sequence `alone`, without simulating it.

        A round is assumed to become longer by as much as `RoundCosts.least_s` does: all sequences have a window,
        contexts are shortest, and an overlapping draft is hidden. Other waits of a sequence, misses above all, are
        assumed not to grow. Raises as `predict`.
        """
        costs = self._costs(schedule, batch_size)
        costs.check(batch_size)
        longer_s = costs.least_s(schedule, batch_size) - costs.least_s(schedule, 1)
        return batch_size / (alone.tpot_s + longer_s / alone.mean_acceptance_length)

    def predict(self, schedule: Schedule, batch_size: int) -> BatchPrediction:
        """Predict a schedule with `batch_size` sequences at once (1..256).

        Raises:
            ProfileError: the profile lacks a part that the schedule uses (`OutOfRangeError`: passes of so many rows).
            RecordError: the acceptance does not cover the schedule.
            ConfigError: the batch size is outside 1..256.
        """
        return self._played(schedule, batch_size)

    def _play(self, schedule: Schedule, batch_size: int) -> BatchPrediction:
        costs, outcomes = self._costs(schedule, batch_size), self._acceptance.outcomes(schedule, None)
        count = len(outcomes.lengths)
        batches = []
        for first in range(0, count, batch_size):
            end = min(first + batch_size, count)
            others = islice(cycle(range(count)), end, None)
            batches.append(SimulatedBatch(schedule, costs, outcomes, range(first, end), size=batch_size, others=others))
        played = [batch.play() for batch in batches]
        decode_s = sum(max(trace.decode_s for trace in traces) for traces in played)
        num_tokens, num_passes = sum(outcomes.lengths), sum(batch.num_passes for batch in batches)
        return BatchPrediction(
            schedule=schedule,
            batch_size=batch_size,
            tpot_s=sum(trace.decode_s for traces in played for trace in traces) / num_tokens,
            decode_s=decode_s,
            num_tokens=num_tokens,
            num_passes=num_passes,
            mean_rows=sum(batch.num_rows for batch in batches) / num_passes,
        )

    def _costs(self, schedule: Schedule, batch_size: int) -> RoundCosts:
        if not 1 <= batch_size <= MAX_BATCH:
            raise ConfigError(f"batch_size is {batch_size}: it is 1..{MAX_BATCH}")
        plan = RoundPlan.of(schedule, self._acceptance.shape(schedule), self._tables.profile.num_layers)
        return RoundCosts(schedule, plan, self._tables)


def best_by_batch(
    schedules: Sequence[Schedule],
    profile: Profile,
    acceptance: Acceptance,
    *,
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
) -> dict[int, BatchPrediction]:
    """Return for each batch size the prediction with most tokens per second.

    Raises as `BatchPredictor.predict`, and `ConfigError` for no schedules.
    """
    if not schedules:
        raise ConfigError("there is no schedule to be the best one")
    predictor = BatchPredictor(profile, acceptance)
    return {
        size: max((predictor.predict(one, size) for one in schedules), key=lambda found: found.tokens_per_s)
        for size in batch_sizes
    }


def switch_off_at(best: Mapping[int, BatchPrediction]) -> int | None:
    """Return the smallest batch size from which on plain decoding is fastest; None if it is not at the largest."""
    off: int | None = None
    for size in sorted(best, reverse=True):
        if best[size].schedule.traits.window != "none":
            break
        off = size
    return off
