"""Figures show the traces: hidden and exposed work apart, hits and misses marked, labels legible."""

import re
from pathlib import Path

import numpy as np
import pytest

import planner.report.report
from decoding.metrics import exposed_draft_s, hidden_draft_s, per_position_acceptance_rate
from planner.pictures.rounds_picture import TARGET_WORK, pieces, rounds_picture
from planner.report.figures import (
    acceptance,
    break_even_figure,
    common_end_s,
    exit_layers,
    landscape,
    longest_windows,
    timelines,
)
from planner.report.table import result_rows, time_rows
from planner.search.search import search
from planner.search.space import SearchSpace
from planner.wording import milliseconds
from tests.planner.synthetic import TREES, acceptance_record, machine

SMALL = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=())


@pytest.fixture(scope="module")
def mirror(data):
    return data.fastest("mirror")


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


def test_both_worlds_share_one_time_axis(data):
    drawn = list(timelines(data.results))
    assert [name for name, _ in drawn[0].worlds] == ["Simulated", "Measured"]
    pictures = [picture for one in drawn for _, picture in one.worlds]
    ends = {re.search(r">(\S+ ms)</text>", picture)[1] for picture in pictures}
    assert ends == {milliseconds(common_end_s(data.results))}
    assert len({re.search(r'class="title" x="(\d+)"', picture)[1] for picture in pictures}) == 1
    bars = [bar for picture in pictures for bar in re.findall(r'<rect x="([\d.]+)".*? width="([\d.]+)"', picture)]
    assert max(float(x) + float(width) for x, width in bars) <= 628.7
    assert any("exposed" in picture for picture in pictures)


def test_hits_and_misses_stand_in_their_rounds(mirror):
    trace = mirror.simulated[0]
    picture = rounds_picture(trace, mirror.candidate.schedule, end_s=trace.decode_s)
    shown = re.findall(r'>\+(\d+) <tspan class="(good|bad)">', picture)
    words = {True: "good", False: "bad"}
    assert shown == [(str(one.num_committed), words[one.hit]) for one in trace.rounds if one.hit is not None]
    ends = [float(x) for x in re.findall(r'<line class="grid" x1="([\d.]+)"', picture)]
    left = float(re.search(r'class="title" x="(\d+)"', picture)[1])
    assert ends == pytest.approx([left + one.end_s / trace.decode_s * (628 - left) for one in trace.rounds], abs=0.1)


def lines_of(picture):
    """The points of every line, by its name, as people read them who rest on a marker."""
    found = {}
    for name, x, y in re.findall(r"<title>([^<]*): ([\d.]+), ([\d.]+)</title>", picture):
        found.setdefault(name, []).append((float(x), float(y)))
    return found


def test_acceptance_shows_both_worlds(data):
    assert acceptance([]) is None
    [first, *_] = chosen = longest_windows(data.results)
    lines = lines_of(acceptance(chosen))
    assert len(lines) == len(chosen) + 1, "measured ones have no name"
    unnamed = "Share of rounds that accept each drafted position"
    for traces, name in ((first.simulated, next(iter(lines))), (first.measured, unnamed)):
        rates = [100 * rate for rate in per_position_acceptance_rate(traces)]
        assert [y for _, y in lines[name]][: len(rates)] == pytest.approx(rates, rel=1e-3)


def test_landscape_has_the_best_of_every_kind_and_window(data):
    search = data.plan.search
    lines = lines_of(landscape(search))
    star = f"the fastest, {search.winner.tpot_s * 1e3:.1f} ms"
    kinds = {"synchronous split", "synchronous pooled", "mirror exit", "mirror draft", "mirror hybrid"}
    assert set(lines) == kinds | {star}
    assert lines[star] == [(search.winner.schedule.num_rows - 1, pytest.approx(search.winner.tpot_s * 1e3, rel=1e-3))]
    for source in ("exit", "draft", "hybrid"):
        best = search.best(method="mirror", root_source=source)
        line = dict(lines[f"mirror {source}"])
        assert list(line) == [1, 2, 3]
        assert min(line.values()) == pytest.approx(best.tpot_s * 1e3, rel=1e-3)


