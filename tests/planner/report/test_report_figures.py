"""Figures show the traces: hidden and exposed work apart, hits and misses marked, labels legible."""

import re
from dataclasses import replace

import numpy as np
import pytest

from decoding.metrics import per_position_acceptance_rate
from decoding.schedule import Schedule
from planner.report.curves import acceptance, landscape, longest_windows, sweep_picture
from planner.report.table import bars_end_s, exit_layers, marks_end_s, result_rows
from planner.report.timeline import KEY, TARGET_WORK, common_end_s, pieces, timeline
from planner.search.search import search
from planner.search.space import SearchSpace
from planner.what_if.sensitivity import BreakEven
from planner.wording import in_ms, milliseconds, percent
from tests.planner.synthetic import TREES, acceptance_record, machine
from tests.sim.playing import together_s

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
            assert hidden == pytest.approx(together_s([trace], *lanes), abs=1e-9)
            assert hidden + exposed == pytest.approx(together_s([trace], schedule.draft_lane), abs=1e-9)


def test_both_worlds_share_one_time_axis(data, mirror):
    end_s = common_end_s(data.results)
    figure = timeline(mirror, "t", end_s)
    assert figure.layout["xaxis"]["range"] == [0, end_s * 1e3]
    schedule = mirror.candidate.schedule
    lanes = [f"target<br>on {schedule.target_lane}", f"draft<br>on {schedule.draft_lane}"]
    assert figure.layout["yaxis"]["ticktext"] == lanes * 2
    bars = [trace for trace in figure.data if trace["type"] == "bar"]
    assert (
        max(base + length for bar in bars for base, length in zip(bar["base"], bar["x"], strict=True))
        <= end_s * 1e3 + 1e-6
    )
    assert {bar["marker"]["color"] for bar in bars} <= {key.colour for key in KEY.values()}
    assert any("pattern" in bar["marker"] for bar in bars)


def test_hits_and_misses_stand_at_the_ends_of_their_rounds(data, mirror):
    end_s = mirror.simulated[0].decode_s
    marks = [trace for trace in timeline(mirror, "t", end_s).data if trace.get("mode") == "markers"]
    for hit, text in ((True, "hit"), (False, "miss")):
        expected = [entry.end_s * 1e3 for entry in mirror.simulated[0].rounds if entry.hit is hit]
        assert any(mark["x"] == pytest.approx(expected) for mark in marks if mark["hovertext"] == text)


def places(svg, radius):
    return [(float(x), float(y)) for x, y in re.findall(rf'<circle cx="([\d.]+)" cy="([\d.]+)" r="{radius}"', svg)]


def test_what_is_found_in_the_text_is_not_called_the_drafts(data):
    draft = next(one for one in longest_windows(data.results) if not one.candidate.schedule.is_tree)
    chain = Schedule(method="prompt_lookup", target_lane="both", draft_lane="both", num_speculative_tokens=4)
    lookup = replace(draft, candidate=replace(draft.candidate, schedule=chain))
    assert lookup in longest_windows([draft, lookup])
    assert "prompt lookup: " in acceptance([lookup])


def test_acceptance_shows_both_worlds(data):
    assert acceptance([]) is None
    chosen = longest_windows(data.results)
    picture = acceptance(chosen)
    replayed, counted = (
        [100 * rate for one in chosen for rate in per_position_acceptance_rate(traces(one))]
        for traces in (lambda one: one.simulated, lambda one: one.measured)
    )
    for radius, rates in ((3, replayed), (5, counted)):
        heights = [y for _, y in places(picture, radius)][: len(rates)]
        by_rate = [height for _, height in sorted(zip(rates, heights, strict=True))]
        assert by_rate == sorted(by_rate, reverse=True)
    for result in chosen:
        length = result.candidate.prediction.mean_acceptance_length
        assert f"{length:.2f} tokens per round with {result.candidate.schedule.num_rows - 1} drafted" in picture


def best_by_line(picture):
    """The names of a picture's lines, each with its points as (x, y)."""
    names = re.findall(r"/></g><text [^>]*>([^<]*)</text>", picture)
    lines = [re.findall(r"<title>([\d.e+]+): ([\d.e+]+)</title>", one) for one in re.findall(r"<g .*?</g>", picture)]
    told = [[(float(x), float(y)) for x, y in line] for line in lines if line]
    return dict(zip(names, told, strict=True))


