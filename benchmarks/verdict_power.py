"""How often a demo's verdict finds a lead, and how often its interval holds the truth, in thousands of made-up demos.

    python benchmarks/verdict_power.py          a minute, from committed raw data; no time is measured

Prompts, texts and the noise of runs are those of the demos in benchmarks/results/demos/; every schedule of the usual
search is simulated on their prompts with a profile that knows all lengths, of benchmarks/results/held-out/. A made-up
demo draws prompts with replacement, kinds of task in turn as a demo's are, so that the intervals are asked about
prompts like these and not about the rest of a pool; it picks the plain and the drafting schedule predicted fastest on
them, and "runs" both, with others that lose, on the first of them: simulated times, off by a factor of each schedule
and with the noise of one of the committed demos. Plain decoding is slowed until the picked schedule has exactly the
lead that is asked about, over all prompts. Writes benchmarks/results/verdict-power.json.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isinf, log
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from _common import EMBEDDED, RESULTS, arguments, facts, formats, markdown_table, write_result
from numpy.typing import NDArray

from decoding.metrics import num_tokens
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import load_profile
from mirrorsd.compare.outcome_folder import read_judged
from mirrorsd.demo.demo_plan import SHORT_CUT, WANTED_PROMPTS
from mirrorsd.model_pair import find_pair
from planner.measured_verdict import KnownTime, MeasuredSchedule, PromptTime, Runs
from planner.paired_ratio import Ratio
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.evaluator import Evaluator

DEMOS: Final = RESULTS / "demos"
LEADS: Final = (1.0, 1.05, 1.10, 1.15, 1.26)
COST_BIAS: Final = 0.05
"""Standard deviation of how wrong a schedule's cost is simulated in a demo, as a logarithm."""
NUM_OTHERS: Final = 8
"""Schedules that lose; they run the first few prompts."""
_ANY: Final = Schedule(method="autoregressive", target_lane="any")
Seconds = NDArray[np.float64]


class Design(NamedTuple):
    """Prompts of a demo: recorded, of these run, and of these by those that lose as well.

    `by_rounds` is whether the rounds of all are made use of.
    """

    num_recorded: int
    num_run: int
    num_short: int = 4
    by_rounds: bool = True


DESIGNS: Final = (
    Design(12, 12, by_rounds=False),
    Design(12, 4),
    Design(24, 6),
    Design(60, 8),
    Design(64, 4, 2),
    Design(100, 8, 2),
    Design(120, 8, 3),
)
"""58 recorded and 13 run is what the committed demos have in the median."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Simulated seconds of every prompt that demos draw from.

    Attributes:
        plain: of plain schedules, [2, schedules, prompts]: of texts cut as those of the first runs, and in full.
        drafting: of those that draft, likewise.
        kinds: places of the prompts of every kind.
        noises: standard deviations of a run's time about its simulated one, as logarithms, of each committed demo: of
            short texts and of others.
    """

    plain: Seconds
    drafting: Seconds
    kinds: tuple[NDArray[np.int64], ...]
    noises: tuple[tuple[float, float], ...]

    def whole_s(self, seconds: Seconds) -> float:
        """Return the time of a schedule where all kinds are equally frequent."""
        return float(sum(seconds[places].mean() for places in self.kinds))


def main() -> None:
    """Play all demos, and write the result."""
    profile, demos = min((RESULTS / "held-out").glob("*.yaml")), (2000, "of every design and lead")
    options = arguments(__doc__, out=RESULTS / "verdict-power.json", profile=profile, demos=demos).parse_args()
    folders = sorted(DEMOS.iterdir())
    record = joined([AcceptanceRecord.load(folder / "record.npz") for folder in folders])
    population = simulated(record, options.profile, tuple(map(noise_of, folders)))
    found = {
        name_of(design): {str(lead): figures(population, design, lead, options.demos) for lead in LEADS}
        for design in DESIGNS
    }
    content = {
        "num_prompts": len(record.prompts),
        "max_new_tokens": record.max_new_tokens,
        "num_demos": options.demos,
        "noises": population.noises,
        "cost_bias": COST_BIAS,
        "designs": found,
    }
    write_result(options.out, facts(find_pair(EMBEDDED)) | {"formats": formats()} | content)
    for name, leads in found.items():
        print(name, {lead: (one["power"], one["coverage"]) for lead, one in leads.items()})


def joined(records: list[AcceptanceRecord]) -> AcceptanceRecord:
    """Return the prompts of all records, each once: of some with the longer text of two, as demos cut theirs."""
    longest = sorted(records, key=lambda one: one.max_new_tokens)
    prompts = {prompt.name: prompt for one in longest for prompt in one.prompts}
    return replace(longest[-1], prompts=tuple(prompts.values()))


def simulated(accepted: AcceptanceRecord, profile_path: Path, noises: tuple[tuple[float, float], ...]) -> Population:
    """Simulate every schedule of the usual search on every prompt."""
    plain, drafting = [], []
    profile = load_profile(profile_path)
    short = Evaluator(profile, accepted, max_new_tokens=SHORT_CUT)
    for one in search(SearchSpace(), profile, accepted).candidates:
        side = plain if one.schedule.traits.window == "none" else drafting
        side.append([short.predict(one.schedule).prompt_decode_s, one.prediction.prompt_decode_s])
    kinds = np.array([prompt.category for prompt in accepted.prompts])
    places = tuple(np.flatnonzero(kinds == kind) for kind in np.unique(kinds))
    both = (np.array(side).swapaxes(0, 1) for side in (plain, drafting))
    return Population(plain=next(both), drafting=next(both), kinds=places, noises=noises)


