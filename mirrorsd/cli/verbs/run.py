"""`mirrorsd run`: decodes prompts with a schedule on this machine."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from decoding.errors import ConfigError, LaneError, MemoryFitError
from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, harmless, results, say, say_whose, telling_what_was_saved, write_json
from mirrorsd.cli.option_values import chosen_prompts, recorded_or_assumed, unused_seed
from mirrorsd.cli.options import STDOUT, option, output
from mirrorsd.cli.progress_bar import task, watching_others

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from calibrate.prompts import Prompt
    from decoding.schedule import Schedule
    from mirrorsd.model_pair import ModelPair
    from mirrorsd.text_engine import Answer, Decoding, ReplayEngine, TextEngine
    from runtime.lanes.lane import LaneSpec

_SEED = "seed"
_MANY_ROUNDS = 32
"""Rounds after which a draft without any accepted token was probably not made for the target."""
EXAMPLE = 'mirrorsd run --schedule best.yaml --prompt "Why is the sky blue?"'


def run(
    schedule: options.ScheduleOption,
    prompt: Annotated[str | None, option("One prompt, as text.")] = None,
    prompts: Annotated[
        Path | None,
        option(
            'JSON Lines file of prompts: {"prompt": ...} or Spec-Bench rows; or a set that ships: demo, pool or long.'
        ),
    ] = None,
    replay: Annotated[
        str | None,
        option(
            "An acceptance record (.npz) of any pair, or rates as `simulate` takes them, in place of prompts: the "
            "models compute as usual, but acceptance is replayed. Meant for models with random weights (shape:PATH); "
            "results say that acceptance was replayed."
        ),
    ] = None,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.ScheduledDrafterOption = None,
    exits: options.ExitsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    temperature: Annotated[float, option("Sampling temperature; 0 is greedy.", min=0.0)] = 0.0,
    seed: Annotated[int, option("Random seed; each repetition of a prompt gets the next seed.", min=0)] = 0,
    max_new_tokens: options.MaxNewTokensOption = 128,
    out: Annotated[
        Path | None, output("Append a row per prompt to this JSON Lines file, or resume it.", kind="JSON Lines")
    ] = None,
    profile: Annotated[Path | None, option("Take the lanes from this profile instead of this machine's.")] = None,
    quiet: Annotated[bool, option("Do not stream the text.", "--quiet")] = False,
    json: options.JsonOption = None,
) -> None:
    """Decode prompts with a schedule on this machine; the text streams to stdout."""
    from decoding.schedule import load_schedule
    from hwprofiles.profile import load_profile
    from mirrorsd.compare.numbers import schedule_entry
    from mirrorsd.lane_choice import all_lane_specs, profile_lanes, require_computed, require_lanes
    from mirrorsd.model_pair import find_scheduled_pair, name_of
    from mirrorsd.text_engine import Decoding, TextEngine
    from runtime.verification.rules import require_temperature

    source = _Source(prompt, prompts, replay)
    source.check(temperature)
    given = load_schedule(schedule)
    require_temperature(temperature, given.verification)
    machine = None if profile is None else load_profile(profile)
    of_others = say_whose(machine)
    lanes = all_lane_specs() if machine is None else profile_lanes(machine)
    require_lanes(given, lanes)
    with telling_what_was_saved([]), task("Finding the models") as report:
        pair, wanted = find_scheduled_pair(
            given, target, drafter=drafter, exits=exits, dtype=dtype.value, progress=report
        )
    require_computed(wanted, pair.dtype)
    decoding = Decoding(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    entry = schedule_entry(wanted)
    settings = {
        "schedule": entry,
        "target": pair.target,
        "exits": name_of(pair.exits),
        "dtype": pair.dtype,
        **asdict(decoding),
        **source.settings,
        **({} if out is None else _digests(pair.only_for(wanted), source) | _computing(wanted, lanes)),
    }
    warnings = list(filter(None, [None if source.settings else pair.unheeded(temperature)]))
    warnings += [*_unused(wanted, drafter, exits), *unused_seed(seed, temperature), *_lossy(wanted, temperature)]
    saved: list[str] = []
    with (
        telling_what_was_saved(saved),
        source.engine(pair, lanes, decoding) as engine,
        watching_others() as others,
    ):
        first = iter([", once the models are loaded"])
        stream = _printed if not quiet and json != STDOUT else lambda _: None

        def seeds(asked: Sequence[Prompt], kept: Mapping[int, int]) -> Sequence[int]:
            if temperature and isinstance(engine, TextEngine):
                return engine.seeds(asked, seed, kept)
            return [seed] * len(asked)

        def row_of(prompt: Prompt, place: str, own_seed: int) -> dict[str, Any]:
            say(f"[dim]{place} {escaped(prompt.prompt_id)}{next(first, '')}[/]")
            own = replace(decoding, seed=own_seed)
            answer = engine.answer(prompt, wanted, own, on_text=stream)
            stream("\n")
            if out is not None and answer.trace.events and not answer.trace.has_loss:
                say("[dim]mirrorsd was paused: the prompt is decoded again, to measure its time[/]")
                with suppress(MemoryFitError, LaneError):  # the first answer is kept, with its events
                    answer = engine.answer(prompt, wanted, own)
            others.look()
            return _row(prompt, answer) | ({_SEED: own_seed} if temperature else {})

        rows = _all_rows(source.asked(engine, wanted, decoding), row_of, seeds, out, settings, saved)
    summary = _summary(rows)
    warnings += [f"{row['prompt_id']}: {event}" for row in rows for event in row.get("events", ())]
    if not source.settings:
        warnings += _never_accepted(wanted, pair.target, summary)
    for warning in warnings:
        say(f"[yellow]{escaped(warning)}[/]")
    given_as = {name: settings[name] for name in ("target", "exits", "dtype")} | asdict(decoding)
    warnings += [*of_others, *others.said]
    write_json({"schedule": entry, **given_as, **summary, "warnings": warnings, "prompts": rows}, json)
    say(_in_words(summary))


def _digests(pair: ModelPair, source: _Source) -> dict[str, str]:
    """Return digests of the files that a row depends on, since its settings have only their names (see `run_file`)."""
    from decoding.files import sha256_of
    from mirrorsd.model_pair import folder_of
    from runtime.storage.sampled_digest import sampled_sha256

    drafters = *pair.heads, pair.drafter
    folders = {"target": pair.target_folder, "drafter": folder_of(drafters[0]), "exits": folder_of(pair.exits)}
    digests = {f"{name}_files": sampled_sha256(folder) for name, folder in folders.items() if folder is not None}
    if source.replay is not None:
        with suppress(OSError):  # rates are not in a file
            digests["replay_files"] = sha256_of(Path(source.replay))
    return digests


def _computing(schedule: Schedule, lanes: Sequence[LaneSpec]) -> dict[str, Any]:
    """Return host and threads of the lanes used, since other machines have lanes of the same names."""
    from hwprofiles.host import computing_host

    names = schedule.target_lane, schedule.draft_lane
    used = sorted((lane for lane in lanes if lane.name in names), key=lambda lane: lane.name)
    host: dict[str, str] = {}
    for lane in used:
        host |= computing_host(lane.device.name)
    return {"host": host, "threads": ", ".join(f"{lane.name}: {lane.num_threads}" for lane in used)}


def _unused(schedule: Schedule, drafter: str | None, exits: str | None) -> Iterator[str]:
    """Yield a warning for each option that names a model which the schedule does not use."""
    if drafter is not None and schedule.traits.drafts == "nobody":
        yield f"--drafter is not used: method {schedule.method} drafts nothing"
    if exits is not None and not schedule.uses_exit:
        yield "--exits is not used: the schedule takes no early exit"


def _lossy(schedule: Schedule, temperature: float) -> Iterator[str]:
    """Yield a warning if the texts do not have the target's distribution."""
    from runtime.verification.rules import is_lossy

    if is_lossy(schedule.verification, temperature):
        yield f"verification {schedule.verification} is lossy: these texts do not have the target's distribution"


