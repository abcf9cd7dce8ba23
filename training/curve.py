"""The training curve: held-out figures by tokens seen, in a file next to the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from decoding.errors import TrainingError
from decoding.files import replace_file

CURVE_FILE = "curve.json"


class CurvePoint(BaseModel):
    """Figures on held-out answers after so many answer tokens, repeats included."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    num_tokens: int
    scores: dict[str, float]


_CURVE = TypeAdapter(tuple[CurvePoint, ...])


def read_curve(folder: Path) -> tuple[CurvePoint, ...]:
    """The curve of a run; nothing where none was written.

    Raises:
        TrainingError: the file is damaged.
    """
    path = folder / CURVE_FILE
    if not path.is_file():
        return ()
    try:
        return _CURVE.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        msg = f"{path}: not a readable training curve ({error}); delete it to go on without what it held"
        raise TrainingError(msg) from error


def add_point(folder: Path, num_tokens: int, scores: Mapping[str, float]) -> None:
    """Write one point; later points, which the last checkpoint did not keep, are dropped.

    Raises:
        TrainingError: the file is damaged, or cannot be written.
    """
    earlier = [point for point in read_curve(folder) if point.num_tokens < num_tokens]
    point = CurvePoint(num_tokens=num_tokens, scores={name: round(value, 4) for name, value in scores.items()})
    path = folder / CURVE_FILE
    try:
        replace_file(path, _CURVE.dump_json((*earlier, point), indent=1))
    except OSError as error:
        msg = f"{path}: cannot be written ({error})"
        raise TrainingError(msg) from error
