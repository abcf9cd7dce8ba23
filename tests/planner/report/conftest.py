"""The report that several tests look at."""

import pytest

from planner.report.report import render_report
from tests.planner.report.page import Page


@pytest.fixture(scope="session")
def html(data):
    return render_report(data)


@pytest.fixture(scope="session")
def page(html):
    return Page(html)
