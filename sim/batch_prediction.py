"""Decoding in batches, simulated: the sequences of a batch share one machine, see `sim.events.simulated_batch`.

Prompts are taken in order, `batch_size` at a time. A batch stays full: the next prompt (after the last the first again)
takes the place of a sequence that has ended, until the first ones have all ended. So a batch brings `batch_size` tokens
in the time that each of these takes for one, however unlike they are. Prefill is not counted.

Nothing here runs for real yet: the runtime decodes one sequence at a time.
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
    """The prediction of one schedule at one batch size; sums run over all batches, one after the other.

    Attributes:
        tpot_s: a sequence's own decoding time over its tokens, on average over tokens.
        decode_s, num_passes: until the last sequence that a batch began with ends: seconds, target passes.
        num_tokens: committed tokens of all prompts.
        mean_rows: rows of a pass.
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
        """Committed tokens of a full batch, per second."""
        return self.batch_size / self.tpot_s


class BatchPredictor:
    """Predicts batches on one machine and one acceptance; what schedules share is looked up once."""

    def __init__(
        self, profile: Profile, acceptance: Acceptance, *, costs: Mapping[str, LaneCost] | None = None
    ) -> None:
        """Take what `sim.evaluator.predict` takes."""
        self._acceptance = replay_of(acceptance)
        self._tables = DurationTables(profile, self._acceptance.contexts(None), costs)
        self._played = cache(self._play)

    def estimate(self, schedule: Schedule, batch_size: int, alone: Prediction) -> float:
        """Estimate a batch's tokens per second from the prediction of one sequence `alone`, without playing it.

        A round takes as much longer as its least does: if all have a window, contexts are the shortest, and a draft
        that works at the same time as the target is hidden. What else one sequence waits for (misses, above all) is
        taken to be no more for several. Errors are those of `predict` for full batches.
        """
        costs = self._costs(schedule, batch_size)
        costs.check(batch_size)
        longer_s = costs.least_s(schedule, batch_size) - costs.least_s(schedule, 1)
        return batch_size / (alone.tpot_s + longer_s / alone.mean_acceptance_length)

    def predict(self, schedule: Schedule, batch_size: int) -> BatchPrediction:
        """Predict what a schedule does with `batch_size` sequences at once (1..256).

        Raises:
            ProfileError: the profile lacks what the schedule uses (`OutOfRangeError`: passes of so many rows).
            RecordError: the acceptance does not cover the schedule.
            ConfigError: the batch size is not among these.
        """
        return self._played(schedule, batch_size)

    def _play(self, schedule: Schedule, batch_size: int) -> BatchPrediction:
        costs, outcomes = self._costs(schedule, batch_size), self._acceptance.outcomes(schedule, None)
        count = len(outcomes.lengths)
        ends = [min(first + batch_size, count) for first in range(0, count, batch_size)]
        batches = [
            SimulatedBatch(
                schedule,
                costs,
                outcomes,
                range(place * batch_size, end),
                size=batch_size,
                others=islice(cycle(range(count)), end, None),
            )
            for place, end in enumerate(ends)
        ]
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
    """Return for every batch size the schedule of most tokens per second; errors as in `BatchPredictor.predict`.

    Raises `ConfigError` as well if there is no schedule.
    """
    if not schedules:
        raise ConfigError("there is no schedule to be the best one")
    predictor = BatchPredictor(profile, acceptance)
    return {
        size: max((predictor.predict(one, size) for one in schedules), key=lambda found: found.tokens_per_s)
        for size in batch_sizes
    }


def switch_off_at(best: Mapping[int, BatchPrediction]) -> int | None:
    """Return the least batch size from which plain decoding stays fastest; None if speculation wins at the largest."""
    off: int | None = None
    for size in sorted(best, reverse=True):
        if best[size].schedule.traits.window != "none":
            break
        off = size
    return off