def noise_of(folder: Path) -> tuple[float, float]:
    """Return by how much runs of a demo deviate from their simulated times, beyond what schedules and prompts do.

    Once of texts of up to `SHORT_CUT` tokens, and once of longer ones; a demo that did not run two of these counts them
    as noisy as short ones.
    """
    runs: tuple[list[MeasuredSchedule], list[MeasuredSchedule]] = [], []
    for place, one in enumerate(read_judged(folder / "demo.json").results):
        times_s = {
            str(prompt): (real.decode_s, played.decode_s, num_tokens([real]) > SHORT_CUT)
            for prompt, (real, played) in enumerate(zip(one.measured, one.simulated, strict=True))
        }
        for is_long, side in enumerate(runs):
            own = {prompt: pair for prompt, (*pair, kind) in times_s.items() if kind == is_long}
            side.append(as_run(str(place), own, {prompt: KnownTime(pair[1]) for prompt, pair in own.items()}))
    short, long = (inf if (costs := Runs.of(side).costs) is None else costs.noise for side in runs)
    return short, short if isinf(long) else long


def figures(population: Population, design: Design, lead: float, num_demos: int) -> dict[str, float]:
    """Return how often so many demos find the lead, deny it, and hold it in their interval."""
    random = np.random.default_rng((design.num_recorded, design.num_run, round(1000 * lead)))
    shown = [demo(random, lead, population, design) for _ in range(num_demos)]
    return {
        "power": float(np.mean([ratio.outcome == "faster" for ratio in shown])),
        "denied": float(np.mean([ratio.outcome == "slower" for ratio in shown])),
        "coverage": float(np.mean([ratio.low <= lead <= ratio.high for ratio in shown])),
        "median_half_width": float(np.median([log(ratio.high / ratio.value) for ratio in shown])),
    }


def demo(random: np.random.Generator, lead: float, population: Population, design: Design) -> Ratio:
    """Return what a demo says of the two schedules that it picks, whose true ratio is the lead."""
    turns = random.permutation(len(population.kinds))
    kinds = [turns[place % len(turns)] for place in range(design.num_recorded)]
    drawn = [random.choice(population.kinds[kind]) for kind in kinds]
    sides = population.plain, population.drafting
    other, one = (side[:, side[1][:, drawn].sum(axis=1).argmin()] for side in sides)
    bias = random.normal(0, COST_BIAS)
    other = other * (lead * population.whole_s(one[1]) / population.whole_s(other[1])) / np.exp(bias)
    noises = population.noises[random.integers(len(population.noises))]
    lengths = [design.num_run, design.num_run, *[design.num_short] * NUM_OTHERS]
    schedules = []
    for place, (seconds, length) in enumerate(zip([one, other, *[other] * NUM_OTHERS], lengths, strict=True)):
        short, full = seconds[:, drawn]
        cut = np.arange(length) < WANTED_PROMPTS * design.by_rounds
        simulated_s = np.where(cut, short[:length], full[:length])
        noise = random.normal(0, np.where(simulated_s == short[:length], *noises))
        run_s = simulated_s * np.exp(noise + bias * (place == 1))
        runs = {str(at): pair for at, pair in enumerate(zip(run_s.tolist(), simulated_s.tolist(), strict=True))}
        known = {str(at): KnownTime(*pair) for at, pair in enumerate(zip(full.tolist(), map(str, kinds), strict=True))}
        schedules.append(as_run(str(place), runs, known if design.by_rounds else {}))
    return Runs(tuple(schedules)).ratio(*schedules[:2])


def as_run(name: str, times_s: Mapping[str, Sequence[float]], recorded: Mapping[str, KnownTime]) -> MeasuredSchedule:
    """Return a schedule by its measured and simulated seconds; to its ratios nothing else matters."""
    return MeasuredSchedule(
        name=name,
        schedule=_ANY,
        predicted_s=1.0,
        prompts={prompt: PromptTime(run_s, 1, simulated_s) for prompt, (run_s, simulated_s) in times_s.items()},
        recorded=recorded,
    )


def name_of(design: Design) -> str:
    """Return a design in words."""
    how = "rounds of all known" if design.by_rounds else "times in pairs alone"
    return f"{design.num_recorded} recorded, {design.num_run} run, {how}"


def summary(content: dict[str, Any]) -> str:
    """Return a table in Markdown: power by design and lead, and the range of the coverage."""
    leads, rows = [str(lead) for lead in LEADS if lead > 1], []
    for name, found in content["designs"].items():
        held = [one["coverage"] for one in found.values()]
        powers = [f"{found[lead]['power']:.0%}" for lead in leads]
        rows.append([name, *powers, f"{min(held):.0%} to {max(held):.0%}"])
    return markdown_table(["prompts", *(f"lead {lead}" for lead in leads), "intervals hold"], rows)


if __name__ == "__main__":
    main()
