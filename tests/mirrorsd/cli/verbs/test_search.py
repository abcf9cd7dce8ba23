import json
import re
from types import SimpleNamespace

import pytest
from markupsafe import escape

from decoding.errors import PlanError
from decoding.schedule import load_schedule
from hwprofiles.profile import load_profile, save_profile
from mirrorsd.cli.tables import ranking
from planner.search.search import Candidate, SearchResult
from sim.evaluator import predict
from tests.mirrorsd.cli.calls import call, error_of, json_of
from tests.planner import synthetic
from tests.planner.report.page import undefined_colours
from tests.planner.synthetic import acceptance_record, half_ignorant
from tests.sim.worlds.machines import machine
from tests.sim.worlds.records import prompt, record
from tests.sim.worlds.schedules import speculative

NARROW = "windows: [1, 2, 4]\nexit_top_k: [4]\ndraft_top_k: [2]\nuneven_roots: [8]\n"


@pytest.fixture
def words(profile_path, record_path, tmp_path):
    """A search in the space of this text."""

    def of(space=NARROW, record=record_path):
        (tmp_path / "space.yaml").write_text(space)
        return ("search", "--profile", profile_path, "--record", record, "--space", tmp_path / "space.yaml")

    return of


def test_the_fastest_schedule_is_written_and_shown_first(words, tmp_path):
    out = tmp_path / "best.yaml"
    shown = call(*words(), "--out", out, "--top", 1, "--json", tmp_path / "found.json").shown
    found = json.loads((tmp_path / "found.json").read_text())
    times = [one["predicted"]["tpot_s"] for one in found["candidates"]]
    assert times == sorted(times)
    assert len({one["name"] for one in found["candidates"]}) == len(times)
    assert found["winner"] == found["candidates"][0]
    assert load_schedule(out).model_dump(mode="json", exclude_defaults=True) == found["winner"]["schedule"]
    assert found["winner"]["name"].split(",")[0] in shown
    assert found["verdict"].splitlines()[0] in shown


@pytest.mark.parametrize("methods", ["[autoregressive, speculative, mirror]", "[autoregressive]"])
def test_a_page_shows_the_answer_with_pictures_and_fetches_nothing(words, tmp_path, methods):
    page = tmp_path / "page.html"
    space = f"methods: {methods}\nwindows: [2]\nexit_top_k: [4]\ndraft_top_k: [2]\nuneven_roots: []\n"
    found = json_of(*words(space), "--html", page)
    text = page.read_text()
    assert all(str(escape(line)) in text for line in found["verdict"].splitlines())
    assert text.count("<svg") == text.count("</svg>") == 2 + 2 * (methods != "[autoregressive]")
    assert len(text) < 100_000
    assert "http" not in text
    assert undefined_colours(text) == set()
    assert f"of {len(found['candidates'])} schedules" in text


def test_what_the_verdict_recommends_is_written_whatever_the_choosing_half_says(words, profile_path, tmp_path):
    accepted, out = tmp_path / "halves.npz", tmp_path / "best.yaml"
    half_ignorant("judging").save(accepted)
    save_profile(synthetic.machine(pooled_speed=1.4), profile_path)
    asked, page = words(f"exit_features: [false]\n{NARROW}", accepted), tmp_path / "page.html"
    found = json_of(*asked, "--out", out, "--html", page)
    assert found["pays"] == "no"
    assert load_schedule(out).method == found["winner"]["method"] == "autoregressive"
    assert "Two rounds of" not in page.read_text(), "of what drafts, and is not recommended"
    assert f"{found['winner']['name']}*" in call(*asked, "--top", 1).stdout


def test_what_is_left_out_is_counted_by_reason(words, tmp_path):
    asked = words("windows: [1, 12, 13, 14]\nexit_top_k: [4]\ndraft_top_k: [2]\nuneven_roots: []\n")
    shown = call(*asked, "--explain", "--json", tmp_path / "found.json").stdout
    left_out = json.loads((tmp_path / "found.json").read_text())["left_out"]
    counts = re.findall(r"^(\d+) left out: ", shown, re.MULTILINE)
    assert list(map(int, counts)) == sorted(left_out.values(), reverse=True)[:5]
    assert f"{sum(left_out.values())} schedules could not be predicted" in call(*asked).stdout


def test_a_malformed_space_is_named_with_line_and_value(words):
    assert re.search(r"space.yaml:1:11: windows.0: .* found 0", error_of(*words("windows: [0]")))


