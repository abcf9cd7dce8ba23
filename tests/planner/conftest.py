"""What several tests of the planner look at."""

import pytest

from planner.report_data import ReportData
from planner.space import SearchSpace
from tests.planner.synthetic_report import report_data


@pytest.fixture(scope="session")
def data() -> ReportData:
    """A whole report of the made-up machine, each schedule run three times."""
    space = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=(8,))
    return report_data(space=space)