def test_trees_have_a_line_each_over_the_number_of_nodes(tree_data):
    picture = landscape(tree_data.plan.search)
    lines = lines_of(picture)
    assert {"Medusa", "Hydra", "EAGLE-2", "EAGLE-3", "streaming"} < set(lines)
    assert [x for x, _ in lines["EAGLE-3"]] == [4, 8, 16]
    legend = re.findall(r'class="sign"[^>]*>(.)</text></g><text[^>]*>([^<]*)</text>', picture)
    assert [name for _, name in legend] == list(lines)
    assert len({sign for sign, _ in legend}) == len(lines), "every line has a marker of its own"
    assert "drafted tokens per round<" in picture
    assert "drafted tokens per round, logarithmic<" in landscape_of_wide_trees()


def landscape_of_wide_trees():
    """Trees much wider than chains, which are drawn by ratio."""
    space = SMALL.model_copy(update={"tree_sizes": (4, 32)})
    return landscape(search(space, machine(), acceptance_record(trees=TREES)))


def test_exit_layers_need_two_exits(data):
    found = exit_layers(data.plan.search)
    assert [layer for layer, _ in found.rows] == [15, 20]
    best = min(time for _, times in found.rows for time in times)
    assert found.ends[0] == best == data.plan.search.best(method="mirror", root_source="exit").tpot_s * 1e3
    assert [found.slow_percent(time) for time in found.ends] == pytest.approx([0, 100])
    one_exit = search(SMALL.model_copy(update={"exit_layers": (20,)}), machine(), acceptance_record())
    assert exit_layers(one_exit) is None


def luminance(colour):
    """Relative luminance (WCAG 2) of `[red, green, blue]` in 0..255."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (part / 255 for part in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_numbers_in_the_heatmap_are_readable_on_every_colour(theme):
    style = (Path(planner.report.report.__file__).parent / "style.css").read_text().split("prefers-color-scheme: dark")

    def colour(variable):
        digits = re.search(rf"{variable.removeprefix('var(').removesuffix(')')}: #(\w{{6}})", style[theme]).group(1)
        return [int(digits[place : place + 2], 16) for place in (0, 2, 4)]

    text, fast, slow = "var(--ink)", "var(--heat-fast)", "var(--heat-slow)"
    for step in range(11):
        cell = [one + (other - one) * step / 10 for one, other in zip(colour(fast), colour(slow), strict=True)]
        assert contrast(cell, colour(text)) >= 4.5


def test_ties_lie_on_the_curve_of_the_challenger(data):
    for sweep in data.plan.sensitivity.sweeps:
        picture = break_even_figure(sweep)
        assert ("logarithmic" in picture) == (sweep.quantity != "acceptance")
        lines, ties = lines_of(picture), [kind for kind, at in sweep.ties.items() if at is not None]
        rings = lines.get(re.search('aria-label="([^"]*)"', picture)[1], [])
        assert len(rings) == len(ties)
        for (at, height), kind in zip(rings, ties, strict=True):
            assert height == pytest.approx(np.interp(at, *zip(*lines[kind], strict=True)), rel=0.01)


def test_stacked_bars_are_as_long_as_the_predicted_time(data):
    rows = time_rows(data)
    slowest = max(max(result.predicted_s, result.measured_s) for result in data.results)
    for row in result_rows(data):
        for mark in (row.predicted_mark, row.measured_mark):
            assert 0 <= mark.low <= mark.at <= mark.high <= 100
    for row, result in zip(rows, data.results, strict=True):
        assert sum(segment.width for segment in row.segments) == pytest.approx(100 * result.predicted_s / slowest)
        assert row.measured == pytest.approx(100 * result.measured_s / slowest)