def test_the_answer_is_about_prompts_that_nothing_was_chosen_on(words, tmp_path):
    acceptance_record(num_prompts=8, num_tokens=40).save(tmp_path / "eight.npz")
    shown = call(*words(record=tmp_path / "eight.npz"), "--explain", "--json", tmp_path / "found.json").shown
    found = json.loads((tmp_path / "found.json").read_text())
    prompts = found["prompts"]
    assert sorted(prompts["chosen"] + prompts["judged"]) == prompts["ranked"]
    assert len(prompts["chosen"]) == len(prompts["judged"]) == 4
    assert found["pays"] == {"faster": "yes", "slower": "no", "cannot tell": "cannot_tell"}[found["speedup"]["outcome"]]
    assert found["speedup"]["low"] < found["speedup"]["value"] < found["speedup"]["high"]
    assert found["lead"]["low"] < found["lead"]["value"] < found["lead"]["high"]
    names = {one["name"] for one in found["candidates"]}
    assert {found[ratio][side] for ratio in ("speedup", "lead") for side in ("of", "over")} <= names
    assert (found["lead"]["of"], found["lead"]["over"] != found["lead"]["of"]) == (found["winner"]["name"], True)
    assert {one["of"] for one in found["break_evens"]} <= {"the draft model's tokens", "drafting"}
    [plain] = [one for one in found["break_evens"] if (one["kind"], one["quantity"]) == ("plain", "acceptance")]
    assert 0 < plain["low"] <= plain["at"] <= plain["high"] < plain["now"]
    assert "predicted on 4 held-out prompts." in shown


def test_acceptance_may_be_assumed(profile_path, tmp_path):
    space = tmp_path / "space.yaml"
    space.write_text("windows: [2, 4]\nexit_top_k: [2]\ndraft_top_k: [2]\n")
    words = ("search", "--profile", profile_path, "--acceptance", "0.8,0.8,0.7", "--space", space)
    found = json_of(*words)
    assert "Acceptance is assumed, not recorded: 0.8, 0.8, 0.7 by position." in found["warnings"][0]
    reasons = "\n".join(found["left_out"])
    for missing in (
        "exit_layer 15 are not assumed (`exit_coverage` of a YAML file)",
        "alternative_rates",
        "more than 3 tokens are not",
    ):
        assert missing in reasons


def test_a_page_of_assumed_acceptance_names_the_models_of_the_profile(profile_path, tmp_path):
    page, machine = tmp_path / "page.html", load_profile(profile_path)
    call("search", "--profile", profile_path, "--acceptance", "0.8,0.7", "--html", page, exit_code=0)
    assert f"{machine.target} with {machine.drafter} on" in page.read_text()
    assert "assumed with" not in page.read_text()


def test_a_record_or_assumed_acceptance_is_needed_and_not_both(profile_path, record_path):
    for words in ((), ("--record", record_path, "--acceptance", "0.8")):
        said = error_of("search", "--profile", profile_path, *words)
        assert "give either a --record or the rates to assume (--acceptance)" in said
    said = error_of("search", "--profile", profile_path, "--acceptance", record_path)
    assert said.endswith("is a record; give it with --record")


def test_the_recommended_schedule_is_in_the_table_with_a_star_where_another_is_faster_on_all_prompts():
    texts, lengths = record(prompt("1010111")), (1, 2, 3)
    first, second, chosen = (
        Candidate(one, "split", predict(one, machine(), texts)) for one in map(speculative, lengths)
    )

    def plan_of(*candidates, recommended):
        return SimpleNamespace(search=SearchResult(candidates=candidates), recommended=recommended)

    shown = ranking(plan_of(first, second, chosen, recommended=chosen), 1)
    assert list(shown.columns[0].cells) == ["synchronous, 1 drafted, split", "synchronous, 3 drafted, split*"]
    assert "*: " in shown.title
    alike = ranking(plan_of(first, chosen, recommended=first), 2)
    assert not any("*" in text for text in (alike.title, *alike.columns[0].cells))


def test_what_would_change_the_answer_is_sought_where_it_is_shown_alone(words, monkeypatch):
    """It takes most of a search's time."""

    def sought(*_args, **_more):
        raise PlanError("sought")

    monkeypatch.setattr("planner.plan.analyse", sought)
    assert "speculation" in call(*words(), exit_code=0).stdout
    assert "sought" in error_of(*words(), "--explain")
    assert "sought" in error_of(*words(), "--json")


def test_where_the_answer_is_open_the_command_is_for_the_time_until_it_is_known(words, tmp_path):
    acceptance_record(num_prompts=1, num_tokens=40).save(tmp_path / "one.npz")
    found = call(*words(record=tmp_path / "one.npz"), "--out", tmp_path / "best.yaml")
    assert "more than one prompt would decide; until then use " in found.shown
    assert "\nUntil then: mirrorsd run --schedule " in found.stderr
    assert "Next: mirrorsd" not in found.stderr
