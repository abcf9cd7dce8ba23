"""`mirrorsd record`: records which drafted tokens the target would accept, at every position of every prompt."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from decoding.errors import ConfigError
from mirrorsd.cli import options
from mirrorsd.cli.console import escaped, say, say_next, show, telling_what_was_saved, write_json
from mirrorsd.cli.option_values import ModelNames, beside, chosen_prompts, fit_each_other, reach_words, unused_seed
from mirrorsd.cli.options import option
from mirrorsd.cli.progress_bar import task, watching_others

if TYPE_CHECKING:
    from collections.abc import Iterable

    from decoding.record import AcceptanceRecord
    from decoding.schedule import Method

_EFFECT = "recording takes longer, but its result is the same"
EXAMPLE = "mirrorsd record --out record.npz"


def record(
    out: Annotated[Path, options.output("Where the record goes (.npz).", kind="a record")],
    prompts: options.PromptsOption = None,
    per_category: options.PerCategoryOption = None,
    target: options.TargetOption = options.DEFAULT_TARGET,
    drafter: options.DrafterOption = None,
    exits: options.ExitsOption = None,
    heads: options.HeadsOption = None,
    dtype: options.DtypeOption = options.Dtype.BFLOAT16,
    device: options.DeviceOption = None,
    max_new_tokens: options.MaxNewTokensOption = options.MAX_NEW_TOKENS,
    max_window: options.MaxWindowOption = options.MAX_WINDOW,
    max_exit_top_k: Annotated[int, option("Limit of roots per row of an early exit, for replays.", min=1, max=64)] = 16,
    exit_layer: Annotated[
        list[int] | None, option("Record this early exit; may be repeated. Default: all with trained adapters.")
    ] = None,
    tree: Annotated[
        list[str] | None, option("Record dynamic trees of this depth and top-k, such as 5x8; may be repeated.")
    ] = None,
    temperature: Annotated[float, option("Sample the target's texts at this temperature; 0 is greedy.", min=0)] = 0.0,
    texts: Annotated[int, option("Sampled texts per prompt.", min=1)] = 1,
    seed: Annotated[int, option("Seed of the first sampled text; the others have the next ones.", min=0)] = 0,
    threads: Annotated[int | None, option("Threads to compute with.", min=1)] = None,
    json: options.JsonOption = None,
) -> None:
    """Run target and drafters over prompts, so that any schedule can be replayed; run it again to resume."""
    from calibrate.recording.reach import USUAL_TREES, Reach
    from decoding.recorded.record_checks import MAX_BYTES, MAX_HEADER_BYTES
    from hwprofiles.profile import load_profile
    from mirrorsd.lane_choice import fitted_to, usual_device
    from mirrorsd.measure_pair import record as make

    if out.suffix != ".npz":  # other verbs recognise a record by this ending
        raise ConfigError(f"--out {out}: a record's name ends in .npz, such as {out.with_suffix('.npz')}")
    wanted = chosen_prompts(prompts, per_category)
    reach = Reach(
        max_new_tokens=max_new_tokens,
        max_window=max_window,
        num_exit_candidates=max_exit_top_k + 1,
        exit_layers=None if exit_layer is None else tuple(exit_layer),
        trees=USUAL_TREES if tree is None else tuple(map(_shape, tree)),
        temperature=temperature,
        num_texts=texts,
        seed=seed,
    )
    names = ModelNames(target, drafter, exits, heads, dtype)
    saved = [f"Finished prompts, if any, are kept next to {out}; the same command continues after them."]
    with telling_what_was_saved(saved), task("Recording") as report, watching_others(effect=_EFFECT) as others:
        progress = others.on(report)
        whole = names.find(report)
        computing = device or usual_device(whole)
        pair, left_out = fitted_to(whole, [computing])
        made = make(pair, wanted, out, reach=reach, device=computing, num_threads=threads, progress=progress)
    warnings = [*filter(None, [whole.unheeded(temperature)]), *unused_seed(seed, temperature)]
    num_asked, num_texts = len(wanted) * texts, len(made.prompts)
    if num_texts < num_asked:
        limits = f"a record is limited to {MAX_BYTES >> 20} MiB, and to {MAX_HEADER_BYTES >> 20} MiB of names"
        warnings.append(f"{num_texts:,} of {num_asked:,} texts were recorded: {limits}. Record the others separately.")
    result = _summary(made, out) | {"left_out": list(left_out), "warnings": warnings}
    for warning in warnings:
        say(f"[yellow]{escaped(warning)}[/]")
    if write_json(result, json):
        show(_in_words(result))
        names_beside = [out.with_name(f"{name}.yaml") for name in ("profile", f"{out.stem}-profile", out.stem)]
        profile, is_there = beside(names_beside, lambda path: fit_each_other(load_profile(path), made))
        if is_there:
            say_next("search", "--profile", profile, "--record", out, "--out", out.with_name("best.yaml"))
        else:
            given = () if device is None else ("--device", device)
            far = reach_words(prompts, max_new_tokens, max_window)
            named = names._replace(target=whole.target).words
            say_next("calibrate", *named, *given, *far, "--quick", "--out", profile)


def _in_words(result: dict[str, Any]) -> str:
    from mirrorsd.simulation import repeating_sentence
    from planner.wording import counted, percent

    sizes = {name: counted(result[f"num_{name}s"], name) for name in ("prompt", "text", "token")}
    if result["num_texts"] == result["num_prompts"]:
        del sizes["text"]
    at = f" sampled at temperature {result['temperature']:g}" if result["temperature"] else ""
    words = [f"Wrote {escaped(result['record'])}: {', '.join(sizes.values())}{at}."]
    if result["token_acceptance"] is not None:
        words.append(f"The draft guesses {percent(result['token_acceptance'])} of the target's tokens.")
    if result["repeating"]:
        words.append(repeating_sentence(result["repeating"], result["num_texts"]))
    words += map(escaped, result["left_out"])
    drafts = {"chains": f"in windows of up to {result['max_window']}", "trees": "by its largest tree"}
    for kind, drafted in drafts.items():
        for one in result[kind]:
            words.append(f"{escaped(one['name'])}: {one['mean_acceptance_length']:.2f} tokens per round {drafted}.")
    return "\n".join(words)


def _summary(made: "AcceptanceRecord", out: Path) -> dict[str, Any]:
    from decoding.schedule import MAX_TREE
    from mirrorsd.compare.numbers import picked
    from planner.what_if.mixed_record import token_acceptance

    chains = [
        {
            "name": chain.drafter,
            "method": chain.method,
            **_per_round(chain.method, (one.chain_lengths(place) for one in made.prompts)),
        }
        for place, chain in enumerate(made.chains)
    ]
    trees = [
        {
            "name": f"{tree.drafter} ({tree.method}, {tree.depth} deep{f' top {tree.top_k}' if tree.top_k else ''})",
            **picked(tree, "drafter method depth top_k"),
            **_per_round(tree.method, (one.tree_lengths(place, MAX_TREE) for one in made.prompts)),
        }
        for place, tree in enumerate(made.trees)
    ]
    return {
        "record": str(out),
        **picked(made, "target drafter dtype backend max_window max_new_tokens temperature seed"),
        "num_prompts": made.num_prompts,
        "num_texts": len(made.prompts),
        "num_tokens": sum(len(prompt.text) for prompt in made.prompts),
        "token_acceptance": None if made.drafter is None else token_acceptance(made),
        "repeating": [prompt.name for prompt in made.prompts if prompt.repeats_itself],
        "exit_layers": list(made.exit_layers),
        "chains": chains,
        "trees": trees,
    }


def _per_round(method: "Method", lengths: "Iterable[Any]") -> dict[str, float]:
    """Return the committed tokens per verification, from the accepted tokens at each position (an array per text)."""
    from decoding.methods import METHODS
    from decoding.record import round_starts

    num_tokens = num_rounds = 0
    for accepted in lengths:
        if METHODS[method].drafts_itself:
            accepted[0] = 0  # the first pass has nothing to verify
        num_tokens += len(accepted)
        num_rounds += len(round_starts(accepted.tolist(), len(accepted)))
    return {"mean_acceptance_length": num_tokens / num_rounds}


def _shape(text: str) -> tuple[int, int]:
    from decoding.schedule import MAX_TREE, MAX_WINDOW

    found = re.fullmatch(r"(\d{1,3})x(\d{1,3})", text)
    depth, top_k = map(int, found.groups()) if found else (0, 0)
    if not (1 <= depth <= MAX_WINDOW and 1 <= top_k <= MAX_TREE):
        raise ConfigError(f"--tree {text}: expected depth x top-k, such as 5x8")
    return depth, top_k
