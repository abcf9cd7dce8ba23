import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from decoding.errors import ConfigError, ModelError, ModelFormatError
from decoding.methods import METHODS
from decoding.schedule import Schedule
from hwprofiles.model_shape import model_shape, shipped_models
from mirrorsd.model_pair import NO_DRAFTER, find_pair, find_scheduled_pair, is_shipped_shape, shipped_shape_folder
from runtime.memory.model_bytes import num_parameters
from runtime.models.config import ModelConfig
from runtime.models.model_folder import has_random_weights


def test_what_is_named_is_found_and_paths_become_lasting(tiny_folders, head_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders.target.parent)
    pair = find_pair("target", drafter="drafter", exits="exits", dtype="float32", heads=["streams", "medusa"])
    assert [head.name for head in pair.heads] == [str(head_folders["streams"]), str(head_folders["medusa"])]
    assert (pair.target, pair.dtype) == (str(tiny_folders.target.absolute()), "float32")
    assert (pair.drafter.name, pair.exits.name) == (str(tiny_folders.drafter), str(tiny_folders.exits))
    assert pair.drafter.folder.samefile(tiny_folders.drafter)
    assert find_pair("target", heads="medusa").heads == pair.heads[1:]


@pytest.mark.parametrize("typed", ["./owner/model", "owner/model", "owner/../owner/model/", "a-link"])
def test_a_targets_folder_is_called_by_a_path_that_means_the_same_from_everywhere(
    tiny_folders, tmp_path, monkeypatch, typed
):
    (tmp_path / "owner").mkdir()
    (tmp_path / "owner" / "model").symlink_to(tiny_folders.target)
    (tmp_path / "a-link").symlink_to(tiny_folders.target)
    monkeypatch.chdir(tmp_path)
    name = find_pair(typed).target
    monkeypatch.chdir("/")
    assert find_pair(name).target_folder.samefile(tiny_folders.target)


def test_the_folder_of_a_training_run_leads_to_its_drafter(tiny_folders, tmp_path, monkeypatch):
    (tmp_path / "my-draft").mkdir()
    (tmp_path / "my-draft" / "drafter").symlink_to(tiny_folders.drafter)
    monkeypatch.chdir(tmp_path)
    pair = find_pair(tiny_folders.target, drafter="my-draft")
    assert pair.drafter == (str(tiny_folders.drafter), Path("my-draft/drafter"))


def test_a_target_without_shipped_drafters_has_prompt_lookup_which_any_target_has(tiny_folders):
    pair = find_pair(str(tiny_folders.target))
    assert (pair.drafter, pair.exits, pair.head_methods) == (None, None, {"prompt-lookup": "prompt_lookup"})


def test_any_model_may_be_the_draft(tiny_folders, monkeypatch):
    monkeypatch.chdir(tiny_folders.target.parent)
    assert find_pair("target", drafter="target").drafter == (str(tiny_folders.target.resolve()), Path("target"))
    monkeypatch.delenv("MIRRORSD_CACHE")
    name = "smollm2-135m-instruct"
    assert find_pair(name, drafter=name).drafter.name == name


@pytest.mark.parametrize(
    ("target", "draft"), [("owner/target", "owner/draft"), ("", "owner/draft"), ("owner/target", "")]
)
def test_a_draft_with_another_tokenizer_is_refused_before_weights_are_fetched(
    tiny_folders, tmp_path, monkeypatch, target, draft
):
    """Loading both would show it too: of 7 billion weights that is after minutes."""
    folders, asked = {"owner/target": tiny_folders.target, "owner/draft": tmp_path / "draft"}, []
    shutil.copytree(tiny_folders.target, tmp_path / "draft")
    path = tmp_path / "draft" / "tokenizer.json"
    path.write_text(path.read_text().replace('"w7"', '"v7"'))

    def snapshot_download(hub_id, *, allow_patterns, **_):
        asked.append((hub_id, "*.safetensors" in allow_patterns))
        return str(folders[hub_id])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ModelError, match="their tokenizers differ, first at id 7, which is 'v7' for the draft"):
        find_pair(target or tiny_folders.target, drafter=draft or tmp_path / "draft")
    assert asked == [(name, False) for name in (target, draft) if name]
    path.write_text((tiny_folders.target / "tokenizer.json").read_text())
    find_pair(target or tiny_folders.target, drafter=draft or tmp_path / "draft")
    assert {name for name, has_weights in asked if has_weights} == {target, draft} - {""}


