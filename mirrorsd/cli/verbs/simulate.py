"""`mirrorsd simulate`: predicts the times of one schedule from a profile and a record, without any model."""

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, say_command, say_next, say_whose, show, write_json
from mirrorsd.cli.option_values import chosen_acceptance, models_of, reaching
from mirrorsd.cli.options import option, output

if TYPE_CHECKING:
    from collections.abc import Iterable

    from decoding.record import AcceptanceRecord
    from decoding.trace import Trace
    from sim.prediction import Prediction

EXAMPLE = "mirrorsd simulate --schedule best.yaml --record record.npz --profile profile.yaml --trace simulated.json.gz"


def simulate(
    schedule: options.ScheduleOption,
    profile: options.ProfileOption,
    record: options.RecordOrNoneOption = None,
    acceptance: options.AcceptanceOption = None,
    trace: Annotated[
        Path | None, output("Write a Chrome trace for Perfetto here; .gz compresses it.", kind="a trace")
    ] = None,
    max_new_tokens: Annotated[
        int | None, option("Limit of new tokens per prompt. Default: as recorded.", min=1)
    ] = None,
    replayed_acceptance: options.ReplayedOption = False,
    explain: options.ExplainOption = False,
    json: options.JsonOption = None,
) -> None:
    """Simulate a schedule without any model, from measured latencies and recorded or assumed acceptance."""
    from calibrate.prompts import bundled_prompts
    from decoding.errors import OutOfRangeError
    from decoding.schedule import load_schedule
    from hwprofiles.profile import load_profile
    from mirrorsd.compare.calibrated_lengths import require_reach
    from mirrorsd.compare.numbers import predicted_numbers, run_command, schedule_entry
    from mirrorsd.simulation import in_words, predict, require_same_models
    from mirrorsd.simulation import simulate as play

    wanted, machine = load_schedule(schedule), load_profile(profile)
    accepted = chosen_acceptance(record, acceptance, machine)
    most, replayed, sides = max_new_tokens, replayed_acceptance, (profile, record or "the acceptance")
    label = require_same_models(machine, accepted, replayed=replayed, sides=sides, schedule=wanted)
    warnings = say_whose(machine, accepted)
    lanes = {wanted.target_lane, wanted.draft_lane or wanted.target_lane}
    machine = reaching(machine, accepted, lanes, sides, warnings, max_new_tokens=most)
    asked = wanted, machine, accepted
    try:
        prediction = predict(*asked, max_new_tokens=most, replayed=replayed)
    except OutOfRangeError:
        if record is not None and most is None:
            require_reach(machine, accepted, lanes, sides=sides)
        raise
    traces = play(*asked, max_new_tokens=most, replayed=replayed, trace=trace is not None)
    if trace is not None:
        from planner.chrome_trace import save_chrome_trace

        save_chrome_trace({p.name: t for p, t in zip(accepted.prompts, traces, strict=True)}, trace)
        say(f"Wrote {escaped(trace)}")
    result = {
        "schedule": schedule_entry(wanted),
        **predicted_numbers(prediction),
        "bottlenecks_s": prediction.bottlenecks._asdict(),
        "source": prediction.source,
        "warnings": warnings,
        "prompts": _by_prompt(accepted, traces),
    }
    if write_json(result, json):
        show(_in_words(prediction, (label, in_words(accepted)), explain=explain))
        if label is None and record is not None:
            shipped = {prompt.prompt_id for prompt in bundled_prompts("pool")}
            if not accepted.temperature and {prompt.name for prompt in accepted.prompts} <= shipped:
                say_next("validate", "--schedule", schedule, "--profile", profile, "--record", record)
            else:  # `validate` is greedy, and needs the user's file of prompts
                say_command(
                    "Next", run_command(schedule, wanted, models_of(accepted).words, temperature=accepted.temperature)
                )


def _by_prompt(record: "AcceptanceRecord", traces: "list[Trace]") -> list[dict[str, Any]]:
    """Return the rows that `mirrorsd run` would write, without the text, and for drawn texts without token ids."""
    from mirrorsd.compare.numbers import prompt_numbers

    rows = []
    for prompt, trace in zip(record.prompts, traces, strict=True):
        numbers = prompt_numbers(trace)
        num_tokens = sum(numbers["accept_lengths"])
        ids = {} if record.assumed else {"token_ids": prompt.text[:num_tokens].tolist()}
        rows.append({"prompt_id": prompt.name, **ids, **numbers})
    return rows


def _in_words(prediction: "Prediction", warnings: "Iterable[str | None]", *, explain: bool) -> str:
    from planner.verdict import fact
    from planner.wording import PART, between, counted, duration, milliseconds, percent, tokens_per_second

    within = between(prediction.tpot_s_low, prediction.tpot_s_high)
    speed = f"[bold]{milliseconds(prediction.tpot_s)}[/] per token ({within})"
    tokens = f"{counted(prediction.num_tokens, 'token')} in {counted(prediction.num_rounds, 'round')}"
    lines = [
        f"{speed}, {tokens_per_second(prediction.tpot_s)}",
        f"{tokens}, {prediction.mean_acceptance_length:.2f} per round",
    ]
    if prediction.ttft_s is not None and prediction.e2e_s is not None:
        first, last = duration(prediction.ttft_s), duration(prediction.e2e_s)
        lines.append(f"A request's first token comes after {first} and its last after {last}, on average")
    if not isnan(prediction.reuse_rate):
        lines.append(f"{percent(prediction.reuse_rate)} of the windows were drafted ahead (hits)")
    if explain:
        parts = prediction.bottlenecks._asdict()
        shares = [f"{PART[name]} {percent(time_s / sum(parts.values()))}" for name, time_s in parts.items() if time_s]
        lines += [*fact("Of the decoding time", shares), f"From {escaped(prediction.source)}"]  # with the warnings
    else:
        lines += map(escaped, filter(None, warnings))
    return "\n".join(lines)
