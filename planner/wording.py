"""Text for people: names of schedules and of their kinds, and numbers in readable units."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from decoding.schedule import Schedule

Kind = Literal["plain", "lookup", "synchronous", "tree", "mirror"]

KINDS: Final[Mapping[Kind, str]] = {
    "plain": "plain decoding",
    "lookup": "prompt lookup",
    "synchronous": "synchronous speculation",
    "tree": "tree speculation",
    "mirror": "mirror speculation",
}
"""Name of each kind in sentences, the simplest kind first. Drafters of blocks (DFlash) count as synchronous."""


def kind_of(schedule: Schedule) -> Kind:
    """Return the kind of a schedule, by the traits of its method."""
    traits = schedule.traits
    if traits.window == "none":
        return "plain"
    if traits.is_tree:
        return "tree"
    if traits.finds_text:
        return "lookup"
    return "mirror" if traits.overlaps else "synchronous"


PART: Final[Mapping[str, str]] = {
    "target_verify": "the target's pass",
    "target_prefix": "the target up to the exit",
    "target_suffix": "the target after the exit",
    "draft": "drafting while the target waits",
    "fallback": "drafting again after a miss",
    "channel": "messages between lanes",
    "contention": "lanes slowing each other",
    "overhead": "dispatch and bookkeeping",
}
"""Name of each part of a predicted time, in the order in which tables show them."""


def schedule_name(schedule: Schedule, placement: str) -> str:
    """Return a name such as `mirror from exit 15, 3 drafted, 4 roots per row`."""
    traits, drafted = schedule.traits, f"{schedule.num_speculative_tokens} drafted"
    if traits.window == "none":
        return f"plain, {placement}"
    if traits.is_tree:
        top = f", top {schedule.tree_top_k}" if schedule.tree_top_k else ""
        tree = f"tree of {schedule.tree_size}, {schedule.num_speculative_tokens} deep{top}"
        return f"{traits.title}, {tree}, {placement}"
    if not traits.has_draft_model:
        return f"{traits.title}, {drafted}, {placement}"
    way = traits.title.removesuffix(" speculation")
    features = ", exit features" if schedule.exit_features else ""
    if schedule.verification == "ratio":
        features += ", rule ratio"
    if schedule.draft_streams:
        features += f", {counted(schedule.draft_streams, 'stream')}"
    if not traits.overlaps:
        return f"{way}, {drafted}{features}, {placement}"
    origin = {"exit": "exit {0}", "draft": "draft", "hybrid": "exit {0} + draft"}[str(schedule.root_source)]
    return f"{way} from {origin.format(schedule.exit_layer)}, {drafted}, {_roots(schedule)}{features}"


def on_lanes(schedule: Schedule) -> str:
    """Return where a schedule runs, such as `target on cpu0, draft on cpu1`."""
    if schedule.draft_lane is None or schedule.is_pooled:
        return f"on {schedule.target_lane}"
    return f"target on {schedule.target_lane}, draft on {schedule.draft_lane}"


def schedule_names(schedules: Sequence[tuple[Schedule, str]]) -> tuple[str, ...]:
    """Return `schedule_name` of each (schedule, placement) of a table, with details where two names would be equal."""
    names = [schedule_name(schedule, placement) for schedule, placement in schedules]
    for detail_of in _DETAILS:
        details = [detail_of(schedule) for schedule, _ in schedules]
        details_by_name: dict[str, set[str]] = {}
        for name, detail in zip(names, details, strict=True):
            details_by_name.setdefault(name, set()).add(detail)
        names = [
            f"{name}, {detail}" if len(details_by_name[name]) > 1 else name
            for name, detail in zip(names, details, strict=True)
        ]
    return tuple(names)


def milliseconds(time_s: float) -> str:
    """Return a time with three significant digits, at most two decimals: `27.1 ms`."""
    return f"{in_ms(time_s)} ms"


def in_ms(time_s: float) -> str:
    """Return a time in milliseconds without its unit: `27.1`."""
    return digits(time_s * 1e3)


def between(low_s: float, high_s: float) -> str:
    """Return a range in milliseconds, without the unit: `27.1 to 28.3`, or `up to 28.3` from zero on."""
    return f"{in_ms(low_s)} to {in_ms(high_s)}" if low_s > 0 else f"up to {in_ms(high_s)}"


def seconds(time_s: float) -> str:
    """Return a duration: `45 s`, `3 min 10 s`."""
    whole = round(time_s)
    if whole < 60:
        return f"{digits(time_s)} s" if time_s < 10 else f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"


def duration(time_s: float) -> str:
    """Return a duration in milliseconds, `27.1 ms`, or from one second on as `seconds` does."""
    return milliseconds(time_s) if time_s < 1 else seconds(time_s)


def tokens_per_second(tpot_s: float) -> str:
    """Return a time per token as a rate: `36.9 tokens/s`."""
    return f"{digits(1 / tpot_s)} tokens/s"


def factor(value: float) -> str:
    """Return a ratio: `1.57×`, `8×`."""
    return f"{value:.0f}×" if value >= 100 or value == round(value) else f"{digits(value)}×"


def error_percent(error: float) -> str:
    """Return an error, always with a decimal: `2.3 %`."""
    return f"{error * 100:.1f} %"


def signed_percent(error: float) -> str:
    """Return an error with its sign (a typographic minus): `+2.3 %`."""
    return f"{error * 100:+.1f} %".replace("-", "\u2212")


def percent(share: float) -> str:
    """Return a share: `23 %`; below one percent with a decimal."""
    return f"{share * 100:.1f} %" if 0.0005 <= abs(share) < 0.01 else f"{share * 100:.0f} %"


def si(value: float, unit: str) -> str:
    """Return a number with its unit and a prefix of thousands: `80 GB/s`, `3 µs`."""
    powers = {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3, "": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9}
    value = float(f"{value:.3g}")  # rounded before the prefix is chosen: 999.7 GB/s is 1 TB/s, not 1e+03 GB/s
    prefix = next((prefix for prefix, power in powers.items() if abs(value) >= power), "")
    return f"{value / powers[prefix]:.3g} {prefix}{unit}"


_UNITS: Final[Mapping[str, tuple[tuple[float, str], ...]]] = {
    "_flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
    "_ops": ((1e12, "TOP/s"),),
    "bytes_per_s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")),
    "transfers_per_s": ((1e9, "GT/s"),),
    "_bytes": ((1e9, "GB"),),
    "write_off_s": ((86400.0, "days"),),
    "_s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "_w": ((1.0, "W"),),
    "_efficiency": ((0.01, "%"),),
    "usd_per_hour": ((1.0, "USD/h"),),
    "price_usd": ((1.0, "USD"),),
    "bus_bits": ((1.0, "bit"),),
}
"""(size, unit), the largest first, by the ending of a field's name; the first ending that matches is used."""


