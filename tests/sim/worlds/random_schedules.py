"""Random schedules for tests of the simulator."""

from typing import Any

from hypothesis import strategies as st

from decoding.schedule import Schedule
from tests.sim.worlds.machines import EXIT_LAYERS
from tests.sim.worlds.records import MAX_WINDOW, NUM_STREAMS, PATHS, TREES
from tests.sim.worlds.schedules import AUTOREGRESSIVE, lookup, mirror, speculative, tree


@st.composite
def schedules(draw: st.DrawFn, *, method: str | None = None, drawn: bool = False) -> Schedule:
    """Any schedule that random records and profiles can answer for, or (`drawn`) acceptance that is drawn."""
    method = method or draw(
        st.sampled_from(["autoregressive", "speculative", "lookup", "tree", "mirror", "mirror", "mirror"])
    )
    if method == "autoregressive":
        return AUTOREGRESSIVE
    if method == "lookup" and not drawn:
        return lookup(draw(st.integers(1, MAX_WINDOW)), draft_lane=draw(st.sampled_from(["draft", "target"])))
    if method == "tree":
        recorded = draw(st.sampled_from([one for one in TREES if not drawn or one.method != "hydra"]))
        size = draw(st.integers(recorded.depth, len(PATHS) + 4))
        return tree(recorded, size, draft_lane=draw(st.sampled_from(["draft", "target"])))
    num_tokens = draw(st.integers(1, MAX_WINDOW))
    fields: dict[str, Any] = {"draft_streams": 0 if drawn else draw(st.integers(0, NUM_STREAMS))}
    if method in ("speculative", "lookup"):
        fields["exit_features"] = draw(st.booleans())
        return speculative(num_tokens, draft_lane=draw(st.sampled_from(["draft", "target"])), **fields)
    root_source = draw(st.sampled_from(["exit", "draft", "hybrid"]))
    if root_source != "draft":
        fields["exit_layer"] = draw(st.sampled_from(EXIT_LAYERS))
    if root_source == "exit":
        fields["exit_features"] = draw(st.booleans())
    if root_source != "hybrid" and draw(st.booleans()):
        budget = draw(st.lists(st.integers(0, 5), min_size=1, max_size=num_tokens + 1).filter(any))
        return mirror(root_source, num_tokens=num_tokens, roots_per_row=tuple(budget), **fields)
    if root_source != "draft":
        fields["exit_top_k"] = draw(st.integers(1, 5))
    if root_source != "exit":
        fields["draft_top_k"] = draw(st.integers(1, 5))
    return mirror(root_source, num_tokens=num_tokens, **fields)
