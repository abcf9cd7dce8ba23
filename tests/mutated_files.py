"""Every kind of file that is read, in a sound example; and what becomes of it once it is damaged (`tests.mutations`).

Reading ends in one of two ways: a clean error, or an answer that is finite. Anything else is a defect.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, Final

import torch
from safetensors.torch import save_file

from calibrate.prompts import load_prompts
from decoding.errors import MOST_CHARACTERS, MirrorsdError
from decoding.record import AcceptanceRecord
from decoding.schedule import Schedule, load_schedule, save_schedule
from decoding.yaml_file import load_yaml, save_yaml
from hwprofiles.platform import Platform
from hwprofiles.profile import load_profile, save_profile
from hwprofiles.sheets import DeviceSheet, LinkSheet, shipped_file
from mirrorsd.cli.verbs.run import _summary
from mirrorsd.compare.measured_answer import judge_runs
from mirrorsd.compare.outcome_folder import Outcome, read_report_data, write_outcome
from mirrorsd.run_file import RunFile
from planner.plan import make_plan
from planner.report.report import render_report
from planner.search.search import search
from planner.search.space import SearchSpace
from runtime.drafters.eagle.folder import save_eagle
from runtime.drafters.hydra.folder import save_hydra
from runtime.drafters.medusa.folder import save_medusa
from runtime.drafters.registry import DrafterContext, load_drafter, require_streams
from runtime.drafters.streams.folder import load_streams, save_streams
from runtime.models.config import ModelConfig
from runtime.models.tokenizer import Tokenizer
from runtime.models.weights import load_decoder
from runtime.target.exit_folder import load_exits
from sim.evaluator import predict
from tests.mirrorsd.compare.made_up_runs import made_up_runs
from tests.mutations import damage
from tests.planner.synthetic import acceptance_record, machine
from tests.runtime.drafters.eagle.test_published import checkpoint_config, checkpoint_tensors
from tests.runtime.drafters.medusa.test_published import checkpoint
from tests.runtime.tiny_folders import save_draft_of, save_exits_of, save_target
from tests.tiny_eagle import tiny_eagle1, tiny_eagle3
from tests.tiny_heads import KEPT, PATHS, tiny_hydra, tiny_medusa
from tests.tiny_models import tiny_streams, tiny_target
from training.data.conversations import read_conversations
from training.recipe import load_recipe, shipped_recipes
from training.text.text_recipe import load_text_recipe

REFUSED: Final = "refused"
ANSWERED: Final = "answered"
SETTINGS: Final = {"dtype": "float32", "seed": 0, "schedule": {"method": "autoregressive", "target_lane": "target"}}
MIRROR: Final = Schedule(
    method="mirror",
    target_lane="target",
    draft_lane="draft",
    num_speculative_tokens=3,
    root_source="exit",
    exit_layer=15,
    exit_top_k=2,
)
PLAIN: Final = Schedule(method="autoregressive", target_lane="target")


class UntoldError(AssertionError):
    """A case that ended in neither of the two ways."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of file.

    Attributes:
        make: writes a sound example into a folder and returns the files to be damaged.
        read: what the product does with it; returns the numbers of its answer.
        is_slow: whether a case takes more than a few milliseconds.
    """

    make: Callable[[Path], list[str]]
    read: Callable[[Path], Iterable[float]]
    is_slow: bool = False


def make_sound(kind: str, folder: Path) -> list[str]:
    """Write the sound example; the files to be damaged."""
    folder.mkdir(parents=True)
    return KINDS[kind].make(folder)


def outcome(kind: str, sound: Path, names: list[str], scratch: Path, seed: int) -> str:
    """Damage a copy of the sound example by a seed, and read it: `REFUSED` or `ANSWERED`.

    Raises:
        UntoldError: the error is none of ours or too long, or a number of the answer is not finite.
    """
    if scratch.exists():
        shutil.rmtree(scratch)
    shutil.copytree(sound, scratch)
    damage(scratch, names, Random(f"{kind} {seed}"))
    return read_outcome(kind, scratch)


def read_outcome(kind: str, folder: Path) -> str:
    """Read what is in a folder; errors as in `outcome`."""
    try:
        numbers = list(KINDS[kind].read(folder))
    except MirrorsdError as error:
        if not 0 < len(str(error)) <= MOST_CHARACTERS:
            raise UntoldError(f"a message of {len(str(error))} characters") from error
        return REFUSED
    except MemoryError:
        raise
    except Exception as error:
        raise UntoldError(f"{type(error).__name__}: {error}"[:300]) from error
    if wrong := [number for number in numbers if not math.isfinite(number)]:
        raise UntoldError(f"an answer holds {wrong[0]}")
    return ANSWERED


@cache
def _machine() -> tuple[Any, AcceptanceRecord]:
    return machine(), acceptance_record(num_prompts=2, num_tokens=12)


@cache
def _target() -> Any:
    return tiny_target(num_layers=6)


def _of(schedules: Iterable[Schedule], profile: Any, record: AcceptanceRecord) -> Iterable[float]:
    for schedule in schedules:
        found = predict(schedule, profile, record)
        yield from (found.tpot_s, found.tpot_s_low, found.tpot_s_high, found.decode_s, found.mean_acceptance_length)


def _make_schedule(folder: Path) -> list[str]:
    save_schedule(MIRROR, folder / "schedule.yaml")
    return ["schedule.yaml"]


def _make_profile(folder: Path) -> list[str]:
    save_profile(_machine()[0], folder / "profile.yaml")
    return ["profile.yaml"]


def _copied(kind: Any, name: str) -> Callable[[Path], list[str]]:
    def make(folder: Path) -> list[str]:
        shutil.copy(shipped_file(kind, name), folder / "sheet.yaml")
        return ["sheet.yaml"]

    return make


def _make_space(folder: Path) -> list[str]:
    space = SearchSpace(methods=("speculative", "mirror"), windows=(2, 3), exit_top_k=(1, 2), draft_top_k=(1,))
    save_yaml(space.model_dump(mode="json"), folder / "space.yaml")
    return ["space.yaml"]


def _read_space(folder: Path) -> Iterable[float]:
    found = search(load_yaml(folder / "space.yaml", SearchSpace), *_machine())
    return (candidate.tpot_s for candidate in found.candidates)


def _make_recipes(folder: Path) -> list[str]:
    names = [name for name in shipped_recipes() if name.endswith(("draft4", "eagle3", "selfgen"))]
    for name in names:
        shutil.copy(shipped_recipes()[name], folder / f"{name}.yaml")
    return [f"{name}.yaml" for name in names]


def _read_recipes(folder: Path) -> Iterable[float]:
    for path in sorted(folder.glob("*.yaml")):
        recipe = load_text_recipe(path) if "selfgen" in path.name else load_recipe(path)
        yield from _numbers(recipe.model_dump())


def _make_record(folder: Path) -> list[str]:
    _machine()[1].save(folder / "record.npz")
    return ["record.npz"]


def _read_record(folder: Path) -> Iterable[float]:
    return _of((PLAIN, MIRROR), _machine()[0], AcceptanceRecord.load(folder / "record.npz"))


def _make_rows(folder: Path) -> list[str]:
    with RunFile(folder / "rows.jsonl", SETTINGS) as file:
        for name in "abc":
            row = {"token_ids": [1, 2, 3], "num_rounds": 2, "prefill_s": 0.1, "decode_s": 0.2, "text": "été"}
            file.append({"prompt_id": name, "accept_lengths": [1, 2], "events": [], **row})
    return ["rows.jsonl"]


def _read_rows(folder: Path) -> Iterable[float]:
    with RunFile(folder / "rows.jsonl", SETTINGS) as file:
        return _numbers(_summary(list(file.rows.values()))) if file.rows else ()


def _make_prompts(folder: Path) -> list[str]:
    rows = [
        {"prompt_id": "a", "category": "qa", "prompt": "Why?"},
        {"prompt": "How?\nSo."},
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["prompts.jsonl"]


def _read_prompts(folder: Path) -> Iterable[float]:
    for prompt in load_prompts(folder / "prompts.jsonl"):
        f"{prompt.prompt_id} {prompt.category} {prompt.text}".encode()
        yield float(len(prompt.text))


def _make_tokens(folder: Path) -> list[str]:
    rows = [{"prompt": [1, 2], "answer": [3, 4, 2], "temperature": 0.8}] * 3
    (folder / "tokens.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["tokens.jsonl"]


def _read_tokens(folder: Path) -> Iterable[float]:
    return [row.temperature for row in read_conversations([folder / "tokens.jsonl"], vocab_size=9)]


def _make_target(folder: Path) -> list[str]:
    save_target(_target(), folder)
    return ["config.json", "model.safetensors"]


def _read_target(folder: Path) -> Iterable[float]:
    config = ModelConfig.from_folder(folder)
    with torch.inference_mode():
        decoder = load_decoder(folder, dtype=torch.bfloat16, max_position=16)
    return [config.norm_eps, config.rope_theta, *_sums(decoder)]


def _make_tokenizer(folder: Path) -> list[str]:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    Backend(models.WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ bos_token }}{{ m['content'] | trim }}{% endfor %}"
    settings = {"chat_template": template, "bos_token": {"content": "a"}, "eos_token": "b"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ["tokenizer_config.json", "tokenizer.json"]


def _read_tokenizer(folder: Path) -> Iterable[float]:
    tokenizer = Tokenizer.from_folder(folder)
    if not tokenizer.has_chat_template:
        return tokenizer.encode("a b")
    return tokenizer.encode_chat([{"role": "user", "content": "a b"}])


def _sums(module: torch.nn.Module) -> Iterable[float]:
    return [float(weight.double().sum()) for weight in module.parameters() if not weight.is_meta]


def _read_drafter(folder: Path) -> Iterable[float]:
    context = DrafterContext(target_folder=folder, dtype=torch.bfloat16, load_target=_target)
    drafter = load_drafter(folder, context)
    modules = [value for value in vars(drafter).values() if isinstance(value, torch.nn.Module)]
    return [total for module in modules for total in _sums(module)]


def _head(save: Callable[[Path, Any], object]) -> Kind:
    def make(folder: Path) -> list[str]:
        save(folder, _target())
        return ["config.json", "model.safetensors"]

    return Kind(make=make, read=_read_drafter)


FACTS: Final[Mapping[str, Any]] = {"target_name": "tiny", "metadata": {}}


def _save_published_eagle3(folder: Path, _: Any) -> None:
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 2, 5]}}
    (folder / "config.json").write_text(json.dumps(checkpoint_config(**layers)))
    save_file(checkpoint_tensors(), folder / "model.safetensors")


def _save_published_medusa(folder: Path, _: Any) -> None:
    (folder / "config.json").write_text(json.dumps({"medusa_num_heads": 3, "medusa_num_layers": 2}))
    save_file(checkpoint(), folder / "model.safetensors")


def _save_exits(folder: Path, target: Any) -> None:
    save_exits_of(target, folder)


def _read_exits(folder: Path) -> Iterable[float]:
    exits = load_exits(folder, _target(), dtype=torch.bfloat16)
    return [total for adapter in exits.adapters.values() for total in _sums(adapter)]


def _make_result(folder: Path) -> list[str]:
    profile, record = _machine()
    space = SearchSpace(methods=("speculative", "mirror"), windows=(2,), exit_top_k=(1,), draft_top_k=(1,))
    plan = make_plan(space, profile, record)
    candidates = plan.search.candidates[:3]
    runs = made_up_runs([one.schedule for one in candidates], profile, record)
    save_profile(profile, folder / "profile.yaml")
    record.save(folder / "record.npz")
    outcome = Outcome(
        title="a test",
        plan=plan,
        judged=judge_runs(candidates, runs, plan),
        files={"profile": folder / "profile.yaml", "record": folder / "record.npz"},
        facts={"platform": {}},
        dtype="float32",
    )
    write_outcome(outcome, folder, "result.json")
    shutil.rmtree(folder / "traces")
    damaged = ["traces.json.gz", "runs.json.gz", "profile.yaml", "record.npz"]
    return ["result.json", "result.json", "traces.json.gz", *damaged]


def _read_result(folder: Path) -> Iterable[float]:
    data = read_report_data(folder / "result.json")
    page = render_report(data)
    shown = page.partition("<script")[0]
    words = ["nan" in shown.lower().replace("nano", "").split(), ">nan" in shown, ">inf" in shown]
    yield math.nan if any(words) else 0.0
    for result in data.results:
        yield result.candidate.tpot_s
        yield from (trace.decode_s for traces in result.measured for trace in traces)


def _save_streams(folder: Path, target: Any) -> None:
    paths = tuple(path for path in PATHS if len(path) <= 3)
    save_streams(tiny_streams(target), paths, folder, kept_ids=KEPT, target=target, **FACTS)


def _read_streams(folder: Path) -> Iterable[float]:
    require_streams(folder)
    return _sums(load_streams(folder, _target()).model)


def _make_lookup(folder: Path) -> list[str]:
    config = {"speculators_model_type": "mirrorsd_prompt_lookup", "min_ngram": 1, "max_ngram": 3}
    (folder / "config.json").write_text(json.dumps(config))
    return ["config.json"]


def _numbers(value: object) -> Iterable[float]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [number for item in value for number in _numbers(item)]
    return [float(value)] if isinstance(value, int | float) else []


KINDS: Final[dict[str, Kind]] = {
    "schedule": Kind(make=_make_schedule, read=lambda at: _of([load_schedule(at / "schedule.yaml")], *_machine())),
    "profile": Kind(
        make=_make_profile,
        read=lambda at: _of((PLAIN, MIRROR), load_profile(at / "profile.yaml"), _machine()[1]),
    ),
    "platform": Kind(
        make=_copied("platform", "h100x2"),
        read=lambda at: _numbers(load_yaml(at / "sheet.yaml", Platform).model_dump()),
    ),
    "device": Kind(
        make=_copied("device", "h100-sxm"),
        read=lambda at: _numbers(load_yaml(at / "sheet.yaml", DeviceSheet).model_dump()),
    ),
    "link": Kind(
        make=_copied("link", "nvlink-3"),
        read=lambda at: _numbers(load_yaml(at / "sheet.yaml", LinkSheet).model_dump()),
    ),
    "space": Kind(make=_make_space, read=_read_space, is_slow=True),
    "recipe": Kind(make=_make_recipes, read=_read_recipes),
    "record": Kind(make=_make_record, read=_read_record),
    "run file": Kind(make=_make_rows, read=_read_rows),
    "prompts": Kind(make=_make_prompts, read=_read_prompts),
    "training text": Kind(make=_make_tokens, read=_read_tokens),
    "target": Kind(make=_make_target, read=_read_target),
    "tokenizer": Kind(make=_make_tokenizer, read=_read_tokenizer),
    "draft model": _head(lambda at, target: save_draft_of(target, at)),
    "medusa": _head(lambda at, target: save_medusa(tiny_medusa(target), PATHS, at, target=target, **FACTS)),
    "hydra": _head(lambda at, target: save_hydra(tiny_hydra(target), PATHS, at, target=target, **FACTS)),
    "eagle1": _head(lambda at, target: save_eagle(tiny_eagle1(target), at, feature_layers=(), **FACTS)),
    "eagle3": _head(lambda at, target: save_eagle(tiny_eagle3(target), at, feature_layers=(1, 3, 5), **FACTS)),
    "published eagle3": _head(_save_published_eagle3),
    "published medusa": _head(_save_published_medusa),
    "streams": replace(_head(_save_streams), read=_read_streams),
    "prompt lookup": Kind(make=_make_lookup, read=_read_drafter),
    "exits": replace(_head(_save_exits), read=_read_exits),
    "result": Kind(make=_make_result, read=_read_result, is_slow=True),
}
