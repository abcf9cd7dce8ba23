"""How often a demo's verdict finds a lead, and how often its interval holds the truth, in thousands of made-up demos.

    python benchmarks/verdict_power.py --profile PROFILE      records the shipped pool first, about 10 minutes
    python benchmarks/verdict_power.py --profile PROFILE --record FILE

The profile is one of benchmarks/results/held-out/, which knows all lengths of the pool. A made-up demo draws prompts
from the record, simulates every schedule on the profile, picks the plain and the drafting schedule predicted fastest on
its prompts, and "runs" both on the first of them: simulated times, wrong by a factor that is drawn for each demo and
schedule, with a noise per prompt as large as in the committed demos. Plain decoding is slowed until the best schedule
has the lead that is asked about, over all prompts of the record. The truth is the picked schedule's own lead there.
Writes benchmarks/results/verdict-power.json. No time is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from _common import EMBEDDED, RESULTS, arguments, facts, read_result, write_result
from numpy.typing import NDArray

from calibrate.prompts import bundled_prompts
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import load_profile
from mirrorsd.compare.runs_file import load_runs, load_traces
from mirrorsd.model_pair import find_pair
from mirrorsd.record_pair import Reach, record
from planner.paired_ratio import Pairs, Ratio, paired_ratio, ratio_by_rounds
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.world import simulate

DEMOS: Final = RESULTS / "demos"
LEADS: Final = (1.0, 1.05, 1.10, 1.15, 1.26)
COST_BIAS: Final = 0.05
"""Standard deviation of how wrong a schedule's cost is simulated in a demo, as a logarithm."""
Seconds = NDArray[np.float64]


class Design(NamedTuple):
    """Prompts of a demo: recorded, and of these run; `by_rounds` is whether the rounds of all are made use of."""

    num_recorded: int
    num_run: int
    by_rounds: bool = True