def test_what_ships_for_a_target_is_taken_without_being_named(tiny_folders, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.drafters.registry.SHIPPED_FOLDER", tmp_path)
    ship(tmp_path, "one-draft", tiny_folders.drafter, tiny_folders.target.name)
    ship(tmp_path, "one-exits", tiny_folders.exits, tiny_folders.target.name)
    pair = find_pair(str(tiny_folders.target))
    assert pair.drafter == ("one-draft", tmp_path / "one-draft")
    assert pair.exits == ("one-exits", tmp_path / "one-exits")
    assert find_pair(tiny_folders.target, drafter="none").drafter is None


def ship(root, name, source, target):
    folder = root / name
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = target
    (folder / "config.json").write_text(json.dumps(config))


def test_all_heads_that_ship_for_a_target_are_taken(tiny_folders, head_folders, tmp_path, monkeypatch):
    monkeypatch.setattr("runtime.drafters.registry.SHIPPED_FOLDER", tmp_path)
    target = tiny_folders.target.name
    for name, source in head_folders.items():
        ship(tmp_path, f"of-{name}", source, target)
    ship(tmp_path, "a-draft", tiny_folders.drafter, target)
    ship(tmp_path, "of-another", head_folders["medusa"], "another")
    pair = find_pair(str(tiny_folders.target))
    assert pair.drafter.name == "a-draft"
    assert pair.heads == tuple((f"of-{name}", tmp_path / f"of-{name}") for name in ("eagle", "medusa", "streams"))
    assert [pair.head_for(method) for method in ("medusa", "hydra", "eagle2", "speculative_streaming")] == [
        "of-medusa",
        None,
        "of-eagle",
        "of-streams",
    ]
    assert find_pair(str(tiny_folders.target), heads=()).heads == ()
    assert [head.name for head in find_pair(str(tiny_folders.target), heads=["of-medusa"]).heads] == ["of-medusa"]


@pytest.mark.parametrize(
    ("role", "which", "error", "message"),
    [
        ("heads", "drafter", ModelFormatError, "is not a head: .*mirrorsd_draft.*, expected mirrorsd_medusa"),
        ("exits", "drafter", ModelFormatError, "is not exit adapters: .*mirrorsd_draft"),
        ("drafter", "nowhere", ModelError, "'nowhere' is not a shipped drafter"),
        ("drafter", "damaged", ModelFormatError, r"config\.json: not valid JSON"),
        ("drafter", "nameless", ModelFormatError, "has neither architectures nor speculators_model_type"),
    ],
)
def test_what_has_another_role_or_is_nowhere_is_refused(tiny_folders, tmp_path, role, which, error, message):
    (tmp_path / "config.json").write_text("{}" if which == "nameless" else "{")
    name = {"drafter": str(tiny_folders.drafter)} | dict.fromkeys(("damaged", "nameless"), str(tmp_path))
    name = name.get(which, which)
    with pytest.raises(error, match=message):
        find_pair(str(tiny_folders.target), **{role: [name] if role == "heads" else name})


def schedule_of(method, drafter=None):
    """The smallest schedule of a method."""
    traits = METHODS[method]
    settings = {"num_speculative_tokens": 0 if traits.window == "none" else 1}
    if traits.has_draft_lane:
        settings["draft_lane"] = "cpu1"
    if traits.overlaps:
        settings |= {"root_source": "draft", "draft_top_k": 1}
    if traits.is_tree:
        settings |= {"tree_size": 1, "tree_top_k": int(traits.has_dynamic_trees)}
    return Schedule(method=method, target_lane="cpu0", drafter=drafter, **settings)


def test_exits_are_loaded_only_for_a_schedule_that_takes_one(tiny_folders):
    """Those of another target would not even load."""
    given = {"drafter": tiny_folders.drafter, "exits": tiny_folders.exits}
    mirror = schedule_of("mirror")
    takes_one = mirror.model_copy(update={"root_source": "exit", "exit_layer": 2, "exit_top_k": 1, "draft_top_k": 0})
    for schedule, exits in ((mirror, None), (schedule_of("autoregressive"), None), (takes_one, tiny_folders.exits)):
        found = find_scheduled_pair(schedule, tiny_folders.target, **given)[0].exits
        assert (found and found.folder) == exits


@pytest.mark.parametrize("method", [name for name, traits in METHODS.items() if not traits.is_simulated_only])
def test_a_schedule_without_a_drafter_gets_the_shipped_one_of_its_method(method, embedded_model_folder):
    pair, schedule = find_scheduled_pair(schedule_of(method), embedded_model_folder)
    if METHODS[method].drafts == "nobody":
        assert (pair.drafter, schedule.drafter) == (None, None)
    elif METHODS[method].drafts == "draft":
        assert schedule.drafter == pair.drafter.name
    else:
        assert pair.drafter is None
        assert pair.head_methods[schedule.drafter] == method


def test_a_schedule_names_what_drafts_or_somebody_else_does(tiny_folders, head_folders):
    target = tiny_folders.target
    assert find_scheduled_pair(schedule_of("prompt_lookup", "prompt-lookup"), target)[1].drafter == "prompt-lookup"
    medusa = str(head_folders["medusa"])
    assert find_scheduled_pair(schedule_of("medusa", medusa), target)[1].drafter == medusa
    assert find_scheduled_pair(schedule_of("medusa", "nobody"), target, drafter=medusa)[1].drafter == medusa
    draft = str(tiny_folders.drafter)
    pair, schedule = find_scheduled_pair(schedule_of("mirror", draft), target)
    assert (pair.drafter.name, schedule.drafter, pair.heads) == (draft, draft, ())
    assert pair.only_for(schedule) == pair
    both, lookup = find_scheduled_pair(schedule_of("prompt_lookup", "prompt-lookup"), target)
    only = replace(both, drafter=pair.drafter, heads=(pair.drafter, *both.heads)).only_for(lookup)
    assert (only.drafter, [head.name for head in only.heads]) == (None, ["prompt-lookup"])


@pytest.mark.parametrize(
    ("method", "drafter", "complaint"),
    [
        ("speculative", None, "needs a draft model: name one with --drafter"),
        ("mirror", NO_DRAFTER, "needs a draft model"),
        ("hydra", None, "needs its own kind of head, but only these are known: prompt-lookup"),
        ("hydra", "prompt-lookup", "needs its own kind of head, but only these are known: prompt-lookup"),
    ],
)
def test_a_schedule_that_nothing_drafts_for_is_refused(tiny_folders, method, drafter, complaint):
    with pytest.raises(ConfigError, match=complaint):
        find_scheduled_pair(schedule_of(method, drafter), tiny_folders.target)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, empty_cache):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(name):
    shape = model_shape(name)
    return shape.is_uniform and shape.num_tracks == 1 and (shape.is_gated or shape.name.startswith("OPT"))


