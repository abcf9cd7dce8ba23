"""What a KV cache adds to a pass by context: series at depth, and the share of the weights' bandwidth that they reach.

    seconds = start + cache bytes / (bandwidth of the weights * cache efficiency)

Start and efficiency are fitted to each series by least squares of relative errors. The bandwidth is that of a GPU's
sheet and engine; a CPU's is of the series' own start, as sheets of most CPUs give none. depths.csv has series of others
(attributed line by line; attention without words beside it is flash attention); devices were split into those to fit
and those held out before anybody had looked at their errors. Our own lanes are in results/held-out.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
from _common import RESULTS

from costs.cost_model import Floats
from costs.prices import Prices
from hwprofiles.engines import priced, run_by
from hwprofiles.model_shape import model_shape
from hwprofiles.profile import Profile, load_profile
from hwprofiles.quantity import Quantity
from hwprofiles.sheets import DeviceKind, device_sheet
from hwprofiles.weights.formats import weights_named
from sim.derived.device_speed import device_speed
from sim.derived.roofline import Contexts, StoredModel
from sim.derived.sheet_numbers import guesses

TABLE: Final = Path(__file__).with_name("depths.csv")
_CACHES: Final = {"f16": (16, 0.0), "bf16": (16, 0.0), "q8_0": (8, 0.5), "q4_0": (4, 0.5)}
"""Bits of an element, and of its scale."""
_LONGEST: Final = 10**6
"""Some series are longer than what their model was trained for."""
MAKES: Final = {
    "avx2 avx512_bf16 avx512_vnni avx512f avx_vnni": "epyc-zen5-core",
    "avx2 avx512_bf16 avx512_vnni avx512f": "epyc-zen4-core",
    "avx2": "epyc-zen3-core",
    "avx2 avx512_vnni avx512f": "xeon-icelake-core",
}
"""Sheets of our own lanes, by instruction sets; another CPU goes by its name."""
SHORTEST: Final = 200
"""Cached tokens from which on series of our own lanes are fitted."""
_ROWS: Final = (1, 4, 8)


@dataclass(frozen=True, kw_only=True)
class Depths:
    """Seconds of a token by context, on a device by an engine."""

    told: dict[str, str]
    model: StoredModel
    contexts: Floats
    seconds: Floats

    @property
    def kind(self) -> DeviceKind:
        """The kind of its device."""
        return "cpu" if self.told["kind"] == "cpu" else "gpu"

    @cached_property
    def cache_bytes(self) -> Floats:
        """What a pass reads and writes of the cache."""
        return self.model.own_work("layer", 1, Contexts.of(self.contexts), 1)[0] * self.model.shape.num_layers

    @cached_property
    def efficiency(self) -> float:
        """The cache's bandwidth over the weights'."""
        _, s_per_byte = _line(self.cache_bytes, self.seconds)
        return self.weights_s_per_byte / s_per_byte

    @cached_property
    def weights_s_per_byte(self) -> float:
        """Seconds that a byte of the weights takes."""
        shape, weights = self.model.shape, self.model.weights
        if self.kind == "cpu":
            start_s, _ = _line(self.cache_bytes, self.seconds)
            return start_s / (shape.num_layers * shape.layer_weight_bytes(weights, 1) + shape.head_bytes(weights))
        sheet = run_by(device_sheet(self.told["device"]), self.told["engine"])
        assert sheet.memory_bytes_per_s is not None, "a GPU's sheet without a bandwidth"
        by_curves = priced(sheet, shape, weights)
        return 1 / device_speed("gpu", sheet, sheet.memory_bytes_per_s, by_curves, weights).bytes_per_s

    def error(self, efficiency: float) -> float:
        """Return the relative error of the deepest time, if the first one is known."""
        added_s = (self.cache_bytes[-1] - self.cache_bytes[0]) * self.weights_s_per_byte / efficiency
        return float((self.seconds[0] + added_s) / self.seconds[-1] - 1)


def read_depths(path: Path = TABLE) -> list[Depths]:
    """Return the series of a table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_read(line) for line in csv.DictReader(file)]


def _read(line: dict[str, str]) -> Depths:
    bits, scale_bits = _CACHES[line["cache"]]
    shape = model_shape(line["model"]).model_copy(update={"max_position": _LONGEST})
    depths, rates = (np.array(line[name].split(), float) for name in ("depths", "tokens_per_s"))
    return Depths(
        told=line,
        model=StoredModel(
            shape=shape, weights=weights_named(line["weights"]), cache_bits=bits, cache_scale_bits=scale_bits
        ),
        contexts=depths + float(line["generated"]) / 2,
        seconds=1 / rates,
    )


