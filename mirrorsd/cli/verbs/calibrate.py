"""`mirrorsd calibrate`: times every part of the models on this machine and writes a profile."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, say_next, show, telling_what_was_saved, write_json
from mirrorsd.cli.option_values import ModelNames, beside, chosen_prompts, fit_each_other, reach_words, say_unused
from mirrorsd.cli.options import option
from mirrorsd.cli.progress_bar import task, watching_others

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    from hwprofiles.profile import Profile

_RATE = 0.6
"""The acceptance in the suggested next command if none can be recorded (random weights)."""

EXAMPLE = "mirrorsd calibrate --quick --out profile.yaml"


def calibrate(
    out: Annotated[Path, options.output("Where the profile goes (YAML).", kind="YAML")],
    quick: Annotated[bool, option("Measure fewer sizes, and only as often as 100 seconds allow.", "--quick")] = False,
    minutes: Annotated[
        float | None,
        option(
            "Stop after so many minutes, but time everything at least once. Default: 100 seconds with --quick, else "
            "until everything was timed five times.",
            min=0.1,
            max=options.MOST_MINUTES,
        ),
    ] = None,
    prompts: options.PromptsOption = None,
    max_new_tokens: options.MaxNewTokensOption = options.MAX_NEW_TOKENS,
    max_window: options.MaxWindowOption = options.MAX_WINDOW,
    max_branches: Annotated[int, option("Limit of branches per round.", min=1, max=1024)] = 32,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.DrafterOption = None,
    exits: options.ExitsOption = None,
    heads: options.HeadsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    device: options.DeviceOption = None,
    lanes: options.LanesOption = None,
    json: options.JsonOption = None,
) -> None:
    """Measure this machine with these models; run it again to resume. Prompts are used for their lengths only."""
    from calibrate.profiling.unfinished import Unfinished
    from decoding.record import AcceptanceRecord
    from mirrorsd.lane_choice import chosen_lanes, usual_device
    from mirrorsd.measure_pair import calibrate as measure
    from mirrorsd.measure_pair import contexts_of
    from mirrorsd.prompt_tokens import num_tokens
    from runtime.backends.lane_device import Device
    from runtime.models.model_folder import has_random_weights

    wanted = chosen_prompts(prompts)
    names = ModelNames(target, drafter, exits, heads, dtype)
    unfinished = Unfinished(out, lambda text: say(escaped(text)))
    with telling_what_was_saved(unfinished.saved), task("Calibrating") as report, watching_others() as others:
        pair = names.find(report)
        say_unused(pair, device, lanes)
        contexts = contexts_of(num_tokens(wanted, pair.target_folder), max_new_tokens)
        profile = measure(
            pair,
            out,
            lanes=chosen_lanes(device, lanes, pair),
            contexts=contexts,
            max_window=max_window,
            max_branches=max_branches,
            quick=quick,
            time_s=None if minutes is None else 60 * minutes,
            progress=others.on(report),
            unfinished=unfinished,
        )
    if write_json({"path": str(out), "profile": profile.model_dump(mode="json", exclude_defaults=True)}, json):
        for part in _shown(profile, out):
            show(part)
        if has_random_weights(pair.target_folder):
            say_next("search", "--profile", out, "--acceptance", _RATE, "--out", "best.yaml")
        else:
            reach = reach_words(prompts, max_new_tokens, max_window)
            timed_on = Device.of_lane(profile.lanes[0].name).name  # a record is valid for lanes of its device
            on = () if timed_on == usual_device(pair) else ("--device", timed_on)
            own = [out.with_name(name) for name in ("record.npz", f"{out.stem.removesuffix('-profile')}.npz")]
            if out.name != "profile.yaml":
                own.reverse()  # by its name `record` finds a profile of that name
            record, is_there = beside(own, lambda path: fit_each_other(profile, AcceptanceRecord.load(path)))
            if is_there:
                say_next("search", "--profile", out, "--record", record, "--out", out.with_name("best.yaml"))
            else:
                say_next("record", *names._replace(target=pair.target).words, *on, *reach, "--out", record)


def _shown(profile: "Profile", out: Path) -> "Iterator[str | Table]":
    from mirrorsd.cli.tables import NOTHING, plain_table
    from planner.report.table import named_tables
    from planner.wording import in_ms, percent, seconds

    yield f"Wrote {escaped(out)} after {seconds(profile.calibration_s)}."
    yield (
        f"All predicted times may have a common error of up to {percent(profile.common_error)}, which does not affect "
        "speed-ups."
    )
    parts = [dict(named_tables(lane)) for lane in profile.lanes]
    rows = [
        (name, *(in_ms(own[name].seconds[0][0]) if name in own else NOTHING for own in parts))
        for name in dict.fromkeys(chain.from_iterable(parts))
    ]
    title = "ms for the fewest rows and the shortest context"
    yield plain_table(title, ("part",), [escaped(lane.name) for lane in profile.lanes], rows)
    for pair in profile.contention:
        roles = zip(("target", "draft"), pair.lanes, pair.slowdown, strict=True)
        sides = [f"{role} on {name} {slowdown:.2f}x" for role, name, slowdown in roles]
        yield f"Slowdown when both work at once: {escaped(', '.join(sides))}"
    yield from map(escaped, profile.notes)
