"""What several tests of the planner look at."""

from dataclasses import replace

import pytest

from planner.paired_ratio import Ratio
from planner.report.report_data import ReportData
from planner.search.space import SearchSpace
from tests.planner.report.synthetic_report import judged_runs, report_data
from tests.planner.synthetic import TREES, acceptance_record, machine

SMALL = SearchSpace(windows=(1, 2, 3), exit_top_k=(4,), draft_top_k=(2,), uneven_roots=(8,), tree_sizes=(4, 8, 16))


@pytest.fixture(scope="session")
def profile():
    return machine()


@pytest.fixture(scope="session")
def record():
    return acceptance_record()


@pytest.fixture(scope="session")
def data() -> ReportData:
    """A whole report of the made-up machine, each schedule run."""
    return report_data(space=SMALL)


@pytest.fixture(scope="session")
def tree_data() -> ReportData:
    """The same with heads and streams; streams are the fastest, heads are close."""
    return report_data(record=acceptance_record(trees=TREES), space=SMALL)


@pytest.fixture(scope="session")
def judged(data: ReportData) -> ReportData:
    """The first report with a verdict after runs, which recommends another schedule than the prediction does."""
    drafting = [one for one in data.results if one.candidate.schedule.num_speculative_tokens]
    other = next(one for one in drafting if one.candidate.schedule != data.plan.search.winner.schedule)
    name = data.names[data.results.index(other)]
    verdict = judged_runs(
        Ratio(value=1.42, num_pairs=6, prompts_error=0.08),
        recommended=name,
        schedule=other.candidate.schedule,
        badges={name: ("recommended", "measured fastest on the same prompts")},
    )
    return replace(data, measured=verdict)