DESIGNS: Final = (
    Design(12, 12, by_rounds=False),
    Design(12, 4),
    Design(24, 6),
    Design(40, 6),
    Design(40, 12),
    Design(60, 8),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Simulated seconds of every prompt that demos draw from.

    Attributes:
        plain: of plain schedules, [schedules, prompts].
        drafting: of those that draft, likewise.
        noise: standard deviation of a run's time about its simulated one, as a logarithm, by prompt.
    """

    plain: Seconds
    drafting: Seconds
    noise: float

    @property
    def lead(self) -> float:
        """Of the best drafting schedule over the best plain one, over all prompts."""
        return float(self.plain.sum(axis=1).min() / self.drafting.sum(axis=1).min())


def main() -> None:
    """Record if need be, play all demos, and write the result."""
    options = _options()
    accepted = AcceptanceRecord.load(options.record) if options.record else _recorded(options)
    population = simulated(accepted, options.profile)
    found = {
        name_of(design): {str(lead): figures(population, design, lead, options.demos) for lead in LEADS}
        for design in DESIGNS
    }
    content = {
        "num_prompts": len(accepted.prompts),
        "max_new_tokens": accepted.max_new_tokens,
        "num_demos": options.demos,
        "noise": population.noise,
        "cost_bias": COST_BIAS,
        "lead_by_simulation": population.lead,
        "designs": found,
    }
    write_result(options.out, facts(find_pair(EMBEDDED), with_formats=True) | content)
    for name, leads in found.items():
        print(name, {lead: (one["power"], one["coverage"]) for lead, one in leads.items()})


def simulated(accepted: AcceptanceRecord, profile_path: Path) -> Population:
    """Simulate every schedule of the usual search on every prompt."""
    plain, drafting = [], []
    for one in search(SearchSpace(), load_profile(profile_path), accepted).candidates:
        side = plain if one.schedule.traits.window == "none" else drafting
        side.append(one.prediction.prompt_decode_s)
    return Population(plain=np.array(plain), drafting=np.array(drafting), noise=noise_of_runs())


def noise_of_runs() -> float:
    """Return by how much a prompt's measured time deviates from the simulated one, as plain decoding's does not."""
    deviations = []
    for folder in sorted(DEMOS.iterdir()):
        logs = list(_logs(folder))
        plain = logs[0]
        deviations += [(one - plain[: len(one)]) for one in logs[1:]]
    degrees = sum(len(one) - 1 for one in deviations)
    return float(np.sqrt(sum(((one - one.mean()) ** 2).sum() for one in deviations) / degrees / 2))


def _logs(folder: Path) -> Iterator[Seconds]:
    """Yield log(measured / simulated) by prompt of every schedule of a demo, a plain one that ran most first."""
    rows = [Schedule(**row["schedule"]) for row in read_result(folder / "demo.json")["schedules"]]
    profile, accepted = load_profile(folder / "profile.yaml"), AcceptanceRecord.load(folder / "record.npz")
    measured = load_runs(folder / "runs.json.gz", load_traces(folder / "traces.json.gz"))
    texts, pairs = measured.texts(accepted), zip(rows, measured.traces, strict=True)
    for schedule, traces in sorted(pairs, key=lambda pair: (pair[0].traits.window != "none", -len(pair[1]))):
        played = simulate(schedule, profile, texts, trace=False)
        tpots = [[one.decode_s / sum(r.num_committed for r in one.rounds) for one in side] for side in (traces, played)]
        yield np.log(tpots[0]) - np.log(tpots[1][: len(traces)])


def figures(population: Population, design: Design, lead: float, num_demos: int) -> dict[str, float]:
    """Return how often so many demos find the lead, deny it, and hold the truth in their interval."""
    random = np.random.default_rng((design.num_recorded, design.num_run, round(1000 * lead)))
    slowed = population.plain * (lead / population.lead)
    shown = [demo(random, slowed, population, design) for _ in range(num_demos)]
    return {
        "power": float(np.mean([ratio.outcome == "faster" for ratio, _ in shown])),
        "denied": float(np.mean([ratio.outcome == "slower" for ratio, _ in shown])),
        "coverage": float(np.mean([ratio.low <= truth <= ratio.high for ratio, truth in shown])),
        "median_half_width": float(np.median([log(ratio.high / ratio.value) for ratio, _ in shown])),
    }


def demo(random: np.random.Generator, plain: Seconds, population: Population, design: Design) -> tuple[Ratio, float]:
    """Return what a demo says of the two schedules that it picks, and their true ratio."""
    places = random.choice(plain.shape[1], design.num_recorded, replace=False)
    other, one = (side[side[:, places].sum(axis=1).argmin()] for side in (plain, population.drafting))
    costs = np.exp(random.normal(0, COST_BIAS, 2))
    truth = float(other.sum() * costs[1] / (one.sum() * costs[0]))
    ran = places[: design.num_run]
    measured = Pairs(
        *(_noisy(random, side[ran] * cost, population.noise) for side, cost in ((one, costs[0]), (other, costs[1])))
    )
    if not design.by_rounds:
        return paired_ratio(*measured), truth
    simulated_s = Pairs(one[ran].tolist(), other[ran].tolist())
    return ratio_by_rounds(measured, simulated_s, Pairs(one[places].tolist(), other[places].tolist())), truth


def name_of(design: Design) -> str:
    """Return a design in words."""
    how = "rounds of all known" if design.by_rounds else "times in pairs alone"
    return f"{design.num_recorded} recorded, {design.num_run} run, {how}"


def _noisy(random: np.random.Generator, seconds: Seconds, noise: float) -> Sequence[float]:
    return (seconds * np.exp(random.normal(0, noise, len(seconds)))).tolist()  # type: ignore[no-any-return]


def _recorded(options: argparse.Namespace) -> AcceptanceRecord:
    """Record the whole pool with all that drafts chains."""
    pair = find_pair(EMBEDDED)
    pair = replace(pair, heads=tuple(head for head in pair.heads if pair.head_methods[head.name] == "prompt_lookup"))
    path = Path("out") / "verdict-power" / "record.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    reach = Reach(max_new_tokens=options.max_new_tokens, trees=())
    return record(pair, bundled_prompts("pool"), path, reach=reach, progress=_say)


def _say(step: str, share: float, /) -> None:
    print(f"recording, {share:.0%}: {step}", flush=True)


def _options() -> argparse.Namespace:
    parser = arguments(__doc__, out=RESULTS / "verdict-power.json")
    parser.add_argument("--record", type=Path, help="made with the embedded model; without, the pool is recorded")
    parser.add_argument("--profile", type=Path, required=True, help="one that was calibrated for all of these lengths")
    parser.add_argument("--demos", type=int, default=2000, help="of every design and lead")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    return parser.parse_args()


def summary(content: dict[str, Any]) -> Iterator[str]:
    """Yield the rows of a table in Markdown: power by design and lead, and the range of the coverage."""
    leads = [str(lead) for lead in LEADS if lead > 1]
    yield f"| prompts | {' | '.join(f'lead {lead}' for lead in leads)} | coverage |"
    yield "|---|" + "---|" * (len(leads) + 1)
    for name, found in content["designs"].items():
        held = [one["coverage"] for one in found.values()]
        powers = " | ".join(f"{found[lead]['power']:.0%}" for lead in leads)
        yield f"| {name} | {powers} | {min(held):.0%} to {max(held):.0%} |"


if __name__ == "__main__":
    main()
