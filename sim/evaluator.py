"""The fast simulator (array world): all rounds of all prompts at once as array operations, to search many schedules.

For one sequence at a time it gives exactly the results of the event world (`sim.world`), on any profile: acceptance
decides which rounds a sequence goes through, and the schedule decides how long each round takes. Batches, in which
sequences wait for each other, need the event world (`sim.batch_prediction`).
"""

from collections.abc import Mapping

from costs.cost_model import Floats, LaneCost
from costs.durations import DurationTables
from decoding.schedule import Schedule
from hwprofiles.profile import Profile
from sim.acceptance.replay import Acceptance, replay_of
from sim.acceptance.walk import Walk
from sim.arrays.array_lanes import Decided, time_rounds
from sim.prediction import Prediction, RoundTimes, summarise


class Evaluator:
    """Predicts schedules for one machine and one acceptance; results that schedules share are computed once."""

    def __init__(
        self,
        profile: Profile,
        acceptance: Acceptance,
        *,
        max_new_tokens: int | None = None,
        costs: Mapping[str, LaneCost] | None = None,
        tables: DurationTables | None = None,
    ) -> None:
        """Take the arguments of `predict`; `tables` are those of another evaluator on the same machine, to reuse.

        Raises `RecordError` if the record has no text, or its texts were cut before `max_new_tokens`.
        """
        self._acceptance = replay_of(acceptance)
        self._max_new_tokens = max_new_tokens
        contexts = self._acceptance.contexts(max_new_tokens)
        self._tables = DurationTables(profile, contexts, costs) if tables is None else tables.over(contexts)

    def with_texts(self, acceptance: Acceptance) -> "Evaluator":
        """Return an evaluator of another acceptance on the same machine that shares this one's duration tables."""
        tables = self._tables
        return Evaluator(tables.profile, acceptance, max_new_tokens=self._max_new_tokens, tables=tables)

    def missing(self, schedule: Schedule) -> str | None:
        """Return why `predict` would refuse a schedule (not recorded or not measured); None if it would not."""
        reason = self._acceptance.missing(schedule)
        return reason or self._tables.missing(schedule, self._acceptance.shape(schedule))

    def predict(self, schedule: Schedule) -> Prediction:
        """Return the prediction of one schedule; raises as the function `predict`."""
        walk, times = self._timed(schedule)
        return summarise(
            walk,
            times,
            self._tables.facts(schedule, self._acceptance.shape(schedule)),
            profile=self._tables.profile,
            schedule=schedule,
            prefill_s=self._tables.prefill.known(schedule, walk.prompt_lengths),
            acceptance_source=self._acceptance.source,
        )

    def tpot_s(self, schedule: Schedule) -> float:
        """Return only the `tpot_s` of `predict`, which is faster."""
        decode_s, tokens = self.prompt_times(schedule)
        return float(decode_s.sum()) / int(tokens.sum())

    def prompt_times(self, schedule: Schedule) -> tuple[Floats, Floats]:
        """Return (decoding seconds, committed tokens), both [prompts]."""
        walk, times = self._timed(schedule)
        return walk.sums(times.seconds), walk.tokens_by_prompt

    def _timed(self, schedule: Schedule) -> tuple[Walk, RoundTimes]:
        acceptance = self._acceptance
        walk = acceptance.walk(schedule, self._max_new_tokens)
        branches = acceptance.branches(schedule, walk)
        durations = self._tables.durations(schedule, acceptance.shape(schedule))
        guessing = acceptance.guessing(schedule)
        guesses = None if guessing is None else guessing.counts(walk.at)
        return walk, time_rounds(schedule, durations, Decided(walk, branches, guesses))


def predict(
    schedule: Schedule,
    profile: Profile,
    acceptance: Acceptance,
    *,
    max_new_tokens: int | None = None,
    costs: Mapping[str, LaneCost] | None = None,
) -> Prediction:
    """Predict a schedule on `profile`; all schedules decode the same texts, cut at `max_new_tokens`.

    The profile must cover every context in which a round could start; `costs` replace its tables, by lane.

    Raises:
        ProfileError: the profile lacks a part that the schedule uses (`OutOfRangeError`: rows or contexts).
        RecordError: the record does not cover the schedule.
        ConfigError: the schedule does not fit the target.
    """
    return Evaluator(profile, acceptance, max_new_tokens=max_new_tokens, costs=costs).predict(schedule)
