"""Figures show the traces and the search: hidden and exposed work apart, and the best of every kind."""

import re
from pathlib import Path

import pytest

import planner.report.report
from decoding.metrics import exposed_draft_s, hidden_draft_s, per_position_acceptance_rate
from planner.report import figures
from planner.report.table import result_rows, time_rows
from planner.report.timeline import TARGET_WORK, pieces
from planner.search.search import search
from planner.search.space import SearchSpace
from tests.planner.synthetic import acceptance_record, machine

SMALL = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())


@pytest.fixture
def plotted(monkeypatch):
    """What a figure plots: its lines by name, and its settings."""

    def of(figure, *asked):
        taken = {}
        monkeypatch.setattr(figures, "xy_plot", lambda series, **settings: taken.update(series=series, **settings))
        figure(*asked)
        return {one.name: one for one in taken.pop("series")}, taken

    return of


def test_pieces_add_up_to_hidden_and_exposed_draft_time(data):
    for result in data.results:
        schedule = result.candidate.schedule
        if schedule.draft_lane is None:
            continue
        if schedule.is_pooled:
            shown = pieces(result.simulated[0], schedule, 10.0)
            assert all(piece.exposed == (piece.span.work not in TARGET_WORK) for piece in shown)
            continue
        for trace in (*result.simulated, *result.measured):
            drafted = [p for p in pieces(trace, schedule, trace.decode_s + 1) if p.span.work not in TARGET_WORK]
            exposed = sum(piece.end_s - piece.start_s for piece in drafted if piece.exposed)
            hidden = sum(piece.end_s - piece.start_s for piece in drafted if not piece.exposed)
            lanes = (schedule.target_lane, schedule.draft_lane)
            assert exposed == pytest.approx(exposed_draft_s([trace], *lanes), abs=1e-9)
            assert hidden == pytest.approx(hidden_draft_s([trace], *lanes), abs=1e-9)


def test_both_worlds_are_shown_over_the_same_seconds(data):
    shown = list(figures.timelines(data))
    assert len(shown) >= 2
    assert [[world for world, _ in worlds] for _, worlds in shown] == [["Simulated", "Measured"]] * len(shown)
    assert len({re.search(r"over ([\d.]+ ms)", svg)[1] for _, worlds in shown for _, svg in worlds}) == 1
    mirror = "".join(svg for _, svg in shown[0][1])
    assert {" hit</text>", " miss</text>", 'class="exposed"'} <= set(
        re.findall(r' (?:hit|miss)</text>|class="exposed"', mirror)
    )


def test_acceptance_shows_both_worlds(data, plotted):
    lines, _ = plotted(figures.acceptance, data.results)
    assert figures.acceptance([]) is None
    assert [one.joined for one in lines.values()] == [True, False] * (len(lines) // 2)
    (alone,) = (line for name, line in lines.items() if name.startswith("draft alone:"))
    rates = [
        per_position_acceptance_rate(one.simulated)
        for one in data.results
        if one.candidate.schedule.num_speculative_tokens == len(alone.points)
    ]
    assert [y / 100 for _, y in alone.points] in [pytest.approx(one) for one in rates]


@pytest.mark.parametrize(
    ("which", "more"), [("data", set()), ("tree_data", {"Medusa", "Hydra", "EAGLE-2", "EAGLE-3", "streaming"})]
)
def test_landscape_has_the_best_of_every_kind_and_window(which, more, request, plotted):
    found = request.getfixturevalue(which).plan.search
    lines, settings = plotted(figures.landscape, found)
    assert set(lines) == more | {f"synchronous {one}" for one in ("split", "pooled")} | {
        f"mirror {one}" for one in ("exit", "draft", "hybrid")
    }
    assert settings["level"] == pytest.approx(1e3 * found.best(kind="plain").tpot_s)
    for source in ("exit", "draft", "hybrid"):
        best = found.best(method="mirror", root_source=source)
        points = lines[f"mirror {source}"].points
        assert [x for x, _ in points] == [1, 2, 3]
        assert min(y for _, y in points) == pytest.approx(best.tpot_s * 1e3)
    stars = [label for line in lines.values() for label in line.labels if label]
    assert stars == [f"\u2605 {1e3 * found.winner.tpot_s:.1f} ms"]


def test_exit_layers_need_two_exits(data):
    cells = figures.exit_layers(data.plan.search)
    assert list(cells) == [15, 20]
    heats = [heat for row in cells.values() for heat in row.values()]
    assert {max(heats).percent, min(heats).percent} == {0.0, 100.0}
    assert min(heats).time_s == min(
        one.tpot_s for one in data.plan.search.candidates if one.schedule.exit_layer is not None
    )
    one_exit = search(SMALL.model_copy(update={"exit_layers": (20,)}), machine(), acceptance_record())
    assert figures.exit_layers(one_exit) == {}


def luminance(colour):
    """Relative luminance (WCAG 2) of `[red, green, blue]` in 0..255."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1])
def test_numbers_in_the_heatmap_are_readable_on_every_colour(theme):
    style = (Path(planner.report.report.__file__).parent / "style.css").read_text().split("prefers-color-scheme: dark")

    def colour(variable):
        digits = re.search(rf"--{variable}: #(\w{{6}})", style[theme]).group(1)
        return [int(digits[place : place + 2], 16) for place in (0, 2, 4)]

    for step in range(11):
        pairs = zip(colour("heat-fast"), colour("heat-slow"), strict=True)
        cell = [one + (other - one) * step / 10 for one, other in pairs]
        darker, lighter = sorted([luminance(cell), luminance(colour("ink"))])
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_ties_lie_on_the_curve_of_the_challenger(data, plotted):
    for sweep in data.plan.sensitivity.sweeps:
        lines, settings = plotted(figures.break_even, sweep)
        assert settings["log_x"] == (sweep.quantity == "draft_speed")
        today = min(times_s[sweep.values.index(sweep.now)] for times_s in sweep.best_tpot_s.values())
        assert lines["today"].points[0][1] == pytest.approx(1e3 * today)
        rings = lines["another becomes the fastest"].points if sweep.ties else []
        assert len(rings) == len(sweep.ties)
        for (_, height), kind in zip(rings, sweep.ties, strict=True):
            times_s = sweep.best_tpot_s[kind]
            assert min(times_s) * 1e3 - 1e-9 <= height <= max(times_s) * 1e3 + 1e-9


def test_stacked_bars_are_as_long_as_the_predicted_time(data):
    rows = time_rows(data)
    slowest = max(max(result.predicted_s, result.measured_s) for result in data.results)
    for row in result_rows(data):
        for mark in (row.predicted_mark, row.measured_mark):
            assert 0 <= mark.low <= mark.at <= mark.high <= 100
    for row, result in zip(rows, data.results, strict=True):
        assert sum(segment.width for segment in row.segments) == pytest.approx(100 * result.predicted_s / slowest)
        assert row.measured == pytest.approx(100 * result.measured_s / slowest)
