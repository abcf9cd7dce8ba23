"""What a token costs in energy and in money, by what sheets say of power and prices."""

from __future__ import annotations

from collections.abc import Mapping

from hwprofiles.platform import Platform
from planner.platform_plan.device_pairs import LanePair
from sim.prediction import Prediction


def energy_j_per_token(platform: Platform, pair: LanePair, prediction: Prediction) -> float | None:
    """Power times the time that devices compute, and idle power (where it is known) for the rest.

    Devices of one package draw its power together, as long as any of them computes. None where a sheet gives no power.
    """
    target_s = prediction.target_busy_s
    draft_s = prediction.hidden_draft_s + prediction.exposed_draft_s
    busy: dict[str, float] = dict.fromkeys(platform.members(pair.target), target_s)
    for member in platform.members(pair.draft):
        # what one device does for both at once is power of one device
        busy[member] = busy[member] + prediction.exposed_draft_s if member in busy else draft_s
    joules, packages = 0.0, dict[str, tuple[float, float]]()
    for member, busy_s in busy.items():
        sheet = platform.device(member)
        if sheet.power_w is None:
            return None
        if sheet.power_of == "package":
            memory, _ = platform.pool_of(member)
            watts, _ = packages.get(memory, (0.0, 0.0))
            packages[memory] = max(watts, sheet.power_w.value), target_s + prediction.exposed_draft_s
            continue
        idle_w = 0.0 if sheet.idle_power_w is None else sheet.idle_power_w.value
        joules += sheet.power_w.value * busy_s + idle_w * max(0.0, prediction.decode_s - busy_s)
    joules += sum(watts * min(busy_s, prediction.decode_s) for watts, busy_s in packages.values())
    return joules / prediction.num_tokens


def usd_per_million_tokens(platform: Platform, pair: LanePair, prediction: Prediction) -> float | None:
    """Rent, or the purchase over its write-off, of the whole machine or of the devices that are used; power is extra.

    None where nobody says what it costs.
    """
    per_hour = usd_per_hour(platform, pair)
    return None if per_hour is None else per_hour / 3600 * prediction.tpot_s * 1e6


def usd_per_hour(platform: Platform, pair: LanePair) -> float | None:
    """Return what an hour of a placement costs."""
    if platform.usd_per_hour is not None:
        return platform.usd_per_hour
    members = {*platform.members(pair.target), *platform.members(pair.draft)}
    prices: Mapping[str, float | None] = {member: platform.device(member).usd_per_hour for member in members}
    known = [price for price in prices.values() if price is not None]
    return sum(known) if len(known) == len(members) else None
