from __future__ import annotations

from pathlib import Path

import pytest

from decoding.errors import TrainingError
from training.judging.card import CurvePoint
from training.trainer import CURVE_FILE, add_point, read_curve


def test_points_come_back_in_their_order(tmp_path: Path) -> None:
    assert read_curve(tmp_path) == ()
    add_point(tmp_path, 100, {"agreement": 0.123456})
    add_point(tmp_path, 200, {"agreement": 0.2})
    assert read_curve(tmp_path) == (
        CurvePoint(num_tokens=100, scores={"agreement": 0.1235}),
        CurvePoint(num_tokens=200, scores={"agreement": 0.2}),
    )


def test_a_run_that_resumes_before_its_last_point_writes_it_anew(tmp_path: Path) -> None:
    for num_tokens in (100, 200, 300):
        add_point(tmp_path, num_tokens, {})
    add_point(tmp_path, 200, {"agreement": 0.5})
    assert [point.num_tokens for point in read_curve(tmp_path)] == [100, 200]


def test_a_damaged_curve_is_named(tmp_path: Path) -> None:
    (tmp_path / CURVE_FILE).write_text("[{")
    with pytest.raises(TrainingError, match=r"curve\.json: not a readable training curve"):
        add_point(tmp_path, 100, {})


def test_a_curve_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TrainingError, match="cannot be written"):
        add_point(tmp_path / "file", 100, {})
