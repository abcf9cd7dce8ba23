"""`mirrorsd calibrate`: what every part of the models costs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mirrorsd.cli.console import escaped, show, telling_what_was_saved
from mirrorsd.cli.json_option import JsonOption, write_json
from mirrorsd.cli.options import (
    DEFAULT_TARGET,
    DrafterOption,
    Dtype,
    DtypeOption,
    ExitsOption,
    HeadsOption,
    PromptsOption,
    TargetOption,
    chosen_heads,
    chosen_prompts,
)
from mirrorsd.cli.progress import task

if TYPE_CHECKING:
    from hwprofiles.profile import Profile

EXAMPLE = "mirrorsd calibrate --quick --out profile.yaml"


def calibrate(
    out: Annotated[Path, typer.Option(help="Where the profile goes (YAML).")],
    quick: Annotated[bool, typer.Option("--quick", help="At most a minute for the embedded model, rougher.")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            help="Leave out repeats that do not fit in so many; without it one with --quick, else no limit.",
            show_default=False,
        ),
    ] = None,
    prompts: PromptsOption = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest text that schedules will decode.")] = 64,
    max_window: Annotated[int, typer.Option(min=1, max=16, help="Most drafted tokens per round.")] = 8,
    max_branches: Annotated[int, typer.Option(min=1, max=1024, help="Most branches per round.")] = 32,
    target: TargetOption = DEFAULT_TARGET,
    drafter: DrafterOption = None,
    exits: ExitsOption = None,
    heads: HeadsOption = None,
    dtype: DtypeOption = Dtype.BFLOAT16,
    json: JsonOption = None,
) -> None:
    """Measure this machine with these models; the prompts only say how long contexts get."""
    from mirrorsd.calibrate_pair import calibrate as measure
    from mirrorsd.calibrate_pair import contexts_of
    from mirrorsd.model_pair import find_pair
    from mirrorsd.prompt_tokens import encode

    wanted = chosen_prompts(prompts, None)
    with telling_what_was_saved([]), task("Calibrating") as report:
        pair = find_pair(
            target, drafter=drafter, exits=exits, heads=chosen_heads(heads), dtype=dtype.value, progress=report
        )
        contexts = contexts_of(encode(wanted, pair.target_folder), max_new_tokens)
        profile = measure(
            pair,
            out,
            contexts=contexts,
            max_window=max_window,
            max_branches=max_branches,
            quick=quick,
            time_s=None if minutes is None else 60 * minutes,
            progress=report,
        )
    if write_json({"path": str(out), "profile": profile.model_dump(mode="json", exclude_defaults=True)}, json):
        show(_told(profile, out))


def _told(profile: Profile, out: Path) -> str:
    from planner.wording import milliseconds, percent, seconds

    lines = [
        f"Wrote {escaped(out)} after {seconds(profile.calibration_s)}, checked to {percent(profile.relative_error)}."
    ]
    for lane in profile.lanes:
        context = lane.layer.contexts[0] if lane.layer else 0
        parts = [("layer", lane.layer), ("output head", lane.lm_head), ("draft step", lane.draft_step)]
        parts.append(("streams of the draft", lane.draft_streams))
        parts += [(f"step of {name}", table) for name, table in lane.heads.items()]
        parts += [(f"streams of {name}", table) for name, table in lane.streams.items()]
        told = [
            f"{name} {milliseconds(table.at(table.rows[0], context))}" for name, table in parts if table is not None
        ]
        lines.append(f"{escaped(lane.name)}: {', '.join(told)} for one row")
    for pair in profile.contention:
        sides = [f"{name} {slowdown:.2f}x" for name, slowdown in zip(pair.lanes, pair.slowdown, strict=True)]
        lines.append(f"side by side: {escaped(', '.join(sides))}")
    return "\n".join([*lines, *map(escaped, profile.notes)])