def amount(field: str, value: float) -> str:
    """Return a number in the unit that people use for its field."""
    units = next((units for ending, units in _UNITS.items() if field.endswith(ending)), ((1.0, ""),))
    size, unit = next(((size, unit) for size, unit in units if value >= size), units[-1])
    number = value / size
    text = f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"
    return f"{text}{'' if unit == '%' else ' '}{unit}".rstrip()


def listing(items: list[str]) -> str:
    """Return `a, b and c`."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def counted(number: int, singular: str) -> str:
    """Return `1 round`, `3 rounds`."""
    return f"{number:,} {singular}{'s' * (number != 1)}"


def known_in_words(rows: int, *, by_law: bool) -> str:
    """Complete the sentence "more rows than ...": the most rows with a known cost, and what is assumed beyond."""
    if by_law:
        return f"the kernel law was fitted to ({rows}): it is assumed to hold"
    return f"row curves were measured for ({rows}): reading is assumed to slow down no further"


def capital(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


_DETAILS: Final[tuple[Callable[[Schedule], str], ...]] = (
    lambda schedule: f"by {schedule.drafter}",
    lambda schedule: f"target on {schedule.target_lane}",
    lambda schedule: f"draft on {schedule.draft_lane}",
    lambda schedule: f"roots {'/'.join(str(count) for count in schedule.roots_per_row or ())}",
)


def _roots(schedule: Schedule) -> str:
    if schedule.roots_per_row is not None:
        return f"{sum(schedule.roots_per_row)} roots, uneven"
    if schedule.root_source == "hybrid":
        return f"{schedule.exit_top_k} + {schedule.draft_top_k} roots per row"
    return f"{counted(schedule.exit_top_k or schedule.draft_top_k, 'root')} per row"


def digits(value: float) -> str:
    """Return a number with three digits, or as many as it has before the point: `0.79`, `27.1`, `1234`."""
    for decimals, limit in ((2, 10), (1, 100)):
        if abs(round(value, decimals)) < limit:
            return f"{value:.{decimals}f}"
    return f"{value:.0f}"
