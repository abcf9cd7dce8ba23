"""The numbers of the data sheets of a server's core and of two of them, from profiles of demos and of held-out runs.

    python benchmarks/core_sheets.py benchmarks/results/demos benchmarks/results/held-out

Of every CPU in these folders it prints the median of all sessions, the least and the most, and what ships. Times are of
passes of SmolLM2-135M in bf16 after 200 tokens, of one row also after 512, on one core while the other waits; only the
cache's efficiency is of both cores, too. A plain token's seconds follow, on one core and on both. Sheets round all
this, and some have further sources, which they name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Final

import numpy as np
from _common import arguments
from _depths import SHORTEST, lane_depths

from costs.prices import Prices
from hwprofiles.model_shape import model_shape
from hwprofiles.platform import load_platform
from hwprofiles.profile import Profile, load_profile
from hwprofiles.weights.formats import weights_named
from sim.derived.roofline import Contexts, StoredModel

MODEL: Final = StoredModel(shape=model_shape("smollm2-135m"), weights=weights_named("bf16"))
CONTEXTS: Final = (SHORTEST, 512)
STEPS: Final = 4 * MODEL.shape.num_layers
"""Messages that a pass on both cores waits for: two all-reduces a layer, of two steps each."""


def main() -> None:
    """Print the numbers of every CPU in some folders."""
    parser = arguments(__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    for sets, profiles in by_cpu(parser.parse_args().folders).items():
        print(f"\n{profiles[0].host['cpu_model']} ({sets}), {len(profiles)} sessions")
        shipped = numbers_that_ship(sets)
        for name, values in core_numbers(profiles).items():
            told = f"{median(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            print(f"  {name:28}{told:34}{shipped.get(name, '')}")


def by_cpu(folders: Iterable[Path]) -> dict[str, list[Profile]]:
    """Return the profiles of demos and of held-out runs in some folders, by instruction sets."""
    found = defaultdict[str, list[Profile]](list)
    for folder in folders:
        for profile in map(load_profile, sorted((*folder.glob("*.yaml"), *folder.glob("*/profile.yaml")))):
            found[str(profile.host["instruction_sets"])].append(profile)
    return found


def numbers_that_ship(sets: str) -> dict[str, str]:
    """Return the numbers of the platform that `cpu-2core` is on a CPU of these instruction sets, as text by name."""
    makes = load_platform("cpu-2core").makes.items()
    platform = load_platform(next((name for name, own in makes if {*own} == {*sets.split()}), "cpu-2core"))
    parts = {"": platform.devices["cpu0"], "memory.": platform.memory_pools["memory"], "link.": platform.links[0]}
    return {
        f"{part}{name}": f"{one.value:.3g} ({one.lowest:.3g} to {one.highest:.3g})"
        for part, of in parts.items()
        for name, one in of.quantities.items()
    }


def core_numbers(profiles: Sequence[Profile]) -> dict[str, list[float]]:
    """Return the numbers of a core's sheet by session and core, those of a platform by session, and a token's times."""
    found = defaultdict[str, list[float]](list)
    lanes = [(profile, lane) for profile in profiles for lane in profile.lanes if lane.layer and lane.lm_head]
    for profile, lane in lanes:
        longest = lane.layer.contexts[-1]  # type: ignore[union-attr]
        found["cache_efficiency"].append(lane_depths(profile, lane.name, longest, 1).efficiency)
    efficiency = median(found["cache_efficiency"])
    for profile in profiles:
        prices = Prices(profile)
        caps: dict[str, float] = {}
        for lane in (lane for one, lane in lanes if one is profile and len(lane.cores) == 1):
            rates = (read_bytes(at, efficiency) / prices.pass_s(lane.name, 1, at) for at in CONTEXTS)
            caps[lane.name] = fmean(rates)
            one, nine, most = (prices.pass_s(lane.name, rows, SHORTEST) for rows in (1, 9, 33))
            found["bf16_flops"].append((num_flops(33) - num_flops(9)) / (most - nine))
            found["memory_cap_bytes_per_s"].append(caps[lane.name])
            found["growth_per_row"].append((nine / one - 1) / 8)
            found["dispatch_s"].append(lane.dispatch_s)
        for pair in profile.contention:
            found["slowdown"] += pair.slowdown
            slowed = (caps[lane] / slowdown for lane, slowdown in zip(pair.lanes, pair.slowdown, strict=True))
            found["memory.bytes_per_s"].append(sum(slowed))
        found["memory.memory_bytes"].append(profile.host["memory_gb"] * 1e9)
        found["link.latency_s"] += (link.latency_s for link in profile.links)
        found["link.bytes_per_s"] += (link.bytes_per_s for link in profile.links)
    together = min(median(found["memory.bytes_per_s"]), 2 * median(found["memory_cap_bytes_per_s"]))
    for profile, lane in lanes:
        passes_s = {context: Prices(profile).pass_s(lane.name, 1, context) for context in CONTEXTS}
        for context, one_s in passes_s.items():
            found[f"token after {context}, cores: {len(lane.cores)}"].append(one_s + lane.dispatch_s)
        if len(lane.cores) > 1:
            waits = (one_s - read_bytes(at, efficiency, 2) / (together / 2) for at, one_s in passes_s.items())
            found["link.collective_latency_s"].append(fmean(waits) / STEPS)
    return dict(found)


def read_bytes(context: float, efficiency: float, num_cores: int = 1) -> float:
    """Return the bytes of weights that each core reads in a pass, and those that it could read instead of the cache."""
    cached, _ = MODEL.own_work("draft_step", 1, Contexts.of(np.array(float(context))), num_cores)
    return MODEL.shared_work("draft_step", 1).num_bytes / num_cores + float(cached) / efficiency


def num_flops(rows: int) -> float:
    """Return the FLOPs of a pass."""
    _, attention = MODEL.own_work("draft_step", rows, Contexts.of(np.array(float(SHORTEST))), 1)
    return MODEL.shared_work("draft_step", rows).flops + float(attention)


if __name__ == "__main__":
    main()
