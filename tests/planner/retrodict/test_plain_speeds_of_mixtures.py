"""Public plain speeds of mixtures of experts, which nothing is fitted to: llama.cpp's come out neither high nor low."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import pytest

from hwprofiles.curves.names import engine_of
from hwprofiles.model_shape import model_shape
from planner.retrodict.cases import Case, load_cases
from planner.retrodict.retrodiction import Retrodicted, retrodict

FOLDER = Path(__file__).parents[3] / "benchmarks"
FILES = ("public-cases", "more-cases", "blind-cases", "blind-cases-more", "blind-cases-third")


def plain_speeds(engine: str, *, mixtures: bool) -> Sequence[Retrodicted]:
    """Return what is predicted of all plain speeds by an engine."""
    told = [case for name in FILES for case in load_cases(FOLDER / f"{name}.yaml") if isinstance(case, Case)]
    found = retrodict([case for case in told if engine_of(case.engine) == engine]).of("plain")
    return [one for one in found if bool(model_shape(one.case.target.shape).num_experts) is mixtures]


@pytest.mark.parametrize(("mixtures", "num", "error"), [(True, 24, 0.25), (False, 109, 0.10)])
def test_plain_speeds_by_llama_cpp_come_out_neither_high_nor_low(mixtures, num, error):
    """Mixtures were half as fast again as measured in the median when their layers had no more kernels than others."""
    found = plain_speeds("llama.cpp", mixtures=mixtures)
    assert len(found) >= num
    assert 0.85 < median(1 + one.error for one in found) < 1.15
    assert median(abs(one.error) for one in found) < error
    assert sum(one.is_held for one in found) >= 0.75 * len(found)
