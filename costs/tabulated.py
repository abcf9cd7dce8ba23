"""Writes the cost models of lanes into the latency tables of a profile, for single sequences and for batches.

Times are computed for every number of rows and every context. A table keeps those that linear interpolation between
others would not give, so nothing is lost.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isinf
from typing import Any, Final

import numpy as np

from costs.cost_model import Floats, LaneCost, Own, Part, Shared
from hwprofiles.lane_profile import PARTS, LanePart, LaneProfile
from hwprofiles.latency_table import BatchTable, LatencyTable
from hwprofiles.profile import Profile

_BY_KEY: Final = ("exit", "heads", "streams", "head_prefill")
"""Parts of which a lane has several tables, by exit layer or drafter."""
_SAME: Final = 1e-12
"""Differences below this share of the largest value are rounding."""


def tabulated(
    profile: Profile,
    costs: Mapping[str, LaneCost],
    *,
    contexts: range,
    most_rows: int,
    prompt_rows: Iterable[int],
    exits: Iterable[int] = (),
) -> Profile:
    """Return the profile with tables for chains and for early exits after the layers `exits`, computed from `costs`.

    Lanes that are not in `costs` are unchanged. Tables of decoding have 1 to `most_rows` rows, or fewer if the cost
    model ends before; tables of prefill have `prompt_rows` and the powers of two below the largest of them.
    """
    kinds: tuple[LanePart, ...] = ("layer", "lm_head", "draft_step", "draft_streams", "draft_reads")
    parts = [*map(Part, (*kinds, "prefill", "draft_prefill"))]
    parts += [Part("exit", layer) for layer in exits]
    parts += [Part(kind, drafter=profile.drafter) for kind in ("heads", "head_prefill") if profile.drafter]
    at, given = np.array(contexts, dtype=np.float64), {*prompt_rows}
    lengths = sorted({*given, *(1 << bit for bit in range(max(given).bit_length()))} - {0})

    def with_tables(lane: LaneProfile) -> LaneProfile:
        tables: dict[str, Any] = {kind: {} if kind in _BY_KEY else None for kind in PARTS}
        for part in parts:
            if part.kind.endswith("prefill"):
                table = _table(costs[lane.name], part, lengths, np.zeros(1))
            else:
                table = _table(costs[lane.name], part, range(1, most_rows + 1), at)
            if part.exit_layer is None and part.drafter is None:
                tables[part.kind] = table
            elif table is not None:
                tables[part.kind][part.exit_layer or part.drafter] = table
        return lane.model_copy(update=tables)

    lanes = tuple(with_tables(lane) if lane.name in costs else lane for lane in profile.lanes)
    return profile.model_copy(update={"lanes": lanes})


def _table(cost: LaneCost, part: Part, rows: Sequence[int], contexts: Floats) -> LatencyTable | None:
    """Return the table of a part for these rows, as far as the lane has a cost; None if it has none."""
    known = [count for count in rows if cost.missing(part, count, contexts) is None]
    if not known:
        return None
    shared_FR1 = np.array([cost.shared(part, count) for count in known]).T[:, :, np.newaxis]  # [fields, rows, 1]
    own_FRC = np.array([cost.own(part, count, contexts) for count in known]).swapaxes(0, 1)  # [fields, rows, contexts]
    num_bytes = shared_FR1[0] + own_FRC[0]
    times = np.array([cost.seconds(part, count, contexts) for count in known])
    grids = [times, num_bytes, *own_FRC[1:]]
    if all(np.ptp(grid, axis=1).max() <= _SAME * np.abs(grid).max() for grid in grids):  # contexts make no difference
        times, num_bytes, *_ = grids = [grid[:, :1] for grid in grids]
        contexts = np.zeros(1)
    is_decoding = isinstance(rows, range)
    kept_rows = _bends(*shared_FR1, *grids) if is_decoding else list(range(len(known)))
    kept_contexts = _bends(*(grid.T for grid in grids))

    def table_of(grid_RC: Floats) -> list[list[float]]:
        values: list[list[float]] = grid_RC[np.ix_(kept_rows, kept_contexts)].tolist()
        return values

    facts = cost.facts(part)
    batch: dict[str, Any] = dict(zip(Shared._fields, shared_FR1[:, kept_rows, 0].tolist(), strict=True))
    batch |= {f"own_{field}": table_of(grid) for field, grid in zip(Own._fields[1:], grids[2:], strict=True)}
    return LatencyTable(
        rows=tuple(known[place] for place in kept_rows),
        contexts=tuple(int(contexts[place]) for place in kept_contexts),
        seconds=tuple(map(tuple, table_of(times))),
        relative_error=facts.relative_error,
        bytes_per_call=float(num_bytes[0][len(contexts) // 2]),
        num_bytes=tuple(map(tuple, table_of(num_bytes))) if np.ptp(num_bytes) else (),
        batch=BatchTable.model_validate(batch) if is_decoding and own_FRC[1:].any() else None,
        most_positions=None if isinf(facts.most_positions) else int(facts.most_positions),
        source=facts.source,
    )


def _bends(*grids: Floats) -> list[int]:
    """Return the indices along the first axis, whose points are equidistant, where a grid bends, and both ends."""
    bends = {0, len(grids[0]) - 1}
    for grid in grids:
        is_bend = np.abs(np.diff(grid, n=2, axis=0)).max(axis=1) > _SAME * np.abs(grid).max()
        bends |= {*(np.flatnonzero(is_bend) + 1).tolist()}
    return sorted(bends)
