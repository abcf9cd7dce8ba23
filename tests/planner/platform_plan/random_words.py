"""Random questions for `mirrorsd plan`, as words of a command line: sensible ones, slips, and impossible ones."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from hwprofiles.model_shape import model_shape, shipped_models
from hwprofiles.models.head_shapes import HEADS
from hwprofiles.platform import Platform, load_platform
from hwprofiles.sheets import shipped_names

WEIGHTS: Final = ("bf16", "int8", "int4", "fp8", "nvfp4", "q8_0", "q4_k_m", "iq3_m", "mlx-4bit", "mxfp4")
KINDS: Final = ("gpu", "gpu", "cpu", "npu")
FIELDS: Final = {
    "memory_efficiency": (0.05, 1.0),
    "flops_efficiency": (0.05, 1.0),
    "bf16_flops": (1e11, 1e15),
    "memory_bytes_per_s": (1e10, 4e12),
    "memory_bytes": (1e9, 2e11),
    "power_w": (1.0, 700.0),
}
"""Numbers of a device, and between which they are drawn."""
SLIPS: Final = (
    "none",
    "0",
    "-1",
    "nan",
    "1e400",
    "1e6",
    "1e-9",
    "2x",
    "",
    "[1, 4, 8]",
    "true",
    "2026-02-30",
    "9" * 5000,
)
PROFILE: Final = Path(__file__).parents[2] / "golden" / "profile.yaml"
"""Of a machine that was calibrated with the shipped pair."""
ODD_RATES: Final = ("80", "-0.1", "nan", "0.8;0.7", "often", "0.9," * 40 + "0.9", "x" * 300, "record.npz")


def random_words(seed: int, folder: Path) -> list[str]:
    """The question of a seed; files that it names are written into the folder."""
    random = Random(f"plan {seed}")
    target, draft = _models(random, folder)
    name, platform = _platform(random, folder)
    words = ["plan", "--target", target, "--draft", draft, "--platform", name]
    words += ["--context", str(_length(random, 60_000)), "--new-tokens", str(_length(random, 12))]
    if random.random() < 0.7:
        words += ["--acceptance", _acceptance(random, folder)]
    for option in ("--weights", "--draft-weights"):
        if random.random() < 0.7:
            words += [option, random.choice(WEIGHTS)]
    if random.random() < 0.3:
        words += ["--set", _change(random, platform)]
    if random.random() < 0.05:
        words += ["--batch", random.choice(("1", "1,4", "1,64", "8", "0", "9" * 5000))]
    if random.random() < 0.3:
        words.append("--trained-exits")
    for _ in range(random.choices((0, 1, 2), (80, 17, 3))[0]):
        words += ["--add", _addition(random)]
    if random.random() < 0.1:
        words += ["--cache-bits", random.choice(("4", "8", "0"))]
    if random.random() < 0.1:
        field = random.choice(("d0.memory_efficiency=0.1:0.9:2", "acceptance.rate=0.1,0.9", "d0.dispatch_s=1us:1 ms:3"))
        words += ["--sweep", random.choice((field, field, "d0.power_w=9:1", "nobody.power_w=1:2"))]
    return _on_a_calibrated_machine(random, words) if random.random() < 0.1 else words


def _addition(random: Random) -> str:
    """A device that ships, mostly, by whatever link."""
    device = random.choice((*shipped_names("device"), "2x RTX 4090")) if random.random() < 0.95 else "nothing"
    kind = random.random()
    if kind < 0.5:
        return device
    return f"{device}@{random.choice(shipped_names('link')) if kind < 0.95 else 'rope'}"


def _on_a_calibrated_machine(random: Random, words: list[str]) -> list[str]:
    """The same of the machine of a profile: with its models, mostly, and often where their contexts were measured."""
    words = [*words[: words.index("--platform")], "--profile", str(PROFILE), *words[words.index("--platform") + 2 :]]
    if random.random() < 0.6:
        words[2], words[4] = "smollm2-135m-instruct", "smollm2-135m-draft4"
        words += ["--context", str(random.randint(40, 400)), "--weights", random.choice(("bf16", "bf16", "int4"))]
    return words


def _between(random: Random, low: float, high: float) -> float:
    """Evenly by their logarithms, written with three digits as people do."""
    return float(f"{low * (high / low) ** random.random():.3g}")


def _length(random: Random, usual: int) -> int:
    return int(_between(random, 1, usual if random.random() < 0.95 else 1e12))


def _models(random: Random, folder: Path) -> tuple[str, str]:
    """A target and a draft, or several: mostly of one tokenizer, sometimes any two, sometimes by files."""
    names, kind = shipped_models(), random.random()
    if kind > 0.85:
        return random.choice(names), ",".join(random.sample((*HEADS, "ngram"), random.choice((1, 1, 1, 2))))
    if kind < 0.1:
        sizes = _config(random), _config(random)
        for name, config in zip(("target", "draft"), sizes, strict=True):
            (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
        return str(folder / "target.json"), str(folder / "draft.json")
    if kind < 0.2:
        return random.choice(names), random.choice(names)
    return random.choice(_pairs())


@cache
def _pairs() -> list[tuple[str, str]]:
    """All targets with all that have their tokenizer."""
    tokenizers = {name: model_shape(name).tokenizer for name in shipped_models()}
    return [pair for pair in product(tokenizers, repeat=2) if tokenizers[pair[0]] == tokenizers[pair[1]]]


def _config(random: Random) -> dict[str, Any]:
    heads = random.choice((1, 2, 8, 32))
    config: dict[str, Any] = {
        "hidden_size": 64 * heads,
        "intermediate_size": random.choice((64, 4096, 14336)),
        "num_attention_heads": heads,
        "num_key_value_heads": random.choice((1, heads)),
        "num_hidden_layers": random.choice((1, 2, 3, 30, 80)),
        "vocab_size": random.choice((32000, 32064, 151936, 152064)),
        "max_position_embeddings": random.choice((8, 2048, 1 << 24)),
    }
    if random.random() < 0.3:
        config[random.choice(list(config))] = random.choice(("64", [8], None, 0, -1, 1 << 40, {"a": 1}, 1.5))
    return config


def _platform(random: Random, folder: Path) -> tuple[str, Platform | None]:
    """A shipped platform, or one of random devices that share a memory or are linked."""
    if random.random() < 0.12:
        return _loaded(random.choice(shipped_names(random.choice(("platform", "device")))))
    devices = {f"d{number}": _device(random) for number in range(random.choices((1, 2, 3), (30, 3, 1))[0])}
    names = list(devices)
    pairs = [[one, other] for index, one in enumerate(names) for other in names[index + 1 :]]
    links = [_link(random, pair) for pair in pairs if random.random() < 0.97]
    data: dict[str, Any] = {"name": "random", "devices": devices, "links": links}
    if random.random() < 0.4:
        size, rate = _between(random, 1e9, 2e11), _between(random, 1e10, 1e12)
        data["memory_pools"] = {"memory": {"devices": names, "bytes_per_s": rate, "memory_bytes": size}}
    if len(names) > 1 and random.random() < 0.4:
        data["groups"] = {"group": names[:2]}
    path = folder / "platform.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return _loaded(str(path))


def _loaded(name: str) -> tuple[str, Platform | None]:
    try:
        return name, load_platform(name)
    except Exception:  # noqa: BLE001  the question is asked all the same
        return name, None


def _device(random: Random) -> dict[str, Any]:
    if random.random() < 0.2:
        return {"sheet": random.choice(shipped_names("device"))}
    kind = random.choice(KINDS)
    known = {field: _between(random, *ends) for field, ends in FIELDS.items() if random.random() < 0.6}
    known.setdefault("memory_bytes_per_s", _between(random, 1e10, 4e12))
    known.setdefault("bf16_flops", _between(random, 1e11, 1e15))
    if random.random() < 0.05:
        known["two_streams_slowdown"] = _between(random, 1.0, 3.0)
    static = {"static_shapes": True, "facts_source": "drawn"} if kind == "npu" and random.random() < 0.5 else {}
    return {"name": f"a {kind}", "kind": kind, **known, **static}


def _link(random: Random, between: list[str]) -> dict[str, Any]:
    if random.random() < 0.5:
        return {"between": between, "sheet": random.choice(shipped_names("link")), "latency_s": 1e-5}
    return {"between": between, "latency_s": _between(random, 1e-7, 1e-2), "bytes_per_s": _between(random, 1e8, 1e12)}


def _acceptance(random: Random, folder: Path) -> str:
    """A rate, rates by place, a file, or none of these."""
    kind = random.random()
    if kind < 0.55:
        return random.choice(("0", "1", f"{random.random():.2f}", f"{random.random():.2f}"))
    if kind < 0.8:
        return ",".join(random.choice(("0", "1", f"{random.random():.1f}")) for _ in range(random.randint(2, 9)))
    if kind < 0.93:
        path = folder / "acceptance.yaml"
        rates: dict[str, Any] = {"rates": round(random.random(), 2)}
        if random.random() < 0.5:
            rates["exit_coverage"] = {
                random.choice((1, 8, 30, 200)): sorted(round(random.random(), 2) for _ in range(8))
            }
        if random.random() < 0.3:
            rates["stream_rates"] = [0.9, 0.5]
        path.write_text(yaml.safe_dump(rates), encoding="utf-8")
        return str(path)
    return random.choice(ODD_RATES)


def _change(random: Random, platform: Platform | None) -> str:
    """A number of the platform that is set to another one, or to something that is none."""
    parts = ["d0"] if platform is None else [*platform.devices, *platform.memory_pools]
    part = random.choice(parts) if random.random() < 0.95 else "nobody"
    field = random.choice((*FIELDS, "bytes_per_s", "row_buckets", "static_shapes", "dispatch_s", "max_prompt_tokens"))
    if random.random() < 0.4:
        return f"{part}.{field}={random.choice(SLIPS)}"
    low, high = FIELDS.get(field, (1e-6, 1e12))
    return f"{part}.{field}={random.choice((f'{random.randint(-60, 300):+d}%', f'{_between(random, low, high):g}'))}"