def depth_results(series: Sequence[Depths], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was fitted by kind of device, what became of devices held out, and every series.

    Our own lanes, as `own_lanes` returns them, are among the CPUs to fit.
    """
    by_kind = defaultdict[DeviceKind, list[Depths]](list)
    for one in series:
        by_kind[one.kind].append(one)
    of_own = {"cpu": {name: of["efficiency"] for name, of in own.items()}}
    judged = {
        kind: _judged(guesses()["cache_efficiency"][kind], found, of_own.get(kind, {}))
        for kind, found in by_kind.items()
    }
    return {"guesses": judged, "series": [*map(_entry, series)], "own_lanes": own}


def _judged(guess: Quantity, series: Sequence[Depths], own: Mapping[str, float]) -> dict[str, Any]:
    to_fit, held_out = ([one for one in series if one.told["set"] == told] for told in ("fit", "held-out"))
    devices = _by_device(to_fit) | own
    without = {
        left: median(own for name, own in devices.items() if name != left) for left in devices if len(devices) > 1
    }
    return {
        "guess": guess.value,
        "span": [guess.lowest, guess.highest],
        "fitted": {"value": median(devices.values()), "devices": devices, "without": without},
        "held_out": {
            "num": len(held_out),
            "inside": sum(guess.lowest <= one.efficiency <= guess.highest for one in held_out),
            "devices": _by_device(held_out),
            "error": _errors(held_out, guess.value),
            "error_at_weights_speed": _errors(held_out, 1.0),
        },
    }


def _by_device(series: Iterable[Depths]) -> dict[str, float]:
    found = defaultdict[str, list[float]](list)
    for one in series:
        found[one.told["device"]].append(one.efficiency)
    return {device: median(own) for device, own in found.items()}


def _errors(series: Sequence[Depths], efficiency: float) -> dict[str, float]:
    found = [abs(one.error(efficiency)) for one in series]
    return {"median": median(found), "worst": max(found)}


def _entry(one: Depths) -> dict[str, Any]:
    told = {name: one.told[name] for name in ("set", "device", "engine", "model", "weights", "cache", "source")}
    return {**told, "deepest": float(one.contexts[-1]), "efficiency": one.efficiency}


def own_lanes(folder: Path = RESULTS / "held-out") -> dict[str, Any]:
    """Return the efficiencies of our own lanes by CPU, and what it adds to passes of more rows over one row."""
    found = defaultdict[str, dict[int, list[float]]](lambda: {rows: [] for rows in _ROWS})
    for path in sorted(folder.glob("*.yaml")):
        profile = load_profile(path)
        sheet = MAKES.get(str(profile.host.get("instruction_sets")), str(profile.host.get("cpu_model")))
        for lane in profile.lanes:
            if lane.layer is not None and lane.lm_head is not None:
                of_rows = {rows: lane_depths(profile, lane.name, lane.layer.contexts[-1], rows) for rows in _ROWS}
                found[sheet][1].append(of_rows[1].efficiency)
                added = {rows: _line(one.cache_bytes, one.seconds)[1] for rows, one in of_rows.items()}
                for rows in _ROWS[1:]:
                    found[sheet][rows].append(added[rows] / added[1])
    return {
        sheet: {
            "efficiency": median(own[1]),
            "span": [min(own[1]), max(own[1])],
            "added_by_rows": {str(rows): median(own[rows]) for rows in _ROWS[1:]},
        }
        for sheet, own in found.items()
    }


def lane_depths(profile: Profile, lane: str, longest: float, rows: int) -> Depths:
    """Return the times of a pass over some rows on a lane of our own, by context."""
    contexts = np.linspace(SHORTEST, longest, 40)
    prices, shape = Prices(profile), model_shape("smollm2-135m")
    assert (profile.target, profile.dtype) == ("smollm2-135m-instruct", "bfloat16"), "sessions are of this model"
    seconds = np.array([prices.pass_s(lane, rows, context) for context in contexts])
    model = StoredModel(shape=shape, weights=weights_named("bf16"))
    return Depths(told={"kind": "cpu"}, model=model, contexts=contexts, seconds=seconds)


def _line(cache_bytes: Floats, seconds: Floats) -> tuple[float, float]:
    """Return (start in s, seconds per byte)."""
    design = np.array([np.ones_like(cache_bytes), cache_bytes]).T / seconds[:, None]
    start_s, s_per_byte = np.linalg.lstsq(design, np.ones_like(seconds), rcond=None)[0]
    return float(start_s), float(s_per_byte)
