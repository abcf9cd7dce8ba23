"""Pages show the committed results and nothing else between their markers."""

from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks.scripts import ROOT, load_script

script = load_script("pages")


@pytest.mark.parametrize("name", [*script.SECTIONS, script.PICTURE])
def test_a_page_shows_the_committed_results(name):
    assert script.content(name) == (ROOT / name).read_text(encoding="utf-8")


def test_only_what_lies_between_the_markers_changes():
    begin, end = "<!-- mine: written by benchmarks/pages.py -->", "<!-- end of mine -->"
    page = f"before\n{begin}\nold\n{end}\nafter\n"
    assert script._common.with_section(page, "mine", "new\n") == f"before\n{begin}\nnew\n{end}\nafter\n"


def test_the_picture_has_two_bars_for_every_schedule_and_escapes_names():
    worlds = {"predicted": {"tpot_s": 0.01}, "measured": {"tpot_s": 0.02}}
    schedules = [{"name": name, "method": "autoregressive"} | worlds for name in ("a & b", "c")]
    platform = {"target": "big", "cores": [0], "cpu_model": "Some CPU"}
    drawn = ET.fromstring(script._picture.svg({"platform": platform, "num_prompts": 3, "schedules": schedules}))
    bars = [one for one in drawn.iter("{http://www.w3.org/2000/svg}rect") if one.get("height") == "9"]
    widths = [float(bar.get("width")) for bar in bars]
    assert len(widths) == 4
    assert widths[1] == pytest.approx(2 * widths[0], abs=0.2)