def test_landscape_has_the_best_of_every_kind_and_window(data):
    lines = best_by_line(landscape(data.plan.search, data.plan.recommended))
    winner = data.plan.search.winner
    plain, chosen = lines.pop("plain decoding"), lines.pop(f"chosen: {milliseconds(winner.tpot_s)}")
    assert set(lines) == {"synchronous split", "synchronous pooled", "mirror exit", "mirror draft", "mirror hybrid"}
    for source in ("exit", "draft", "hybrid"):
        best = data.plan.search.best(method="mirror", root_source=source)
        line = dict(lines[f"mirror {source}"])
        assert set(line) == {1, 2, 3}
        assert min(line.values()) == pytest.approx(best.tpot_s * 1e3, rel=0.01)
    assert [y for _, y in plain] == pytest.approx([data.plan.search.best(kind="plain").tpot_s * 1e3] * 2, rel=0.01)
    assert chosen == [(winner.schedule.num_speculative_tokens, pytest.approx(winner.tpot_s * 1e3, rel=0.01))]


def test_trees_have_a_line_each_over_the_number_of_nodes(tree_data):
    picture = landscape(tree_data.plan.search, tree_data.plan.recommended)
    lines = best_by_line(picture)
    assert {"Medusa", "Hydra", "EAGLE-2", "EAGLE-3", "streaming"} < set(lines)
    strokes = re.findall(r'color: var\((--\w+)\)"><polyline points="[^"]*?"( stroke-dasharray="[^"]*")?', picture)
    assert len(set(strokes)) == len(lines) - 1  # all but the point of what was chosen
    assert [x for x, _ in lines["EAGLE-3"]] == [4, 8, 16]
    best = tree_data.plan.search.best(method="eagle3")
    assert min(y for _, y in lines["EAGLE-3"]) == pytest.approx(best.tpot_s * 1e3, rel=0.01)


def test_trees_much_wider_than_chains_are_drawn_by_ratio(tree_data):
    wide = SMALL.model_copy(update={"tree_sizes": (4, 32)})
    found = search(wide, machine(), acceptance_record(trees=TREES))
    picture = landscape(found, found.winner)
    assert "(logarithmic)" in picture
    assert re.findall(r'text-anchor="middle">(\d+)</text>', picture) == ["1", "2", "3", "4", "10", "32"]
    assert "logarithmic" not in landscape(tree_data.plan.search, tree_data.plan.recommended)


def test_exit_layers_have_the_best_of_each_and_need_two_exits(data):
    heading, *rows = exit_layers(data.plan.search)
    assert heading == ("exit after", "1 drafted", "2 drafted", "3 drafted")
    assert [row[0] for row in rows] == ["layer 15", "layer 20"]
    best = data.plan.search.best(method="mirror", root_source="exit")
    hybrid = data.plan.search.best(method="mirror", root_source="hybrid")
    assert min(float(cell) for row in rows for cell in row[1:]) == float(in_ms(min(best.tpot_s, hybrid.tpot_s)))
    one_exit = search(SMALL.model_copy(update={"exit_layers": (20,)}), machine(), acceptance_record())
    assert exit_layers(one_exit) == []


def test_the_picture_of_a_sweep_marks_today_and_every_tie(data):
    for sweep in data.plan.sensitivity.sweeps:
        picture = sweep_picture(sweep, "the draft model's tokens")
        assert ("logarithmic" in picture) == (sweep.quantity != "acceptance")
        ties = [one.at for one in sweep.break_evens.values()]
        marks, points = places(picture, 5)[: 1 + len(ties)], places(picture, 3)
        lines = [points[place : place + len(sweep.values)] for place in range(0, len(points), len(sweep.values))]
        assert picture.count(">today<") == 1
        scale = np.log if sweep.quantity == "draft_speed" else np.array
        expected = np.interp(scale([sweep.now, *ties]), scale(sweep.values), [x for x, _ in lines[0]])
        assert [x for x, _ in marks] == pytest.approx(expected, abs=0.1)
        for x, y in marks:
            lowest = max(np.interp(x, *zip(*line, strict=True)) for line in lines)
            assert y == pytest.approx(lowest, abs=0.1), "where the fastest is, whoever that may be"


def test_ties_that_round_to_one_number_have_a_mark_each(data):
    (sweep,) = (one for one in data.plan.sensitivity.sweeps if one.quantity == "acceptance")
    lookup, synchronous = list(sweep.best_tpot_s)[:2]
    ends = {lookup: BreakEven(0.621, 0.6, 0.64), synchronous: BreakEven(0.624, 0.6, 0.64)}
    picture = sweep_picture(replace(sweep, break_evens=ends), "the draft model's tokens")
    assert picture.count(f">{percent(0.62)}<") == 2
    assert len(places(picture, 5)) >= 3


def test_stacked_bars_are_as_long_as_the_predicted_time_and_no_mark_is_beyond_the_scale(data):
    for row, result in zip(result_rows(data), data.results, strict=True):
        assert sum(time_s for _, _, time_s in row.parts) == pytest.approx(result.predicted_s)
        assert max(result.predicted_s, result.measured_s) <= bars_end_s(data) < marks_end_s(data)
        assert result.candidate.prediction.tpot_s_high < marks_end_s(data)
