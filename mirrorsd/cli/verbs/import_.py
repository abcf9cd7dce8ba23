"""`mirrorsd import`: reads costs and acceptance from files that engines and their benchmarks wrote."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from decoding.errors import ConfigError, cut
from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, show, show_paragraphs, write_json
from mirrorsd.cli.option_values import cached_tokens
from mirrorsd.cli.options import option, output

if TYPE_CHECKING:
    from planner.imported.bench_curves import BenchCurve
    from planner.imported.engine_acceptance import EngineAcceptance

EXAMPLE = (
    "mirrorsd import target.jsonl draft.jsonl metrics.txt --profile-out engine.yaml --acceptance-out accepted.yaml"
)
_OF_LATENCY = "it is for vLLM's bench latency only"
_OF_PROFILE = "it is for --profile-out only"
_USES = {
    "batch_size": _OF_LATENCY,
    "draft": _OF_PROFILE,
    "new_tokens": _OF_LATENCY,
    "weights": _OF_PROFILE,
    "window": "it is for metrics and answers of engines that do not say how many tokens were drafted",
}


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Output of llama-bench (-p 1,2,3,4,5,6,8,12,16 -n 32), llama-batched-bench, vLLM's or SGLang's "
            "benchmarks; tables of LLMServingSim or Vidur, or their folders; AIConfigurator's gemm_perf.txt; answers "
            "or a page of metrics of llama-server, vLLM, SGLang or TensorRT-LLM; speculation_profile.json.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str | None,
        option(
            "Target model, a shipped shape or config.json: needed for tables whose path does not name the model, and "
            "for the profile.",
            autocompletion=options.shape_names,
        ),
    ] = None,
    draft: Annotated[str | None, option("Draft model of the profile.", autocompletion=options.shape_names)] = None,
    weights: Annotated[
        str | None,
        option(
            "Weight format of the profile's models, as in `plan`, if their names in the files do not state it. "
            "Default: as published.",
            metavar="FORMAT",
        ),
    ] = None,
    context: Annotated[
        int,
        option("Cached tokens, for tables of attention, such as 8k.", parser=cached_tokens, metavar="N"),
    ] = 512,
    window: Annotated[
        int | None, option("Drafted tokens per verification, if the files do not say it.", min=1, max=64)
    ] = None,
    batch_size: Annotated[int | None, option("Concurrent requests of vLLM's bench latency.", min=1)] = None,
    new_tokens: Annotated[int | None, option("New tokens of each such request.", min=1)] = None,
    out: Annotated[Path | None, output("Write the curves here, as YAML.", kind="YAML")] = None,
    profile_out: Annotated[
        Path | None, output("Write a profile of the engine here, from benchmarks of target and draft.", kind="YAML")
    ] = None,
    acceptance_out: Annotated[
        Path | None,
        output("Write the acceptance here, as plan, search and simulate take it (--acceptance).", kind="YAML"),
    ] = None,
    json: options.JsonOption = None,
) -> None:
    """Read costs and acceptance from files that an engine wrote, for other commands."""
    from decoding.yaml_file import save_yaml
    from planner.imported.bench_curves import settings_apart
    from planner.imported.engine_page import Told
    from planner.imported.import_file import import_files

    told = Told(target=target, context=context, window=window, batch_size=batch_size, new_tokens=new_tokens)
    found = import_files(files, told)
    of_profile = {"draft": draft, "weights": weights} if profile_out is None else {}
    _refuse(found.unread | {name for name, one in of_profile.items() if one is not None})
    for warning in found.repeated:
        say(f"[yellow]{escaped(warning)}[/]")
    result = {
        "curves": [one.entry for one in found.curves],
        "acceptance": [one.entry for one in found.acceptance],
        "warnings": list(found.repeated),
    }
    if out is not None:
        if not found.curves:
            raise ConfigError("--out: these files have no times; --acceptance-out writes the acceptance")
        save_yaml({"curves": result["curves"]}, out)
    if profile_out is not None:
        _write_profile(found.curves, (target, draft, weights), profile_out)
    if acceptance_out is not None:
        _write_acceptance(found.acceptance, acceptance_out)
    for path in filter(None, (out, profile_out, acceptance_out)):
        say(f"Wrote {escaped(path)}")
    if not write_json(result, json):
        return
    for curve, settings in zip(found.curves, settings_apart(found.curves), strict=True):
        show(_table(curve, ", ".join(chain(*settings))))
        show_paragraphs(_in_a_plan(curve))
    for accepted in found.acceptance:
        show(_accepted_table(accepted))
        rates = ",".join(f"{round(rate, 3):g}" for rate in accepted.rates)
        show_paragraphs(f"{accepted.in_words}. In a plan: --acceptance {rates}")


def _write_profile(
    curves: "tuple[BenchCurve, ...]", called: tuple[str | None, str | None, str | None], path: Path
) -> None:
    """Write the profile of an engine and print what it assumes; `called` are target, draft and weights, if given."""
    from hwprofiles.model_shape import model_shape
    from hwprofiles.profile import save_profile
    from hwprofiles.weights.formats import weights_named
    from planner.imported.engine_profile import USUAL_NOTES, Timed, engine_profile

    *names, weights = called
    larger, smaller = (None if name is None else model_shape(name) for name in names)
    profile = engine_profile(curves, Timed(larger, smaller, weights and weights_named(weights)))
    save_profile(profile, path)
    for note in profile.notes:
        if note not in USUAL_NOTES:
            say(escaped(note))
    if {profile.dtype, profile.draft_dtype} - {None, weights and weights_named(weights)}:
        is_apart = profile.draft_dtype not in (None, profile.dtype)
        apart = f", of {escaped(profile.drafter)} in {profile.draft_dtype}" if is_apart else ""
        say(f"Assumed: weights of {escaped(profile.target)} are in {profile.dtype}{apart}; --weights changes that")


def _refuse(unread: frozenset[str]) -> None:
    """Raise `ConfigError` for options that were not needed."""
    if unread:
        lines = (f"--{name.replace('_', '-')}: not used here; {_USES[name]}" for name in sorted(unread))
        raise ConfigError("\n".join(lines))


def _table(curve: "BenchCurve", settings: str) -> Any:
    from mirrorsd.cli.tables import NOTHING, plain_table
    from planner.wording import between, factor, in_ms

    of = curve.of
    told = f" ({cut(settings, 200)})" if settings else ""
    title = f"{of.model} on {of.device} in {of.engine}, rows of {of.how}, {of.context} cached tokens{told}: ms per pass"
    rows = (
        (
            str(rows),
            in_ms(time.time_s),
            between(time.low, time.high) if time.low < time.high else NOTHING,  # a single measurement has no interval
            NOTHING if ratio is None else factor(ratio),
        )
        for rows, time in curve.times.items()
        for ratio in [curve.ratio(rows)]
    )
    return plain_table(title, (), ("rows", "ms", "interval", "times one row"), rows)


def _accepted_table(found: "EngineAcceptance") -> Any:
    from mirrorsd.cli.tables import plain_table
    from planner.wording import percent

    of = "" if found.num_rounds is None else f", {found.num_rounds:,} verifications"
    title = f"Accepted in {found.engine}{of}: {found.how}, given that all before it were"
    rows = ((str(place), percent(rate)) for place, rate in enumerate(found.rates, 1))
    return plain_table(title, (), ("drafted token", "accepted"), rows)


def _in_a_plan(curve: "BenchCurve") -> str:
    """Say how to use a curve in a plan (`--set`), or why it cannot be used."""
    found = curve.growth_per_row
    if found is None:
        return "A plan cannot use this curve: passes over one row and over 2 to 8 rows are needed."
    value, *_ = found
    if value <= 0:
        return "Further rows cost nothing here. In a plan: --set DEVICE.growth_per_row=0.001"
    of_one, low, high = (f"{round(100 * share, 1):g}" for share in found)
    has_caches = curve.of.how == "several sequences" and curve.of.context > 0
    shared = "In a verification it costs at most that, since its rows share one cache. " * has_caches
    return (
        f"Every further row, up to eight, costs {of_one} % of a pass over one row ({low} to {high} %). {shared}"
        f"In a plan: --set DEVICE.growth_per_row={value:.3g}, where DEVICE is, for example, gpu."
    )


def _write_acceptance(found: "tuple[EngineAcceptance, ...]", path: Path) -> None:
    """Write rates in the format of `AcceptanceFile`; each of several runs becomes a task."""
    import yaml

    from decoding.yaml_file import write_atomically

    if not found:
        raise ConfigError("--acceptance-out: these files do not say how many drafted tokens were accepted")
    names = [
        one.source if len({other.source for other in found}) == len(found) else f"{index}"
        for index, one in enumerate(found)
    ]
    rates = {name: {"rates": [round(rate, 6) for rate in one.rates]} for name, one in zip(names, found, strict=True)}
    told = [
        f"# {one.source}: {one.engine}, {one.how}, {one.num_rounds or 'some'} verifications, {one.in_words}\n"
        for one in found
    ]
    content = {"tasks": rates} if len(found) > 1 else next(iter(rates.values()))
    write_atomically(path, "".join(told) + yaml.safe_dump(content, sort_keys=False))
