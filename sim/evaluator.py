"""The fast simulator: whole prompts as array operations, for searching over many schedules.

It answers exactly as the event world of `sim.world` does, for one sequence at a time on any profile. What a window
holds decides which rounds a sequence goes through; a schedule decides how long each takes. Both are found for all
rounds of all prompts at once. What several sequences make each other wait for is a matter of events.
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
    """Predicts schedules on one machine and one acceptance; what they share is looked up once."""

    def __init__(
        self,
        profile: Profile,
        acceptance: Acceptance,
        *,
        max_new_tokens: int | None = None,
        costs: Mapping[str, LaneCost] | None = None,
        tables: DurationTables | None = None,
    ) -> None:
        """Take what `predict` takes, and perhaps the tables of another evaluator on the same machine.

        Raises `RecordError` if the record has no text, or was cut before `max_new_tokens`.
        """
        self._acceptance = replay_of(acceptance)
        self._max_new_tokens = max_new_tokens
        contexts = self._acceptance.contexts(max_new_tokens)
        self._tables = DurationTables(profile, contexts, costs) if tables is None else tables.over(contexts)

    def with_texts(self, acceptance: Acceptance) -> "Evaluator":
        """Return an evaluator of other texts on the same machine; what operations take is looked up once for both."""
        tables = self._tables
        return Evaluator(tables.profile, acceptance, max_new_tokens=self._max_new_tokens, tables=tables)

    def missing(self, schedule: Schedule) -> str | None:
        """Return why `predict` would refuse the schedule (not recorded, or not measured), or None."""
        reason = self._acceptance.missing(schedule)
        return reason or self._tables.missing(schedule, self._acceptance.shape(schedule))

    def predict(self, schedule: Schedule) -> Prediction:
        """Return the prediction of one schedule; errors are those of the function `predict`."""
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
        """Return the `tpot_s` of `predict`, without all else that it works out."""
        decode_s, tokens = self.prompt_times(schedule)
        return float(decode_s.sum()) / int(tokens.sum())

    def prompt_times(self, schedule: Schedule) -> tuple[Floats, Floats]:
        """Return the seconds that decoding takes, and the tokens that it commits, both by prompt."""
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
    """Predict what a schedule does on `profile`; all schedules meet the same texts, cut at `max_new_tokens`.

    The profile must cover every context in which a round could start; `costs` replace its tables, by lane.

    Raises:
        ProfileError: the profile lacks what the schedule uses (`OutOfRangeError` where it was not measured so far).
        RecordError: the record does not cover the schedule.
        ConfigError: the schedule does not fit the target.
    """
    return Evaluator(profile, acceptance, max_new_tokens=max_new_tokens, costs=costs).predict(schedule)
