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

from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from _common import EMBEDDED, RESULTS, arguments, facts, markdown_table, write_result
from numpy.typing import NDArray

from decoding.record import AcceptanceRecord
from hwprofiles.profile import load_profile
from mirrorsd.compare.outcome_folder import read_judged
from mirrorsd.model_pair import find_pair
from planner.paired_ratio import CommonFit, Pairs, Ratio, paired_ratio, ratio_by_rounds
from planner.search.search import search
from planner.search.space import SearchSpace

DEMOS: Final = RESULTS / "demos"
LEADS: Final = (1.0, 1.05, 1.10, 1.15, 1.26)
COST_BIAS: Final = 0.05
"""Standard deviation of how wrong a schedule's cost is simulated in a demo, as a logarithm."""
NUM_OTHERS: Final = 8
"""Schedules that lose; they run the first few prompts."""
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
    Design(90, 8, 3),
    Design(120, 8, 3),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """Simulated seconds of every prompt that demos draw from.

    Attributes:
        plain: of plain schedules, [schedules, prompts].
        drafting: of those that draft, likewise.
        kinds: places of the prompts of every kind.
        noises: standard deviations of a run's time about its simulated one, as logarithms, of each committed demo.
    """

    plain: Seconds
    drafting: Seconds
    kinds: tuple[NDArray[np.int64], ...]
    noises: tuple[float, ...]

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
    write_result(options.out, facts(find_pair(EMBEDDED), with_formats=True) | content)
    for name, leads in found.items():
        print(name, {lead: (one["power"], one["coverage"]) for lead, one in leads.items()})


def joined(records: list[AcceptanceRecord]) -> AcceptanceRecord:
    """Return the prompts of all records, each once."""
    prompts = {prompt.name: prompt for one in records for prompt in one.prompts}
    return replace(records[0], prompts=tuple(prompts.values()))


def simulated(accepted: AcceptanceRecord, profile_path: Path, noises: tuple[float, ...]) -> Population:
    """Simulate every schedule of the usual search on every prompt."""
    plain, drafting = [], []
    for one in search(SearchSpace(), load_profile(profile_path), accepted).candidates:
        side = plain if one.schedule.traits.window == "none" else drafting
        side.append(one.prediction.prompt_decode_s)
    kinds = np.array([prompt.category for prompt in accepted.prompts])
    places = tuple(np.flatnonzero(kinds == kind) for kind in np.unique(kinds))
    return Population(plain=np.array(plain), drafting=np.array(drafting), kinds=places, noises=noises)


def noise_of(folder: Path) -> float:
    """Return by how much runs of a demo deviate from their simulated times, beyond what schedules and prompts do."""
    results = read_judged(folder / "demo.json").results
    return CommonFit(
        {
            str(place): {
                str(prompt): log(real.decode_s / played.decode_s)
                for prompt, (real, played) in enumerate(zip(one.measured, one.simulated, strict=True))
            }
            for place, one in enumerate(results)
        }
    ).noise


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
    other, one = (side[side[:, drawn].sum(axis=1).argmin()] for side in (population.plain, population.drafting))
    bias = random.normal(0, COST_BIAS)
    other = other * (lead * population.whole_s(one) / population.whole_s(other)) / np.exp(bias)
    noise = random.choice(population.noises)
    logs = random.normal(0, noise, (2 + NUM_OTHERS, design.num_run))
    logs[1] += bias
    if not design.by_rounds:
        both = (side[drawn] * np.exp(noise) for side, noise in zip((one, other), logs[:2], strict=True))
        return paired_ratio(*map(np.ndarray.tolist, both))
    known = Pairs(one[drawn].tolist(), other[drawn].tolist(), [str(kind) for kind in kinds])
    lengths = [design.num_run, design.num_run, *[design.num_short] * NUM_OTHERS]
    runs = {
        str(place): {str(prompt): value for prompt, value in enumerate(own[:length])}
        for place, (own, length) in enumerate(zip(logs.tolist(), lengths, strict=True))
    }
    return ratio_by_rounds(known, CommonFit(runs).difference("0", "1"))


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
