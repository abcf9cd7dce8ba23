"""The machine made of laws as calibration sees it: an engine that loads lanes, heads and streams, and decodes."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

from decoding.schedule import Schedule
from hwprofiles.host import split_lanes
from runtime.lanes.sequence_lanes import NOBODY, Listener
from runtime.wire.measurement import Measurement
from runtime.wire.operations import RowInvariance
from tests.calibrate.profiling.fake_machine.lanes import FakeLane, FakeRequest
from tests.calibrate.profiling.fake_machine.laws import NUM_LAYERS, Laws
from tests.calibrate.profiling.fake_machine.runs import FakeRun
from tests.calibrate.profiling.fake_machine.weather import Weather

LANES = split_lanes((0, 1))
_CORES = {one.name: one.cores for one in LANES}


@dataclass
class FakeEngine:
    """An engine whose draft is right about every other token.

    Heads take `base_s` and a bit for every row, and in a run `level_of` the lane times that; streams add `streams_s`.
    """

    laws: dict[str, Laws]
    surprise: float = 1.0
    """Factor on all work of schedules with windows of two: those that calibration checks itself with."""
    config: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(num_layers=NUM_LAYERS, vocab_size=100))
    laid_out: list[str] = field(default_factory=list)
    visits: list[tuple[str, Measurement]] = field(default_factory=list)
    busy_lanes: set[str] = field(default_factory=set)
    under_way: list[FakeRequest] = field(default_factory=list)
    loaded: set[tuple[str, str]] = field(default_factory=set)
    decoded: list[tuple[Schedule, int, int]] = field(default_factory=list)
    weather: Weather = field(default_factory=Weather)
    trouble: Callable[[str, Measurement, int], float] = lambda _lane, _measurement, _times_before: 1.0
    """Factor on what is timed, by how often it was before."""
    times_before: Counter[tuple[str, Measurement]] = field(default_factory=Counter)
    now_s: float = 0.0
    rows: RowInvariance = field(default_factory=lambda: RowInvariance(is_invariant=True, least_rows=1, instructions=""))
    kernels: dict[str, str] = field(default_factory=lambda: {one.name: f"{one.num_threads} cores" for one in LANES})
    """What the kernels of lanes are chosen by; `rows_tested` are those that tested their rows."""
    rows_tested: list[str] = field(default_factory=list)
    timed_s: float = 0.0
    """What all that was timed has taken; the rest was decoded."""
    base_s: dict[str, float] = field(default_factory=lambda: {"eagle": 2e-3, "medusa": 1e-3})
    level_of: dict[str, float] = field(default_factory=dict)
    streams_s: float = 4e-3
    drafters: dict[str, str] = field(default_factory=dict)
    """What lanes draft with, by lane; `loads` are all of them in turn."""
    loads: list[tuple[str, str]] = field(default_factory=list)
    compiled: dict[str, tuple[int | None, list[str | None], float]] = field(default_factory=dict)
    """What targets were compiled for, by lane: an exit and drafters that read states; and when."""

    def clock(self) -> float:
        return self.now_s

    def work(self, lane: str, law_s: float) -> float:
        """Seconds of work that by its law takes `law_s`; the time passes."""
        seconds = law_s * self.factor(lane, self.now_s) + self.weather.spike()
        self.now_s += seconds
        return seconds

    def factor(self, lane: str, now_s: float) -> float:
        return self.weather.factor(_CORES[lane], now_s)

    def row_invariance(self, lane: str) -> RowInvariance:
        assert (lane, "target") in self.loaded
        self.rows_tested.append(lane)
        return self.rows

    def load_target(self, lane: str) -> FakeLane:
        self.loaded.add((lane, "target"))
        return FakeLane(lane, self.laws[lane], self)

    def compile_target(self, lane: str, exit_layer: int | None, drafters: Iterable[str | None]) -> None:
        self.load_target(lane)
        self.compiled[lane] = exit_layer, [*drafters], self.now_s

    def load_draft(self, lane: str, drafter: str = "draft") -> FakeLane:
        self.loads.append((lane, drafter))
        self.drafters[lane] = drafter
        self.loaded.add((lane, "draft"))
        return FakeLane(lane, self.laws[lane], self)

    def load_streams(self, lane: str, drafter: str) -> FakeLane:
        self.loads.append((lane, drafter))
        self.loaded.add((lane, "streams"))
        return FakeLane(lane, self.laws[lane], self)

    def head_s(self, drafter: str, rows: int) -> float:
        return self.base_s[drafter] * (1 + 0.1 * rows)

    def generate(
        self,
        schedule: Schedule,
        prompt: Sequence[int],
        *,
        max_new_tokens: int,
        eos_token_ids: Sequence[int],
        listener: Listener = NOBODY,
    ) -> SimpleNamespace:
        assert tuple(eos_token_ids) == ()
        self.decoded.append((schedule, len(prompt), max_new_tokens))
        trace = FakeRun(self, schedule, len(prompt), listener).decode(max_new_tokens)
        return SimpleNamespace(trace=trace)
