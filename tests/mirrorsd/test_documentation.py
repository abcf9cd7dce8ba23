"""What the documentation shows is there; that it works is shown by `tests/journeys`."""

import importlib.util
import re
import subprocess
import sys

import pytest
import yaml

import mirrorsd
from tests.journeys.printed import COMMAND, ROOT, leaves

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_verbs_and_options_that_pages_mention_exist(page):
    text = page.read_text(encoding="utf-8")
    code = " ".join(re.findall(r"`[^`\n]+`", text))
    verbs = set(re.findall(r"mirrorsd (?:train )?([a-z]+)\b", code))
    assert verbs <= set(COMMAND.commands) | set(COMMAND.commands["train"].commands)
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))
    understood = {option for _, command in leaves() for parameter in command.params for option in parameter.opts}
    of_engines = {"--output-format", "--spec-draft-p-min", "--draft-max", "--max-concurrency", "--run-name"} | {
        "--n-cpu-moe",
        "--list-devices",
    }
    assert options <= understood | {"--help", "--install-completion"} | of_engines


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
    missing = [target for target in targets if "://" not in target and not (page.parent / target).exists()]
    assert missing == []


def anchors(page):
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_pages_lead_to_a_heading(page):
    found = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text(encoding="utf-8"))
    assert [(to, name) for to, name in found if name not in anchors(page.parent / to if to else page)] == []


def test_the_page_of_engines_imports_the_files_that_its_benches_write():
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    written = set(re.findall(r" > (\S+)$", text, re.MULTILINE))
    read = {word for line in re.findall(r"^mirrorsd import (.*?) --", text, re.MULTILINE) for word in line.split()}
    assert "target.jsonl" in read <= written


def test_every_page_of_the_site_is_in_its_navigation():
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = [path for entry in config["nav"] for path in entry.values()]
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))


def test_pages_of_the_site_link_to_nothing_outside_of_it():
    for page in (ROOT / "docs").glob("*.md"):
        targets = re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8"))
        assert [target for target in targets if target.startswith("../")] == [], page


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed: pip install '.[docs]'")
def test_the_site_builds(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "site" / "index.html").is_file()


def test_the_readme_is_short_and_every_name_on_the_python_page_public():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 250
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert set(re.findall(r"mirrorsd\.(\w+)", "".join(blocks))) <= set(dir(mirrorsd))
