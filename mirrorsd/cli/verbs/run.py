"""`mirrorsd run`: a schedule in the real world."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, telling_what_was_saved
from mirrorsd.cli.json_option import STDOUT, JsonOption, write_json
from mirrorsd.cli.other_programs import watching_others

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from calibrate.prompts import Prompt
    from decoding.schedule import Schedule
    from mirrorsd.cli.other_programs import OthersWatch
    from mirrorsd.model_pair import ModelPair
    from mirrorsd.text_engine import Decoding, TextEngine

EXAMPLE = 'mirrorsd run --schedule best.yaml --prompt "Why is the sky blue?"'


def run(
    schedule: options.ScheduleOption,
    prompt: Annotated[str | None, typer.Option(help="One prompt, as text.", show_default=False)] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help='JSON Lines file of prompts: {"prompt": ...} or Spec-Bench rows.', show_default=False),
    ] = None,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="In place of the schedule's drafter, by shipped name or folder: a draft, or a head for medusa, hydra, "
            "eagle2, eagle3 and speculative_streaming; without either the one shipped for the target.",
            show_default=False,
        ),
    ] = None,
    exits: options.ExitsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Of all draws at a temperature above 0.")] = 0,
    max_new_tokens: options.MaxNewTokensOption = 128,
    out: Annotated[
        Path | None,
        typer.Option(help="Append a row per prompt to this JSON Lines file; goes on with it.", show_default=False),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="Take the lanes from this profile instead of this machine's.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not stream the text.")] = False,
    json: JsonOption = None,
) -> None:
    """Decode prompts by a schedule, on real lanes; the text streams to stdout."""
    from decoding.schedule import load_schedule
    from hwprofiles.profile import load_profile
    from mirrorsd.model_pair import name_of
    from mirrorsd.text_engine import Decoding, TextEngine, all_lane_specs, lane_specs

    asked = _asked(prompt, prompts)
    names = options.ModelNames(target, drafter, exits, dtype=dtype)
    pair, wanted = _with_models(load_schedule(schedule), names)
    lanes = all_lane_specs() if profile is None else lane_specs(load_profile(profile))
    decoding = Decoding(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    schedule_entry = wanted.model_dump(mode="json", exclude_defaults=True)
    settings = {
        "schedule": schedule_entry,
        "target": pair.target,
        "exits": name_of(pair.exits) if wanted.uses_exit else None,
        "dtype": pair.dtype,
        **asdict(decoding),
    }
    saved: list[str] = []
    with telling_what_was_saved(saved), TextEngine(pair, lanes) as engine, watching_others() as others:
        answers = _Answers(engine, wanted, decoding, others, streams=not quiet and json != STDOUT)
        rows = answers.to(asked) if out is None else answers.into(out, asked, settings, saved)
    summary = _summary(rows)
    write_json({"schedule": schedule_entry, **summary, "prompts": rows}, json)
    say(_in_words(summary))


def _with_models(schedule: Schedule, names: options.ModelNames) -> tuple[ModelPair, Schedule]:
    """The models that a schedule runs with, and the schedule with the drafter found among them."""
    from mirrorsd.model_pair import find_pair, name_of

    drafter = names.drafter or schedule.drafter
    if schedule.is_tree:
        heads = [drafter] if drafter else None
        pair = find_pair(names.target, exits=names.exits, heads=heads, dtype=names.dtype.value)
        return pair, schedule.model_copy(update={"drafter": _head(pair, schedule)})
    pair = find_pair(names.target, drafter=drafter, exits=names.exits, dtype=names.dtype.value)
    if schedule.draft_lane is None:
        return pair, schedule
    return pair, schedule.model_copy(update={"drafter": name_of(pair.drafter)})


class _Answers:
    """Rows for prompts that are answered one after the other."""

    def __init__(
        self, engine: TextEngine, schedule: Schedule, decoding: Decoding, others: OthersWatch, *, streams: bool
    ) -> None:
        self._engine, self._schedule, self._decoding, self._streams = engine, schedule, decoding, streams
        self._others = others

    def to(self, prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
        """Answer all; the rows."""
        return [self._row(prompt, f"{number}/{len(prompts)}") for number, prompt in enumerate(prompts, 1)]

    def into(
        self, path: Path, prompts: Sequence[Prompt], settings: Mapping[str, Any], saved: list[str]
    ) -> list[dict[str, Any]]:
        """Answer those that the file lacks; all rows asked for. `saved` gets a sentence on what is in the file."""
        from mirrorsd.run_file import RunFile

        with RunFile(path, settings) as file:
            if file.rows:
                say(f"{escaped(path)} has {len(file.rows)} rows already; the others follow.")
            saved.append(f"{path} holds the rows of the prompts finished; the same command goes on after them.")
            for number, prompt in enumerate(prompts, 1):
                if prompt.prompt_id not in file.rows:
                    file.append(self._row(prompt, f"{number}/{len(prompts)}"))
            return [file.rows[prompt.prompt_id] for prompt in prompts]

    def _row(self, prompt: Prompt, place: str) -> dict[str, Any]:
        from mirrorsd.compare.numbers import prompt_numbers

        say(f"[dim]{place} {escaped(prompt.prompt_id)}[/]")
        answer = self._engine.answer(prompt, self._schedule, self._decoding, on_text=self._stream)
        self._stream("\n")
        self._others.look()
        events = [f"{event.lane}: {event.text}" for event in answer.trace.events]
        for event in events:
            say(f"[yellow]{escaped(event)}[/]")
        return {
            "prompt_id": prompt.prompt_id,
            "category": prompt.category,
            "token_ids": list(answer.tokens),
            "text": answer.text,
            **prompt_numbers(answer.trace),
            "events": events,
        }

    def _stream(self, piece: str) -> None:
        if self._streams:
            typer.echo(piece, nl=False)


def _asked(prompt: str | None, prompts: Path | None) -> tuple[Prompt, ...]:
    from calibrate.prompts import Prompt, load_prompts
    from decoding.errors import ConfigError

    if (prompt is None) == (prompts is None):
        msg = "give either --prompt TEXT or --prompts FILE"
        raise ConfigError(msg)
    if prompts is not None:
        return load_prompts(prompts)
    return (Prompt(prompt_id="prompt", category="", turns=(str(prompt),)),)


def _head(pair: ModelPair, schedule: Schedule) -> str:
    from decoding.errors import ConfigError

    name = pair.head_for(schedule.method)
    if name is None:
        given = ", ".join(head.name for head in pair.heads) or "none"
        needs = f"method {schedule.method} needs its own kind of head"
        raise ConfigError(f"{needs}, and those at hand are {given}: name one with --drafter")
    return name


def _summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    num_tokens, num_rounds = sum(len(row["token_ids"]) for row in rows), sum(row["num_rounds"] for row in rows)
    decode_s = sum(row["decode_s"] for row in rows)
    return {
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
    return (
        f"{counted(summary['num_tokens'], 'token')} in {counted(summary['num_rounds'], 'round')} "
        f"({summary['mean_acceptance_length']:.2f} per round), {milliseconds(tpot_s)} per token, "
        f"{tokens_per_second(tpot_s)}"
    )