def _never_accepted(schedule: Schedule, target: str, summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning if a model's drafts are never accepted: it may be made for another target."""
    rounds = summary["num_rounds"]
    is_by_model = schedule.traits.drafts not in ("nobody", "text")
    if is_by_model and rounds >= _MANY_ROUNDS and summary["num_tokens"] <= rounds:
        yield f"no drafted token was accepted in {rounds} rounds: is {schedule.drafter} made for {target} (--target)?"


class _Source(NamedTuple):
    """What to decode: one prompt, a file of prompts, or the replay of an acceptance."""

    prompt: str | None
    prompts: Path | None
    replay: str | None

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings that rows in the file have because of it."""
        return {} if self.replay is None else {"replay": self.replay}

    def check(self, temperature: float) -> None:
        """Raise `ConfigError` unless exactly one is given, and for a replay with sampling."""
        if sum(value is not None for value in self) != 1:
            raise ConfigError("give exactly one of --prompt TEXT, --prompts FILE and --replay RECORD")
        if self.prompt is not None and not self.prompt.strip():
            raise ConfigError("--prompt is empty")
        if self.settings and temperature > 0:
            raise ConfigError(f"temperature is {temperature}, but acceptance is replayed at temperature 0 only")

    def engine(self, pair: ModelPair, lanes: Sequence[LaneSpec], decoding: Decoding) -> TextEngine | ReplayEngine:
        """Return the engine that answers; raises `ConfigError` if the target cannot read prompts."""
        from mirrorsd.text_engine import DRAWN_PROMPT_LENGTH, ReplayEngine, TextEngine
        from runtime.models.model_folder import has_random_weights
        from sim.acceptance.rates import Texts

        if self.replay is not None:
            drawn = Texts(num_texts=1, num_tokens=decoding.max_new_tokens, prompt_length=DRAWN_PROMPT_LENGTH)
            return ReplayEngine(pair, lanes, recorded_or_assumed(self.replay, drawn))
        if has_random_weights(pair.target_folder):
            raise ConfigError(f"{pair.target} has random weights and cannot read prompts; use --replay instead")
        return TextEngine(pair, lanes)

    def asked(self, engine: TextEngine | ReplayEngine, schedule: Schedule, decoding: Decoding) -> tuple[Prompt, ...]:
        """Return the prompts; raises the errors of all of them before any is answered."""
        from calibrate.prompts import Prompt
        from mirrorsd.text_engine import ReplayEngine

        if isinstance(engine, ReplayEngine):
            engine.check_questions(schedule, decoding)
            return engine.questions
        if self.prompts is not None:
            asked = chosen_prompts(self.prompts)
        else:
            asked = (Prompt(prompt_id="prompt", category="", turns=(str(self.prompt),)),)
        engine.check(asked, schedule, decoding)
        return asked


def _all_rows(
    prompts: Sequence[Prompt],
    row_of: Callable[[Prompt, str, int], dict[str, Any]],
    seeds: Callable[[Sequence[Prompt], Mapping[int, int]], Sequence[int]],
    out: Path | None,
    settings: Mapping[str, Any],
    saved: list[str],
) -> list[dict[str, Any]]:
    """Return the rows of all prompts. Rows that `out` has are kept; new ones are added to it, as `saved` says then."""
    from mirrorsd.run_file import RunFile
    from planner.wording import counted

    places = {prompt.prompt_id: f"{number}/{len(prompts)}" for number, prompt in enumerate(prompts, 1)}
    if out is None:
        own_seeds = seeds(prompts, {})
        return [row_of(one, places[one.prompt_id], own) for one, own in zip(prompts, own_seeds, strict=True)]
    with RunFile(out, settings) as file:
        hashes = {prompt.prompt_id: _hash(prompt) for prompt in prompts}
        known = file.known(hashes)
        if file.rows:
            left = len(places) - len(known)
            say(f"{escaped(out)} has {counted(len(file.rows), 'row')} already; {counted(left, 'prompt')} to go.")
        kept = {place: known[one.prompt_id] for place, one in enumerate(prompts) if one.prompt_id in known}
        own_seeds = seeds(prompts, {place: row.get(_SEED, settings[_SEED]) for place, row in kept.items()})
        try:
            for prompt, own in zip(prompts, own_seeds, strict=True):
                if prompt.prompt_id not in known:
                    known[prompt.prompt_id] = row_of(prompt, places[prompt.prompt_id], own)
                    file.append(known[prompt.prompt_id])
        finally:
            saved.append(_kept_in_words(out, len(file.known(hashes)), len(prompts)))
        return [known[prompt.prompt_id] for prompt in prompts]


def _kept_in_words(out: Path, num_kept: int, num_asked: int) -> str:
    """Return a sentence on what is in the file after an interruption: rows of whole texts only."""
    from planner.wording import counted

    unfinished = ", but not the unfinished one. The same command continues with it."
    return f"{out} has {num_kept} of {counted(num_asked, 'text')}{unfinished if num_kept < num_asked else '.'}"


def _row(prompt: Prompt, answer: Answer) -> dict[str, Any]:
    from mirrorsd.compare.numbers import prompt_numbers

    return {
        "prompt_id": prompt.prompt_id,
        "prompt_hash": _hash(prompt),
        "category": prompt.category,
        "token_ids": list(answer.tokens),
        "text": answer.text,
        **prompt_numbers(answer.trace),
        "events": [f"{event.lane}: {event.text}" for event in answer.trace.events],
        **({"label": answer.trace.label} if answer.trace.label else {}),
    }


def _printed(piece: str) -> None:
    typer.echo(harmless(piece) if results().is_terminal else piece, nl=False)


def _hash(prompt: Prompt) -> str:
    return hashlib.sha256(prompt.text.encode("utf-8")).hexdigest()


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    num_tokens, num_rounds = sum(len(row["token_ids"]) for row in rows), sum(row["num_rounds"] for row in rows)
    decode_s = sum(row["decode_s"] for row in rows)
    labels = sorted({row["label"] for row in rows if row.get("label")})
    return {
        **({"label": "; ".join(labels)} if labels else {}),
        "num_prompts": len(rows),
        "num_tokens": num_tokens,
        "num_rounds": num_rounds,
        "mean_acceptance_length": num_tokens / num_rounds,
        "prefill_s": sum(row["prefill_s"] for row in rows),
        "decode_s": decode_s,
        "tpot_s": decode_s / num_tokens,
    }


def _in_words(summary: Mapping[str, Any]) -> str:
    from planner.wording import counted, milliseconds, tokens_per_second

    tpot_s = summary["tpot_s"]
    label = f"With {summary['label']}: " if "label" in summary else ""
    return label + (
        f"{counted(summary['num_tokens'], 'token')} in {counted(summary['num_rounds'], 'round')} "
        f"({summary['mean_acceptance_length']:.2f} per round), {milliseconds(tpot_s)} per token, "
        f"{tokens_per_second(tpot_s)}"
    )
