"""Laws of a machine: every time is a formula, so calibration can be held to the right answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decoding.schedule import Schedule
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable

NUM_LAYERS = 10
EXIT_LAYERS = (4, 6)
EXIT_S = 3e-3
HEAD_S = 12e-3
STEP_LEVEL = 1.5
"""What a step of a draft head takes in a run, where the target empties the cache, over its time in a loop."""
GUESS_S = 2e-3
"""What one more guess of the draft's streams adds."""
DRAFT_PREFILL = 0.25
"""Of what the target takes to read a prompt."""
GAP_S = 2e-3
"""Between one verification and the next."""


@dataclass
class Laws:
    """Seconds on one lane; `speed` divides all of them.

    In a run the target takes `target_in_run` times as long as in a loop, with several rows `several_in_run` times
    that, and `target_contended` times that while a draft works. The draft takes `step_in_run` times a loop's time in a
    run, and `step_contended` times the loop's while a target works: its cache is lost only once. In a run the first
    step of a rollout or of branches takes `first_step_s` more, whatever its speed; a prefix takes `prefix_more_s` more,
    and a pass of the target whose states the drafter reads `features_s`.
    """

    speed: float = 1.0
    target_in_run: float = 1.0
    several_in_run: float = 1.0
    step_in_run: float = 1.0
    target_contended: float = 1.0
    step_contended: float = 1.0
    first_step_s: float = 0.0
    prefix_more_s: float = 0.0
    features_s: float = 0.0

    def layer_s(self, rows: int, context: int) -> float:
        return (1e-3 + 1e-4 * rows + 1e-6 * rows * context) / self.speed

    def head_s(self, rows: int) -> float:
        return HEAD_S * (1 + 0.1 * rows) / self.speed

    def exit_s(self, rows: int) -> float:
        return EXIT_S * (1 + 0.05 * rows) / self.speed

    def step_s(self, rows: int, context: int, *, with_features: bool = False) -> float:
        seconds = 5e-3 + 2e-4 * rows + 1e-6 * context
        return (seconds + (1e-3 if with_features else 0.0)) / self.speed

    def start_s(self, rows: int, context: int) -> float:
        return self.step_s(rows, context, with_features=True) + 2e-3 / self.speed

    def branch_s(self, rows: int, context: int) -> float:
        """A first step of branches next to a target, in a run."""
        return self.step_contended * (self.step_s(rows, context) + self.first_step_s / self.step_in_run)

    def replying_s(self, schedule: Schedule) -> float:
        """What the first operation of a pass takes more in a run."""
        return self.features_s / self.speed if schedule.reads_features else 0.0

    def prefill_s(self, rows: int) -> float:
        return 2e-3 * rows / self.speed

    def lane(self, name: str, rows: Sequence[int], contexts: Sequence[int]) -> LaneProfile:
        """What a calibration without noise would find on these grids."""

        def table(seconds: Callable[[int, int], float]) -> LatencyTable:
            lines = tuple(tuple(seconds(count, context) for context in contexts) for count in rows)
            return LatencyTable(rows=tuple(rows), contexts=tuple(contexts), seconds=lines, source="laws")

        return LaneProfile(
            name=name,
            device="fake",
            dispatch_s=0.0,
            layer=table(self.layer_s),
            lm_head=table(lambda count, _: self.head_s(count)),
            exit=dict.fromkeys(EXIT_LAYERS, table(lambda count, _: self.exit_s(count))),
            draft_step=table(self.step_s),
            # a single row of a step never has features, see `calibrate.profiling.lane_parts`
            draft_step_features=table(lambda count, at: self.step_s(count, at, with_features=count > 1)),
            draft_start=table(self.start_s),
        )

    def target_s(self, part: str, rows: int, context: int, exit_layer: int | None) -> float:
        if part == "lm_head":
            return self.head_s(rows)
        if part == "exit":
            return self.exit_s(rows)
        num_layers = NUM_LAYERS if part in ("verify", "verify_tree") else exit_layer
        assert num_layers is not None
        if part == "suffix":
            num_layers = NUM_LAYERS - num_layers
        last_s = self.exit_s(rows) if part == "prefix" else self.head_s(rows)
        return num_layers * self.layer_s(rows, context) + last_s
