"""The page is sound, fetches nothing, suits every screen, and lets no user's text become markup."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from planner.report import report
from planner.report.report import render_report
from tests.planner.conftest import SMALL
from tests.planner.report.page import Page, undefined_colours
from tests.planner.report.synthetic_report import report_data
from tests.planner.synthetic import acceptance_record, machine


def test_elements_are_closed_in_order_and_ids_are_unique(page, html):
    assert page.open == []
    assert html.count("plotly.js v") == 1
    assert len(set(page.ids)) == len(page.ids)


def test_nothing_is_fetched(page, html):
    assert page.links == []
    own = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert "http" not in own.replace("http-equiv", "")
    assert "url(" not in own
    assert "@import" not in own
    assert "default-src 'none'" in own


def test_the_same_data_gives_the_same_page(data, html):
    assert render_report(data) == html


def test_figures_that_can_be_explored_are_drawn_from_json_and_others_are_pictures(page, html):
    assert set(page.figures) == {"timeline-0", "timeline-1"}
    assert html.count("<svg viewBox") == 4
    assert {f"figure-{name}" for name in page.figures} <= set(page.ids)


@pytest.mark.parametrize("which", ["data", "tree_data"])
def test_plotly_understands_every_figure(which, request):
    from plotly.graph_objects import Figure

    page = Page(render_report(request.getfixturevalue(which)))
    for figure in page.figures.values():
        plain = json.loads(re.sub(r"var\(--[\w-]+\)", "#123456", json.dumps(figure)))
        assert Figure(plain).data


def test_every_colour_is_in_the_style_sheet_for_light_and_dark(html):
    assert undefined_colours(html) == set()
    assert undefined_colours(html.replace("--soft:", "--other:")) == {"--soft"}


def test_what_may_be_wider_than_a_phone_scrolls_in_its_own_box(html):
    body = html.split("<main>")[1]
    for wide in re.finditer(r'<table|class="figure"', body):
        assert '<div class="scroll">' in body[wide.start() - 60 : wide.start()]
    style = re.search(r"<style>(.*?)</style>", html, flags=re.DOTALL).group(1)
    fixed = [int(width) for width in re.findall(r"(?<![\w-])(?:min-)?width: (\d+)px", style)]
    assert max(fixed) <= 180


def test_user_text_stays_text():
    nasty = "<script>alert(1)</script>"
    profile = machine().model_copy(
        update={
            "target": nasty,
            "drafter": f"{nasty}&",
            "host": {nasty: nasty},
            "lanes": tuple(
                lane.model_copy(update={"device": nasty, "name": f"<b>{lane.name}</b>"}) for lane in machine().lanes
            ),
            "links": (),
            "contention": (),
        }
    )
    record = acceptance_record(num_prompts=3)
    record = replace(record, prompts=(replace(record.prompts[0], name=f"</script>{nasty}"), *record.prompts[1:]))
    made = report_data(profile, record, space=SMALL)
    made = replace(made, title=nasty, created=nasty, footnotes=(nasty,))
    html = render_report(made)
    assert "<script>alert" not in html
    assert Page(html).text.count("alert(1)") >= 6
    names = Page(html).figures["timeline-0"]["layout"]["yaxis"]["ticktext"]
    assert any("&lt;b&gt;target&lt;/b&gt;" in name for name in names)


def test_styles_of_our_own_pictures_leave_those_of_plotly_alone():
    style = (Path(report.__file__).with_name("style.css")).read_text(encoding="utf-8")
    selectors = [rule.split("{")[0] for rule in style.split("}")]
    assert [one.strip() for one in selectors if "svg" in one and "figure > svg" not in one] == []
