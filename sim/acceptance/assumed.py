"""Acceptance without a record: texts drawn from assumed rates. It can be used wherever an acceptance record can.

Some schedules need further assumptions: branches from an exit need `exit_coverage`, branches from the draft's
alternatives `alternative_rates`, trees `trees` (their levels count as independent), and a draft with features or
streams `feature_rates` or `stream_rates`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import model_validator

from decoding.errors import ConfigError, shown
from decoding.files import named_path
from decoding.validation import plain, validated
from decoding.yaml_file import StrictModel, load_yaml
from hwprofiles.profile import Profile
from sim.acceptance.drawn_texts import draw_record
from sim.acceptance.rates import TaskRates, Texts
from sim.acceptance.replay import Replay


class AssumedAcceptance(Replay):
    """Texts drawn from rates by task, held in `record`. The three subclasses are convenient constructors."""

    def __init__(self, by_task: Mapping[str, TaskRates], texts: Texts | None = None) -> None:
        """Raise `ConfigError` if there is no task, or tasks differ in which assumptions are given."""
        self.by_task, self.texts, self.has_own_texts = dict(by_task), texts or Texts(), texts is not None
        super().__init__(draw_record(self.by_task, self.texts))

    def within(self, profile: Profile) -> "AssumedAcceptance":
        """Return the same rates with texts drawn within the contexts in which the profile's target was measured."""
        return AssumedAcceptance(self.by_task, self.texts.within(profile))

    def mean_acceptance_length(self, num_speculative_tokens: int) -> float:
        """Return committed tokens per verification of a chain in closed form; drawn texts differ from it by chance.

        It is the harmonic mean over tasks, as all have equally many tokens. Raises as
        `TaskRates.mean_acceptance_length`.
        """
        lengths = [rates.mean_acceptance_length(num_speculative_tokens) for rates in self.by_task.values()]
        return len(lengths) / sum(1 / length for length in lengths)


class Bernoulli(AssumedAcceptance):
    """Each drafted token is accepted with the same rate, given that all before it were accepted."""

    def __init__(self, rate: float, *, texts: Texts | None = None, **assumptions: Any) -> None:
        """Draw texts; `assumptions` are further fields of `TaskRates`, such as `exit_coverage`.

        Raises `ConfigError` if a rate is not within 0..1, or another assumption is invalid.
        """
        super().__init__({"": _rates(rate, assumptions)}, texts)


class PositionRates(AssumedAcceptance):
    """A rate for each position in the window, given that all positions before it were accepted."""

    def __init__(self, rates: Sequence[float], *, texts: Texts | None = None, **assumptions: Any) -> None:
        """Take the arguments of `Bernoulli`; raises likewise. Windows longer than the rates are refused later."""
        super().__init__({"": _rates(tuple(rates), assumptions)}, texts)


class ByTask(AssumedAcceptance):
    """Rates by kind of task; all tasks have the same weight."""

    def __init__(
        self,
        rates: Mapping[str, float | Sequence[float] | TaskRates],
        *,
        texts: Texts | None = None,
        **assumptions: Any,
    ) -> None:
        """Take rates by task; `assumptions` apply to tasks given as plain rates. Raises as `Bernoulli`."""
        super().__init__({task: _rates(one, assumptions) for task, one in rates.items()}, texts)


class AcceptanceFile(StrictModel):
    """A YAML file of assumptions: the fields of `TaskRates`, or `tasks` with the fields of each; optionally `texts`."""

    tasks: dict[str, TaskRates]
    texts: Texts | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_for_all(cls, data: object) -> object:
        if not isinstance(data, dict) or "tasks" in data:
            return data
        rates = {name: value for name, value in data.items() if name != "texts"}
        return {"tasks": {"": rates}, "texts": data.get("texts")}


def parse_acceptance(text: str, *, texts: Texts | None = None) -> AssumedAcceptance:
    """Return the acceptance that `text` means: `0.8` or `80%`, `0.8,0.7,0.6` by position, or the path of a YAML file.

    The file has the fields of `TaskRates`, or `tasks` with the fields of each; its `texts` (fields of `Texts`) override
    the argument::

        rates: [0.8, 0.75, 0.7]
        exit_coverage: {20: [0.3, 0.4, 0.5, 0.55]}

    Raises:
        ConfigError: `text` is none of these, or an assumption is invalid.
    """
    try:
        rates = tuple(_rate(part.strip()) for part in text.split(","))
    except ValueError:
        return _loaded(text, texts)
    if wrong := [rate for rate in rates if not 0 <= rate <= 1]:
        raise ConfigError(f"acceptance {shown(text)}: rates are from 0 to 1, such as 0.8 for 80 %, not {wrong[0]:g}")
    return Bernoulli(rates[0], texts=texts) if len(rates) == 1 else PositionRates(rates, texts=texts)


def _rate(text: str) -> float:
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _loaded(path: str, texts: Texts | None) -> AssumedAcceptance:
    if not named_path(path).is_file():
        msg = f"acceptance {shown(path)} is neither a rate (0.8), nor rates by position (0.8,0.7,0.6), nor a file"
        raise ConfigError(msg)
    found = load_yaml(path, AcceptanceFile)
    try:
        return AssumedAcceptance(found.tasks, found.texts or texts)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _rates(rates: float | Sequence[float] | TaskRates, assumptions: Mapping[str, Any]) -> TaskRates:
    if isinstance(rates, TaskRates):
        return rates
    given = {name: plain(value) for name, value in {"rates": rates, **assumptions}.items()}
    return validated(TaskRates, given, ConfigError)
