"""The summary of made-up demos, held against counting by hand; and that none is left out or run twice."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from calibrate.profiling.anchors import RunAnchors
from decoding.schedule import Schedule
from decoding.trace import Round, Trace
from hwprofiles.lane_profile import LaneProfile
from hwprofiles.latency_table import LatencyTable
from hwprofiles.profile import Profile, save_profile
from mirrorsd.compare.runs import Run
from tests.benchmarks.scripts import RESULTS, load_script

WEIGHTS = {"smollm2-135m-instruct": "abc"}


@pytest.fixture
def script(tmp_path, monkeypatch):
    script = load_script("demos")
    monkeypatch.setattr(script, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "find_pair", lambda _name: None)
    monkeypatch.setattr(script, "measured_pair", lambda _pair: WEIGHTS)
    monkeypatch.setattr(
        script, "recomputed", lambda folder, **_: faster(json.loads((folder / "demo.json").read_bytes()))
    )
    monkeypatch.setattr(script, "judged", lambda _folder: SimpleNamespace(results=()))
    monkeypatch.setattr(script, "machine", lambda folders: {"of": [folder.name for folder in folders]})
    return script


def faster(made: dict) -> dict:
    """A demo whose times another simulator predicts 10 % shorter, without error."""
    entries = [
        one | {"predicted": one["predicted"] | {"tpot_s": 0.9 * one["predicted"]["tpot_s"]}, "tpot_error": 0.0}
        for one in made["schedules"]
    ]
    return made | {"pays": "no", "without_repeating": None, "schedules": entries}


def entry(predicted_s, at_anchor_s):
    return {
        "name": "mirror",
        "schedule": {"target_lane": "cpu0", "draft_lane": "cpu1"},
        "predicted": {"tpot_s": predicted_s, "tpot_s_low": 0.9 * predicted_s, "tpot_s_high": 1.1 * predicted_s},
        "measured": {"tpot_s": 99.0, "tpot_s_at_anchor": at_anchor_s},
        "tpot_error": 0.0,
        "tpot_error_at_anchor": predicted_s / at_anchor_s - 1,
        "rounds_equal": {"equal": 7, "of": 7},
        "speedup_measured": {"value": 1.3, "low": 1.2, "high": 1.4},
    }


def demo(*entries, **facts):
    return {
        "platform": {"target": "smollm2-135m-instruct"},
        "created": "today",
        "num_prompts": 7,
        "pays": "yes",
        "speedup": 1.3,
        "winner": "mirror",
        "busy": None,
        "notes": [],
        "rounds": "All of them.",
        "total_s": 300.0,
        "files": {"profile": "profile.yaml", "record": "record.npz", "traces": "traces.json.gz"},
        "schedules": list(entries),
    } | facts


def write_demo(folder: Path, content: dict, samples: str | None = None) -> Path:
    """A folder as `mirrorsd demo` leaves it, with a report that is not kept."""
    folder.mkdir(parents=True)
    table = LatencyTable(rows=(1,), contexts=(0,), seconds=((1.0,),), source="made up")
    lane = LaneProfile(name="cpu0", device="cpu", dispatch_s=0.0, layer=table)
    profile = Profile(host={}, target="", drafter=None, dtype="", num_layers=1, lanes=(lane,), samples=samples)
    save_profile(profile, folder / "profile.yaml")
    for name in ("record.npz", "traces.json.gz", "report.html", *filter(None, [samples])):
        (folder / name).write_bytes(b"12345")
    (folder / "demo.json").write_text(json.dumps(content))
    return folder


def test_a_demo_of_which_a_file_is_missing_is_not_kept_in_part(script, tmp_path):
    out = write_demo(tmp_path / "out", demo(entry(1.0, 1.0)))
    (out / "record.npz").unlink()
    with pytest.raises(FileNotFoundError):
        script.keep(out, tmp_path / "results" / "demos" / "1", {})
    assert list((tmp_path / "results" / "demos").iterdir()) == []


def test_demos_that_are_there_are_not_run_again_and_all_are_in_the_summary(script, tmp_path, monkeypatch):
    run = []

    def fake_demo(out):
        run.append(out.name)
        return write_demo(tmp_path / out, demo(entry(1.0, 1.0 + len(run) / 10), pays="unclear")), 312.5

    monkeypatch.setattr(script, "_demo", fake_demo)
    for count, expected in ((2, ["1", "2"]), (3, ["1", "2", "3"])):
        monkeypatch.setattr("sys.argv", ["demos.py", "--count", str(count)])
        script.main()
        assert run == expected
    result = json.loads((tmp_path / "results" / "demos.json").read_bytes())
    assert list(result["demos"]) == ["1", "2", "3"]
    assert result["all"]["num_demos"] == 3
    assert result["all"]["pays"] == ["unclear"] * 3
    assert result["machine"] == {"of": ["1", "2", "3"]}
    assert result["all"]["error_at_anchor"]["worst"] == pytest.approx(1 - 1 / 1.3)
    assert result["demos"]["2"]["wall_s"] == 312.5
    assert result["all"]["recomputed"]["pays"] == ["no"] * 3
    assert result["demos"]["2"]["winner_speedup"] == {"value": 1.3, "low": 1.2, "high": 1.4}
    folder = tmp_path / "results" / "demos" / "2"
    assert result["demos"]["2"]["num_bytes"] == sum(path.stat().st_size for path in folder.iterdir())
    assert result["measured"] == WEIGHTS


@pytest.fixture
def older(script, tmp_path):
    """A demo that was kept when the target had other weights."""
    out = write_demo(tmp_path / "older", demo(entry(1.0, 1.0)))
    facts = {"measured": {"smollm2-135m-instruct": "older"}, "formats": {}, "wall_s": 1.0}
    script.keep(out, tmp_path / "results" / "demos" / "1", facts)
    return facts


def test_demos_are_not_added_to_those_of_other_weights(script, older, monkeypatch):
    run = []
    monkeypatch.setattr(script, "_demo", run.append)
    monkeypatch.setattr("sys.argv", ["demos.py", "--count", "2"])
    with pytest.raises(SystemExit, match=r"other weights or formats \(smollm2-135m-instruct\)"):
        script.main()
    assert run == []


@pytest.mark.parametrize("count", [0, 1])
def test_a_summary_has_the_weights_that_its_demos_had(script, older, tmp_path, monkeypatch, count):
    monkeypatch.setattr("sys.argv", ["demos.py", "--count", str(count)])
    script.main()
    result = json.loads((tmp_path / "results" / "demos.json").read_bytes())
    assert result["measured"] == older["measured"]


def test_the_committed_summary_is_that_of_what_was_kept():
    script = load_script("demos")
    committed = json.loads((RESULTS / "demos.json").read_bytes())
    today = json.loads(json.dumps(script.summary(script.numbered(RESULTS / "demos"))))
    (now, kept) = (dict(leaves(content)) for content in (today, committed))
    assert list(now) == list(kept)
    different = {path: (value, kept[path]) for path, value in now.items() if not is_same(value, kept[path])}
    assert different == {}


def is_same(one, other) -> bool:
    """Whether two values are equal, but for rounding."""
    return one == other or (isinstance(one, float) and one == pytest.approx(other, rel=1e-9, abs=1e-12))


def leaves(content, path=()):
    """Every value of nested objects and lists, by the way to it."""
    if isinstance(content, dict | list) and content:
        items = content.items() if isinstance(content, dict) else enumerate(content)
        for name, value in items:
            yield from leaves(value, (*path, name))
    else:
        yield path, content


def trace(*ends_s, accepted=0):
    made = Trace(world="measured")
    for end_s in ends_s:
        made.rounds.append(Round(0.0, end_s, 1, accepted, accepted + 1, (accepted, 7), None))
    return made


def test_rounds_are_told_apart_by_place_and_lanes_at_the_pace_of_the_calibration(script):
    drafting = {"num_speculative_tokens": 1, "drafter": "d", "draft_lane": "b"}
    pairs = (trace(10.0, 20.0, 30.0, 40.0), trace(40.0, 60.0, 80.0, 100.0)), (trace(1.0), trace(9.0, accepted=1))
    in_turn = SimpleNamespace(
        candidate=SimpleNamespace(schedule=Schedule(method="speculative", target_lane="a", **drafting)),
        simulated=[one for one, _ in pairs],
        measured=[other for _, other in pairs],
        measured_s=2.0,
        measured_at_anchor_s=1.0,
    )
    assert script.round_errors([in_turn]) == {
        "in turn": {
            "first": {"error": pytest.approx(-0.5), "of": 1},
            "later": {"error": pytest.approx(0.0), "of": 2},
            "second": {"error": pytest.approx(0.0), "of": 1},
        }
    }, "the second text left the simulated rounds"


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"method": "autoregressive"}, "plain"),
        ({"method": "prompt_lookup", "num_speculative_tokens": 2, "draft_lane": "a"}, "pooled"),
        ({"method": "speculative", "num_speculative_tokens": 1, "drafter": "d", "draft_lane": "a"}, "pooled"),
        (
            {
                "method": "mirror",
                "num_speculative_tokens": 1,
                "root_source": "draft",
                "draft_top_k": 1,
                "drafter": "d",
                "draft_lane": "b",
            },
            "at once",
        ),
    ],
)
def test_lanes_work_alone_together_or_at_once(script, settings, kind):
    result = SimpleNamespace(
        candidate=SimpleNamespace(schedule=Schedule(target_lane="a", **settings)),
        simulated=[trace(1.0)],
        measured=[trace(1.0)],
        measured_s=1.0,
        measured_at_anchor_s=1.0,
    )
    assert list(script.round_errors([result])) == [kind]


def test_the_first_token_keeps_its_sign(script):
    made = demo(*(entry(1.0, 1.0) | {"ttft": {"error": error}} for error in (-0.1, 0.3, 0.1)))
    found = script.figures([made])["first_token"]
    assert found == {"median": 0.1, "worst": 0.3, "of": 3, "mean": pytest.approx(0.1)}
    assert script.figures([demo(entry(1.0, 1.0))])["first_token"] is None


def test_ratios_are_of_times_as_they_were(script):
    quick, slow = entry(1.0, 5.0), entry(3.0, 1.0)
    slow["measured"]["tpot_s"] = 2 * quick["measured"]["tpot_s"]
    assert list(script.ratio_errors([quick, slow])) == [pytest.approx(2 / 3 - 1)]


def test_a_pace_of_seconds_is_compared_with_the_minute_and_a_half_after_them(monkeypatch):
    """A lane takes twice as long for the first ten seconds, and one that never changes has no spread."""
    script = load_script("_demo_machine")

    def run(at_s, **factors):
        anchors = RunAnchors({lane: (factor,) * 11 for lane, factor in factors.items()})
        return Run(trace=Trace(world="measured", decode_s=10.0), at_s=at_s, anchors=anchors)

    runs = [run(10.0 * place, slow=2.0 if place == 0 else 1.0, steady=1.0) for place in range(12)]
    monkeypatch.setattr(script, "_runs", lambda _folder: runs)
    changes = list(script.pace_changes(None))
    assert max(changes) == pytest.approx(math.log(5 / 3))  # six slow anchors of nine
    assert sum(abs(change) > 1e-9 for change in changes) == 2  # the other one begins with the last slow anchor
