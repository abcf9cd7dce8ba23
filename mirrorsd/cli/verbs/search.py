"""`mirrorsd search`: predicts every schedule, and explains and writes the best one."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, say_command, say_next, say_whose, show, show_verdict, write_json
from mirrorsd.cli.option_values import chosen_acceptance, models_of, reaching
from mirrorsd.cli.options import option, output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from decoding.schedule import Schedule
    from planner.plan import Plan
    from planner.search.search import SearchResult
    from planner.verdict import Claim

_MOST_REASONS = 5
"""How many reasons for leaving schedules out are printed."""

EXAMPLE = "mirrorsd search --profile profile.yaml --record record.npz --out best.yaml"


def search(
    profile: options.ProfileOption,
    record: options.RecordOrNoneOption = None,
    acceptance: options.AcceptanceOption = None,
    out: Annotated[Path | None, output("Write the recommended schedule here, as YAML.", kind="YAML")] = None,
    html: Annotated[Path | None, options.page()] = None,
    space: Annotated[
        Path | None,
        option("YAML that narrows or widens the search: methods, windows, tree_sizes and so on."),
    ] = None,
    top: Annotated[int, option("Rows of the ranking to show.", min=1)] = 10,
    replayed_acceptance: options.ReplayedOption = False,
    explain: options.ExplainOption = False,
    json: options.JsonOption = None,
) -> None:
    """Rank every schedule that profile and record cover, and explain why the best wins."""
    from decoding.errors import PlanError
    from decoding.schedule import save_schedule
    from decoding.yaml_file import load_yaml, write_atomically
    from hwprofiles.profile import load_profile
    from mirrorsd.cli.tables import ranking
    from mirrorsd.compare.calibrated_lengths import require_reach
    from mirrorsd.compare.numbers import run_command
    from mirrorsd.simulation import make_plan, require_same_models
    from planner.search.search_page import search_page
    from planner.search.space import SearchSpace

    wanted = SearchSpace() if space is None else load_yaml(space, SearchSpace)
    machine = load_profile(profile)
    accepted = chosen_acceptance(record, acceptance, machine)
    require_same_models(machine, accepted, replayed=replayed_acceptance, sides=(profile, record))
    warnings = say_whose(machine, accepted)
    lanes, sides = [lane.name for lane in machine.lanes], (profile, record or "the acceptance")
    machine = reaching(machine, accepted, lanes, sides, warnings)
    try:
        found = make_plan(wanted, machine, accepted, replayed=replayed_acceptance)
    except PlanError:
        if record is not None:
            require_reach(machine, accepted, lanes, sides=sides)
        raise
    if out is not None:
        save_schedule(found.recommended.schedule, out)
        say(f"Wrote {escaped(out)}")
    if html is not None:
        write_atomically(html, search_page(found))
        say(f"Wrote {escaped(html)}")
    if write_json({} if json is None else _result(found, warnings), json):
        verdict = (found.verdict if explain else replace(found.verdict, slow_facts=dict)).entry
        show(ranking(found, top))
        show_verdict(verdict, explain=explain, more=_left_out(found.search))
        if found.search.left_out and not explain:
            show(f"{sum(found.search.left_out.values()):,} schedules could not be predicted; --explain says why.")
        if out is None:
            accepting = ("--record", record) if record is not None else ("--acceptance", acceptance)
            widened = () if space is None else ("--space", space)
            replaying = ("--replayed-acceptance",) if replayed_acceptance else ()
            say_next("search", "--profile", profile, *accepting, *widened, *replaying, "--out", "best.yaml")
        elif record is not None and not replayed_acceptance:
            is_open = found.verdict.pays == "cannot_tell" and found.verdict.claim is not None
            say_command(
                "Until then" if is_open else "Next",
                run_command(
                    out, found.recommended.schedule, models_of(accepted).words, temperature=accepted.temperature
                ),
            )


def _result(found: "Plan", warnings: list[str]) -> dict[str, Any]:
    from mirrorsd.compare.numbers import candidate_numbers

    ranked, verdict = found.search.candidates, found.verdict
    lead = min(verdict.others, key=lambda claim: claim.ratio.value, default=None)
    names = found.search.names
    candidates = [candidate_numbers(names[one.schedule], one) for one in ranked]
    prompts, halves = [prompt.name for prompt in found.record.prompts], found.search.halves
    places = range(len(prompts))
    return {
        "winner": candidates[ranked.index(found.recommended)],
        **verdict.entry,
        "warnings": [*warnings, *verdict.warnings],
        "pays": verdict.pays,
        "speedup": None if verdict.claim is None else _ratio(verdict.claim, names),
        "lead": None if lead is None else _ratio(lead, names),
        "prompts": {  # those of the ranking, of the choice, and of verdict, speed-up and lead
            "ranked": prompts,
            "chosen": [prompts[place] for place in (places if halves is None else halves.choosing)],
            "judged": [prompts[place] for place in (places if halves is None else halves.judging)],
        },
        "break_evens": _break_evens(found),
        "candidates": candidates,
        "left_out": dict(found.search.left_out),
    }


def _ratio(claim: "Claim", names: "Mapping[Schedule, str]") -> dict[str, Any]:
    from mirrorsd.compare.numbers import ratio_entry

    one, other = (None, None) if claim.schedules is None else map(names.__getitem__, claim.schedules)
    return {"of": one, "over": other, **(ratio_entry(claim.ratio) or {}), "outcome": claim.outcome}


def _break_evens(found: "Plan") -> list[dict[str, Any]]:
    from mirrorsd.compare.numbers import picked
    from planner.what_if.mixed_record import whose_tokens

    return [
        {
            "kind": kind,
            "of": whose_tokens(found.record) if sweep.quantity == "acceptance" else "drafting",
            **picked(sweep, "quantity now"),
            **picked(one, "at low high"),
        }
        for sweep in found.sensitivity.sweeps
        for kind, one in sweep.break_evens.items()
    ]


def _left_out(found: "SearchResult") -> tuple[str, ...]:
    reasons = sorted(found.left_out.items(), key=lambda reason: -reason[1])
    lines = [f"{count:,} left out: {reason}" for reason, count in reasons[:_MOST_REASONS]]
    rest = [count for _, count in reasons[_MOST_REASONS:]]
    if rest:
        lines.append(f"{sum(rest):,} left out for {len(rest)} other reasons, see --json")
    return ("\n".join(lines),) if lines else ()
