"""A calibrated profile and a record of the embedded pair are kept here with what both simulators made of them.

The numbers were written before the array world was driven by the methods themselves, and those of schedules over two
lanes again when windows and verdicts began to pay for their link; whatever changes inside, every schedule keeps its
time. `expected.json.gz` holds the search's ranking, and the event world's traces of every twelfth
schedule of it.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule
from hwprofiles.profile import load_profile
from planner.search.search import search
from planner.search.space import SearchSpace
from sim.world import simulate

FOLDER = Path(__file__).parent
PROFILE = load_profile(FOLDER / "profile.yaml")
RECORD = AcceptanceRecord.load(FOLDER / "record.npz")
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads(gzip.decompress((FOLDER / "expected.json.gz").read_bytes()))
TOLERANCE = {"rel": 0.0, "abs": 1e-9}


def test_the_search_ranks_every_schedule_at_its_time_and_chooses_the_same() -> None:
    result = search(SearchSpace(), PROFILE, RECORD)
    found = {candidate.schedule: candidate.prediction for candidate in result.candidates}
    for row in EXPECTED["searched"]:
        prediction = found[Schedule(**row["schedule"])]
        assert prediction.tpot_s == pytest.approx(row["tpot_s"], **TOLERANCE)
        assert prediction.num_rounds == row["num_rounds"]
        assert prediction.bottlenecks._asdict() == pytest.approx(row["bottlenecks"], **TOLERANCE)
    assert result.winner.schedule == Schedule(**EXPECTED["searched"][0]["schedule"])


@pytest.mark.parametrize("row", EXPECTED["played"], ids=lambda row: "-".join(map(str, row["schedule"].values())))
def test_the_event_world_plays_every_schedule_in_its_time(row: dict[str, Any]) -> None:
    traces = simulate(Schedule(**row["schedule"]), PROFILE, RECORD)
    assert [trace.decode_s for trace in traces] == pytest.approx(row["decode_s"], **TOLERANCE)
    assert [len(trace.rounds) for trace in traces] == row["rounds"]
    assert [len(trace.spans) for trace in traces] == row["spans"]
    assert [sum(span.end_s - span.start_s for span in trace.spans) for trace in traces] == pytest.approx(
        row["span_s"], **TOLERANCE
    )
