"""A cost model whose times depend on neither rows nor context."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from costs.cost_model import Floats, Own, Part, PartFacts, Shared
from hwprofiles.lane_profile import PARTS, LanePart


@dataclass(frozen=True, slots=True)
class ConstantCost:
    """The same seconds for a kind of part; those that have none are missing."""

    seconds_by_kind: Mapping[LanePart, float]

    def seconds(self, part: Part, rows: float, contexts: Floats) -> Floats:
        return np.full(contexts.shape, self.seconds_by_kind[part.kind])

    def missing(self, part: Part, rows: float, contexts: Floats) -> str | None:
        return None if part.kind in self.seconds_by_kind else f"no constant cost is given for {part}"

    def shared(self, part: Part, rows: float) -> Shared:
        return Shared(0.0, *(self.seconds_by_kind[part.kind],) * 2)

    def own(self, part: Part, rows: float, contexts: Floats) -> Own:
        return Own(*np.zeros((3, *contexts.shape)))

    def facts(self, part: Part) -> PartFacts:
        return PartFacts(relative_error=0.0, source="constant")


MILLISECONDS = ConstantCost(dict.fromkeys(PARTS, 1e-3))
"""For whoever asks for rounds, which do not depend on times."""