@pytest.mark.parametrize("name", [name for name in shipped_models() if runs(name)])
def test_its_sizes_are_those_of_the_shape(name) -> None:
    config, shape = ModelConfig.from_folder(shipped_shape_folder(f"shape:{name}")), model_shape(name)
    assert config.random_seed == 0
    assert config.num_layer_parameters == shape.layer_parameters
    assert (config.num_layers, config.max_position) == (shape.num_layers, shape.max_position)
    # norms and biases are no part of a shape
    assert num_parameters(config) == pytest.approx(shape.num_parameters, rel=1e-3)


@pytest.mark.parametrize("name", [name for name in shipped_models() if not runs(name)])
def test_parts_that_no_decoder_has_are_refused(name) -> None:
    with pytest.raises(
        ModelError,
        match=f"shape:{name}: a shape with(out gates| experts| layers of several kinds| parallel tracks) can be ",
    ):
        shipped_shape_folder(f"shape:{name}")


def test_a_shape_without_gates_is_not_run_as_one_with_gates(monkeypatch) -> None:
    ungated = model_shape("smollm2-135m").model_copy(update={"is_gated": False})
    monkeypatch.setattr("mirrorsd.model_pair.model_shape", lambda _: ungated)
    with pytest.raises(ModelError, match="shape:smollm2-135m: a shape without gates can be simulated"):
        shipped_shape_folder("shape:smollm2-135m")


def test_a_pair_is_found_by_names() -> None:
    pair = find_pair("shape:Qwen3-8B", drafter="shape:qwen3-0.6b", dtype="int4")
    assert (pair.target, pair.drafter.name) == ("shape:Qwen3-8B", str(pair.drafter.folder))
    assert has_random_weights(pair.target_folder)
    assert ModelConfig.from_folder(pair.target_folder).architecture == "Qwen3ForCausalLM"
    assert ModelConfig.from_folder(pair.drafter.folder).num_layers == 28


def test_a_path_of_the_users_is_meant_first(cache) -> None:
    assert is_shipped_shape("shape:qwen3-8b")
    (cache / "qwen3-8b").mkdir()
    assert not is_shipped_shape("shape:qwen3-8b")
    assert not is_shipped_shape("shape:nothing-known")
    assert not is_shipped_shape("qwen3-8b")
