"""Turns option values into models, prompts and acceptance, and models back into options for the next command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from decoding.errors import ConfigError, MirrorsdError, OutOfRangeError, PlanError, shown
from mirrorsd.cli.options import DEFAULT_TARGET, MAX_NEW_TOKENS, MAX_WINDOW, Dtype

if TYPE_CHECKING:
    from calibrate.prompts import Prompt, PromptSet
    from decoding.progress import ReportProgress
    from decoding.record import AcceptanceRecord
    from hwprofiles.profile import Profile
    from mirrorsd.model_pair import ModelPair
    from mirrorsd.pair_on_platform import PlannedMachine, Storage
    from planner.platform_plan.question import Question
    from sim.acceptance.assumed import AssumedAcceptance
    from sim.acceptance.rates import Texts


class ModelNames(NamedTuple):
    """The models that a verb's options name."""

    target: str = DEFAULT_TARGET
    drafter: str | None = None
    exits: str | None = None
    heads: str | None = None
    dtype: Dtype = Dtype.BFLOAT16

    def find(self, progress: ReportProgress) -> ModelPair:
        """Find the models; raises `ModelError` if one is not available."""
        from mirrorsd.model_pair import find_pair

        named = () if self.heads in (None, "none") else tuple(filter(None, listed(str(self.heads))))
        return find_pair(
            self.target,
            drafter=self.drafter,
            exits=self.exits,
            heads=None if self.heads is None else named,
            dtype=self.dtype.value,
            progress=progress,
        )

    @property
    def words(self) -> tuple[str, ...]:
        """Return the options that name the models on a command line, defaults left out."""
        return _words(self._asdict(), ModelNames()._asdict())


def reach_words(prompts: Path | None, max_new_tokens: int, max_window: int) -> tuple[str, ...]:
    """Return the options that calibration and record have to share, defaults left out."""
    given: dict[str, object] = {"prompts": prompts, "max-new-tokens": max_new_tokens, "max-window": max_window}
    return _words(given, {"max-new-tokens": MAX_NEW_TOKENS, "max-window": MAX_WINDOW})


def _words(given: dict[str, object], defaults: dict[str, object]) -> tuple[str, ...]:
    named = {name: value for name, value in given.items() if value not in (None, defaults.get(name))}
    return tuple(word for name, value in named.items() for word in (f"--{name}", str(value)))


def models_of(record: AcceptanceRecord, exits: str | None = None) -> ModelNames:
    """Return the recorded models by the names for `mirrorsd run`; schedules name drafters themselves.

    `exits` are those that the user named; None for the recorded ones.
    """
    from runtime.drafters.registry import shipped_names

    is_default = record.target == DEFAULT_TARGET and record.exits in shipped_names()
    return ModelNames(record.target, exits=exits or (None if is_default else record.exits), dtype=Dtype(record.dtype))


def beside(names: Sequence[Path], fits: Callable[[Path], bool]) -> tuple[Path, bool]:
    """Return (path, True) for the first existing file that fits; files that cannot be read do not fit.

    If none fits, return (path, False) for the first path without a file, or else the last path.
    """
    for path in filter(Path.exists, names):
        with suppress(MirrorsdError):
            if fits(path):
                return path, True
    return next((path for path in names if not path.exists()), names[-1]), False


def fit_each_other(profile: Profile, record: AcceptanceRecord) -> bool:
    """Return whether a search accepts both: they are of the same models, and the profile covers the texts' lengths."""
    from mirrorsd.compare.calibrated_lengths import require_reach
    from mirrorsd.simulation import require_same_models

    try:
        require_same_models(profile, record)
        require_reach(profile, record, [lane.name for lane in profile.lanes])
    except (ConfigError, OutOfRangeError):
        return False
    return True


def recorded_or_assumed(text: str, texts: Texts | None = None) -> AcceptanceRecord | AssumedAcceptance:
    """Return the record in a file (.npz), or the acceptance that a text states, with texts drawn as `texts` says."""
    from decoding.record import AcceptanceRecord
    from sim.acceptance.assumed import parse_acceptance

    return AcceptanceRecord.load(text) if text.endswith(".npz") else parse_acceptance(text, texts=texts)


def chosen_acceptance(record: Path | None, acceptance: str | None, profile: Profile) -> AcceptanceRecord:
    """Return the acceptance that `--record` or `--acceptance` gives; drawn texts fit the contexts of the profile.

    Raises `ConfigError` if neither or both are given.
    """
    from decoding.record import AcceptanceRecord

    if (record is None) == (acceptance is None):
        raise ConfigError("give either a --record or the rates to assume (--acceptance)")
    if record is not None:
        return AcceptanceRecord.load(record)
    if str(acceptance).endswith(".npz"):
        raise ConfigError(f"--acceptance {acceptance}: is a record; give it with --record")
    from sim.acceptance.assumed import parse_acceptance
    from sim.acceptance.rates import Texts

    return parse_acceptance(str(acceptance), texts=Texts().within(profile)).record


def reaching(
    profile: Profile,
    record: AcceptanceRecord,
    lanes: Collection[str],
    sides: tuple[object, object],
    warnings: list[str],
    *,
    max_new_tokens: int | None = None,
) -> Profile:
    """Return the profile of `calibrated_lengths.reaching`; print its warning and append it to `warnings`."""
    from mirrorsd.cli.console import escaped, say
    from mirrorsd.compare.calibrated_lengths import reaching as extrapolated

    longer, warning = extrapolated(profile, record, lanes, sides=sides, max_new_tokens=max_new_tokens)
    if warning is not None:
        say(f"[yellow]{escaped(warning)}[/]")
        warnings.append(warning)
    return longer


def chosen_prompts(
    path: Path | None, per_category: int | None = None, *, default: PromptSet = "demo"
) -> tuple[Prompt, ...]:
    """Return the prompts that `--prompts` and `--per-category` ask for; without a path the shipped set `default`."""
    from calibrate.prompts import PROMPT_SETS, bundled_prompts, load_prompts, take_per_category

    name: PromptSet | None = default
    if path is not None:
        name = next((one for one in PROMPT_SETS if one == str(path) and not path.exists()), None)
    prompts = load_prompts(str(path)) if name is None else bundled_prompts(name)
    return prompts if per_category is None else take_per_category(prompts, per_category)


def unused_seed(seed: int, temperature: float) -> list[str]:
    """Return a warning if a seed is given although decoding is greedy."""
    return ["--seed is not used: decoding at temperature 0 is greedy"] if seed and not temperature else []


def listed(text: str) -> list[str]:
    """Return the names in a comma-separated list, each once."""
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def every_name(lists: Sequence[str]) -> list[str]:
    """Return the names in several comma-separated lists, repetitions included."""
    return [name.strip() for one in lists for name in one.split(",")]


def counts(option: str, text: str, most: int) -> tuple[int, ...]:
    """Return the numbers (1 to `most`) that an option lists, sorted, each once; `ConfigError` for anything else."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not (part.isdecimal() and len(part) < 10 and 1 <= int(part) <= most)]
    if wrong or not parts:
        raise ConfigError(f"{option} {shown(text)}: write numbers from 1 to {most}, such as 1,2,4,8")
    return tuple(sorted(set(map(int, parts))))


def num_tokens(text: str | int, *, least: int = 1) -> int:
    """Return a number of tokens typed as `8192` or `8k` (k = 1024); `ConfigError` for others, or below `least`."""
    plain = str(text).strip().lower()
    digits = plain.removesuffix("k")
    if not (digits.isdecimal() and len(digits) < 10 and int(digits) >= least):
        raise ConfigError(f"{shown(text)} is not a number of tokens ({least} or more, such as 8192 or 8k)")
    return int(digits) * (1 if digits == plain else 1024)


def cached_tokens(text: str | int) -> int:
    """Parse like `num_tokens`, with 0 allowed; a text or, for an option's default, a number."""
    return num_tokens(text, least=0)


def say_added(add: Sequence[str]) -> list[str]:
    """Print and return what is assumed for added devices: a card's link, and which device of a chip a name means."""
    from hwprofiles.machines.device_names import devices_of_chip, find_device
    from hwprofiles.overrides import usual_link
    from hwprofiles.sheets import device_sheet, link_sheet
    from mirrorsd.cli.console import escaped, say

    sentences = []
    for one in add:
        name, has_link, _ = map(str.strip, one.partition("@"))
        link, device = None if has_link else usual_link(name), find_device(name)
        if link is not None and link.startswith("pcie"):
            sentences.append(
                f"Assumed: {name} is connected by {link_sheet(link).name}; --add {name}@LINK names another link"
            )
        if device is None or device.sheet == name:
            continue
        others = [other for other in devices_of_chip(device_sheet(device.sheet)) if other != device.sheet]
        if others:
            sentences.append(
                f"Added {device.sheet}; its chip also has {', '.join(others)}, which --add adds by these names"
            )
    for sentence in sentences:
        say(escaped(sentence))
    return sentences


def say_unused(pair: ModelPair, *chosen: str | None) -> None:
    """Name the devices that are not used, if the user has chosen neither device nor lanes (`chosen`)."""
    from mirrorsd.cli.console import escaped, say
    from mirrorsd.lane_choice import unused_devices

    for device in unused_devices(pair) if chosen == (None,) * len(chosen) else ():
        say(escaped(f"Not used: {device.name} ({device.description}). --device {device.name} uses it"))


def questions_of(
    ask: Callable[..., Question], machines: Mapping[str, PlannedMachine], drafts: Sequence[str], stored: Storage
) -> tuple[dict[str, dict[str, Question]], Storage, dict[str, str]]:
    """Return all questions by machine and draft, how models are stored, and the drafts left out with the reasons.

    All questions are made before the first is answered, so that a wrong name costs no time. Drafts that cannot draft
    for the target are left out with a message; `PlanError` if none can.
    """
    from mirrorsd.cli.console import escaped, say
    from mirrorsd.pair_on_platform import weights_for_all

    found: dict[str, dict[str, Question]] = {name: {} for name in machines}
    refused: dict[str, PlanError] = {}
    for draft in drafts:
        try:
            asked = {name: ask(draft, platform=machine, weights=stored) for name, machine in machines.items()}
        except PlanError as error:
            refused[draft] = error
            continue
        for name, question in asked.items():
            found[name][draft] = question
    if len(refused) == len(drafts):
        raise next(iter(refused.values()))
    weights = weights_for_all(found)
    if weights is not None:
        return questions_of(ask, machines, drafts, stored._replace(target=weights))
    for reason in refused.values():
        say(f"[yellow]Left out: {escaped(reason)}[/]")
    return found, stored, {draft: str(error) for draft, error in refused.items()}


def known_acceptance(
    acceptance: str | None, acceptance_out: Path | None
) -> AssumedAcceptance | AcceptanceRecord | None:
    """Return the acceptance that `--acceptance` gives, if any; `ConfigError` if it is a record and would be written."""
    from decoding.record import AcceptanceRecord

    known = None if acceptance is None else recorded_or_assumed(acceptance)
    if acceptance_out is not None and isinstance(known, AcceptanceRecord):
        raise ConfigError(f"--acceptance-out {acceptance_out}: the acceptance was recorded, not assumed")
    return known


def changes_of(settings: Sequence[str]) -> dict[str, str]:
    """Return the values that `--set` gives, by PART.FIELD."""
    found: dict[str, str] = {}
    for setting in settings:
        part, equals, value = map(str.strip, setting.partition("="))
        if not equals:
            raise ConfigError(f"--set {setting!r}: write PART.FIELD=VALUE, such as npu.memory_efficiency=0.5")
        if part in found:
            raise ConfigError(f"--set {part}: is given more than once")
        found[part] = value
    return found
