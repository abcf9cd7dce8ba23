"""Which engines can run a planned schedule on its devices, and with which commands, ready to paste.

Options are as of 2026-11: llama.cpp after pull request 22964, vLLM at 002e77c, SGLang with speculation V2, mlx-lm,
OpenVINO GenAI. No engine can split the target at an early exit, or draft while the target verifies.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from decoding.schedule import Schedule
from hwprofiles.curves.names import engine_of
from hwprofiles.engines import EAGER, IK, engine_on, has_servers, is_apart, made_for_engine, reads
from hwprofiles.machines.layer_split import LayerSplit
from hwprofiles.model_shape import ModelShape
from hwprofiles.models.head_shapes import LOOKUP
from hwprofiles.platform import SECOND_STREAM, Platform
from hwprofiles.platform_parts import PlacedDevice
from planner.platform_plan.device_pairs import LanePair
from sim.derived.roofline import StoredModel

OURS: Final = "mirrorsd"
ASSISTANT: Final = "assistant"
"""A small separate model that drafts from its target's hidden states; makers and engines call it MTP (Gemma 4)."""
_SPLIT_TENSORS: Final = " --split-mode tensor"
"""llama.cpp's option for tensor parallelism: several devices compute each layer together."""
_SPLITTER: Final = "llama.cpp"
"""The engine that can put the layers of a model on different devices."""
_OPENVINO: Final = "openvino.genai"


class RunsOn(NamedTuple):
    """An engine that can run a schedule, and the command or call with its options."""

    engine: str
    options: str


class _Asked(NamedTuple):
    """What an engine is asked to run.

    Attributes:
        kind: method of the schedule, or kind of its head.
        window: drafted tokens per round.
        targets, drafts: devices of target and draft; of a layer split only the cards.
        names: names of `targets` and of `drafts`.
        weights: format of the target's weights.
        has_even_heads: whether every device of the target gets the same number of attention heads.
        cuts_blocks: whether sharing FP8 experts among the devices would cut their blocks.
        num_gpus: GPUs of the machine; a platform may consist of several machines.
        split: llama.cpp's options for a layer split over `targets`.
    """

    kind: str
    window: int
    targets: tuple[PlacedDevice, ...]
    drafts: tuple[PlacedDevice, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    weights: str
    has_even_heads: bool
    cuts_blocks: bool
    num_gpus: int
    split: str = ""

    @property
    def devices(self) -> tuple[PlacedDevice, ...]:
        """Devices of both models."""
        return (*self.targets, *self.drafts)

    @property
    def is_together(self) -> bool:
        """Whether all devices of the draft are devices of the target."""
        return all(any(draft is target for target in self.targets) for draft in self.drafts)

    def are_gpus(self, engine: str, is_made_for: Callable[[PlacedDevice], bool] = lambda _: False) -> bool:
        """Return whether all devices are GPUs for which `is_made_for` holds or whose known times are of the engine."""
        return all(
            one.kind == "gpu" and (is_made_for(one) or engine_of(engine_on(one, self.weights) or "") == engine)
            for one in self.devices
        )

    @property
    def is_served(self) -> bool:
        """Whether vLLM and SGLang can run it: both models on the same GPUs, with attention heads split evenly.

        Both split a draft model over all GPUs of the target: vLLM refuses another `draft_tensor_parallel_size`, and
        SGLang has no such option. Draft heads may be on fewer: engines place them. GPUs must be Volta or newer.
        """
        has_fewer_devices = self.kind == "speculative" and len(self.drafts) < len(self.targets)
        are_same_devices = self.is_together and not has_fewer_devices
        are_new = not any(one.before_volta for one in self.devices)
        return are_same_devices and are_new and self.has_even_heads and self.are_gpus("vllm", has_servers)


def runs_on(
    platform: Platform,
    pair: LanePair,
    schedule: Schedule,
    models: Sequence[StoredModel],
    head: str | None = None,
) -> tuple[RunsOn, ...]:
    """Return the engines that can run a schedule on a placement, first the one whose times are predicted.

    `models` are the target and, if one drafts, the draft model; `head` is a kind of head, see `drafting_head`.
    """
    found, target, weights = [], models[0], [model.weights for model in models]
    is_chain = schedule.num_rows == schedule.num_speculative_tokens + 1
    is_of_engines = is_chain and not schedule.traits.overlaps and not schedule.draft_streams
    chips = {_chip(platform, member) for lane in pair[:2] for member in platform.members(lane)} - {None}
    if is_of_engines and len(chips) < 2:  # devices on several chips are separate machines, joined by cables
        split = LayerSplit.of(pair.target)
        cards = platform.members(pair.target) if split is None else (*split.layers,)
        members = cards, pair.drafters(platform)
        targets, drafts = (tuple(map(platform.device, names)) for names in members)
        asked = _Asked(
            kind=(head if schedule.traits.has_draft_model else None) or schedule.method,
            window=schedule.num_speculative_tokens,
            targets=targets,
            drafts=drafts,
            names=members,
            weights=weights[0],
            has_even_heads=all(model.shape.num_heads % len(targets) == 0 for model in models),
            cuts_blocks=target.weights == "fp8" and _cuts_blocks(target.shape, len(targets)),
            num_gpus=sum(
                one.kind == "gpu" and (not chips or _chip(platform, name) in {*chips, None})
                for name, one in platform.devices.items()
            ),
            split="" if split is None else split.options(target.shape.dense_layers, num_more=int(head == "mtp")),
        )
        commands = {
            engine: command(asked)
            for engine, command in _ENGINES.items()
            if all(reads(engine, one) for one in weights) and (split is None or engine == _SPLITTER)
        }
        caches = {engine: _cache_option(engine, asked, target.cache_bits) for engine in commands}
        found = [
            RunsOn(engine, command + cache)
            for engine, command in commands.items()
            if command is not None and (cache := caches[engine]) is not None
        ]
        # The numbers in data sheets of Intel's chips were measured with OpenVINO.
        by_sheet = _OPENVINO if targets[0].maker == "Intel" and targets[0].kind != "cpu" else ""
        predicted = engine_on(targets[0], weights[0]) or by_sheet
        kin = engine_of(predicted)
        found.sort(
            key=lambda one: (not predicted.lower().startswith(one.engine), kin not in (None, engine_of(one.engine)))
        )
    if (
        all(made_for_engine(one) is None for one in weights)
        and target.cache_bits == 16
        and head in (None, LOOKUP)
        and all(lane.removesuffix(SECOND_STREAM) in platform.lanes for lane in pair[:2])
    ):
        drafter = "DRAFT" if schedule.traits.has_draft_model else "none"
        found.insert(0, RunsOn(OURS, f"mirrorsd demo --target TARGET --drafter {drafter}"))
    return tuple(found)


def drafting_head(draft: StoredModel) -> str | None:
    """Return the kind of head that drafts, as engines load it; an MTP head in files of its own is an `ASSISTANT`."""
    return ASSISTANT if draft.head == "mtp" and not draft.is_in_target else draft.head


def _chip(platform: Platform, name: str) -> str | None:
    """Return the memory pool of the chip that a device is a part of; None for a device that is a chip by itself."""
    pools = (pool for pool, memory in platform.memory_pools.items() if name in memory.devices)
    return None if platform.device(name).memory_pool is None else next(pools, name)


_FP8_BLOCK: Final = 128
"""FP8 checkpoints of DeepSeek and Qwen have one scale for each block of this many rows and columns."""


def _cuts_blocks(shape: ModelShape, num: int) -> bool:
    """Return whether dividing each expert of a mixture among `num` devices would cut its blocks."""
    return shape.num_experts > 0 and shape.intermediate_size % (num * _FP8_BLOCK) > 0


_CACHES: Final[Mapping[str, Mapping[int, str]]] = {
    "llama.cpp": {bits: f" -ctk q{bits}_0 -ctv q{bits}_0" for bits in (8, 5, 4)},
    "vllm": {8: " --kv-cache-dtype fp8"},
    "sglang": {8: " --kv-cache-dtype fp8_e4m3"},  # all of its attention back ends support this one
    "mlx-lm": {8: " --kv-bits 8", 4: " --kv-bits 4"},
}
"""Options for keys and values of other than 16 bits; llama.cpp has further ones for a draft's."""


def _cache_option(engine: str, asked: _Asked, bits: int) -> str | None:
    """Return the option for keys and values of so many bits, in both models; None where an engine has none."""
    option = "" if bits == 16 else _CACHES.get(engine, {}).get(bits)
    if option and engine == "llama.cpp" and asked.kind not in ("autoregressive", "prompt_lookup"):
        option += option.replace("-ctk", "-ctkd").replace("-ctv", "-ctvd")
    return option


_LLAMA_CPP: Final[Mapping[str, str]] = {
    "autoregressive": "",
    "speculative": " --spec-type draft-simple -md DRAFT.gguf",
    "eagle3": " --spec-type draft-eagle3 -md DRAFT.gguf",
    "mtp": " --spec-type draft-mtp",
    ASSISTANT: " --spec-type draft-mtp -md DRAFT.gguf",
    "block": " --spec-type draft-dflash -md DRAFT.gguf",
    "prompt_lookup": " --spec-type ngram-simple",
}


def _llama_cpp(asked: _Asked) -> str | None:
    is_foreign = any(one.kind == "npu" or is_apart(one) for one in asked.devices)
    if asked.kind not in _LLAMA_CPP or is_foreign:
        return None
    window = f" --spec-draft-n-max {asked.window}" if asked.window else ""
    target = _llama_devices(asked, "-dev", asked.targets, asked.names[0])
    draft = _llama_devices(asked, "-devd", asked.drafts, asked.names[1]) if " -md " in _LLAMA_CPP[asked.kind] else ""
    if asked.split:
        return f"llama-server -m TARGET.gguf {asked.split}{target}{_LLAMA_CPP[asked.kind]}{window}{draft}"
    # llama.cpp's default puts layers on one card after the other, which is as slow as one card.
    split = _SPLIT_TENSORS if len(asked.targets) > 1 else ""
    return f"llama-server -m TARGET.gguf{target}{split}{_LLAMA_CPP[asked.kind]}{window}{draft}"


def _llama_devices(asked: _Asked, option: str, devices: Sequence[PlacedDevice], names: Sequence[str]) -> str:
    """Return the option that names a model's devices; without it llama.cpp uses all GPUs, in the driver's order.

    Names in capitals stand for those that `llama-server --list-devices` prints.
    """
    if devices[0].kind == "cpu":
        return f" {option} none" * bool(asked.num_gpus)
    are_different = any(one != devices[0] for one in devices)
    is_needed = len(devices) < asked.num_gpus or asked.targets[0].kind == "cpu" or are_different
    return f" {option} {','.join(names).upper()}" * is_needed


_IK_LLAMA_CPP: Final[Mapping[str, str]] = {
    "autoregressive": "",
    "speculative": " -md DRAFT.gguf --draft-p-min 0 --draft-max",  # by default it stops below a confidence of 0.75
    "prompt_lookup": " --spec-type ngram-simple --draft-max",
}


def _ik_llama_cpp(asked: _Asked) -> str | None:
    """Return the command of the fork, whose options have other names; None unless both models are on the only GPU."""
    is_on_all = len(asked.targets) == asked.num_gpus and asked.is_together
    if asked.kind not in _IK_LLAMA_CPP or not is_on_all or len(asked.targets) > 1 or not asked.are_gpus(IK):
        return None
    return f"llama-server -m TARGET.gguf -ngl 99{_IK_LLAMA_CPP[asked.kind]}" + f" {asked.window}" * bool(asked.window)


_VLLM: Final[Mapping[str, Mapping[str, str | int]]] = {
    "autoregressive": {},
    "speculative": {"method": "draft_model", "model": "DRAFT"},
    "eagle3": {"method": "eagle3", "model": "DRAFT"},
    "medusa": {"method": "medusa", "model": "DRAFT"},
    "mtp": {"method": "mtp"},
    ASSISTANT: {"method": "mtp", "model": "DRAFT"},
    "block": {"method": "dflash", "model": "DRAFT"},
    "prompt_lookup": {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 4},  # the minimum defaults to max
}


def _vllm(asked: _Asked) -> str | None:
    if asked.kind not in _VLLM or not asked.is_served:
        return None
    config = json.dumps({**_VLLM[asked.kind], "num_speculative_tokens": asked.window})
    options = f" --speculative-config '{config}'" if asked.window else ""
    return f"vllm serve TARGET{_parallel(asked, '--tensor-parallel-size', ' --enable-expert-parallel')}{options}"


_SGLANG: Final[Mapping[str, str]] = {
    "autoregressive": "",
    "speculative": " --speculative-algorithm STANDALONE --speculative-draft-model-path DRAFT",
    "eagle3": " --speculative-algorithm EAGLE3 --speculative-draft-model-path DRAFT",
    "mtp": " --speculative-algorithm EAGLE",
    ASSISTANT: " --speculative-algorithm EAGLE --speculative-draft-model-path DRAFT",
    "block": " --speculative-algorithm DFLASH --speculative-draft-model-path DRAFT",
    "prompt_lookup": " --speculative-algorithm NGRAM",
}


def _sglang(asked: _Asked) -> str | None:
    if asked.kind not in _SGLANG or not asked.is_served:
        return None
    chain = f" --speculative-num-steps {asked.window} --speculative-eagle-topk 1"
    if asked.kind == "prompt_lookup":  # for n-grams, SGLang overrides the top k by the breadth
        chain = " --speculative-ngram-min-bfs-breadth 1 --speculative-ngram-max-bfs-breadth 1"
    elif asked.kind == "block":  # one step drafts the whole window
        chain = ""
    window = f"{chain} --speculative-num-draft-tokens {asked.window + 1}" if asked.window else ""
    parallel = _parallel(asked, "--tp", f" --ep {len(asked.targets)}")
    return f"python -m sglang.launch_server --model-path TARGET{parallel}{_SGLANG[asked.kind]}{window}"


def _mlx_lm(asked: _Asked) -> str | None:
    if (
        asked.kind not in ("autoregressive", "speculative")
        or not asked.are_gpus("mlx", lambda one: one.maker == "Apple")
        or len(asked.targets) > 1
    ):
        return None
    options = f" --draft-model DRAFT --num-draft-tokens {asked.window}" if asked.window else ""
    return f"mlx_lm.generate --model TARGET{options}" if asked.is_together else None


def _transformers(asked: _Asked) -> str | None:
    options = {
        "autoregressive": "",
        "speculative": ", assistant_model=DRAFT",
        "prompt_lookup": f", prompt_lookup_num_tokens={asked.window}",
    }
    kind = "speculative" if asked.kind == ASSISTANT else asked.kind
    if kind not in options or not asked.are_gpus(EAGER) or not asked.is_together:
        return None
    # transformers reads these only from the draft's configuration, whose defaults end a draft at an unsure token.
    window = f"num_assistant_tokens={asked.window}, assistant_confidence_threshold=0"
    configured = f"DRAFT.generation_config.update({window}); " * (kind == "speculative")
    return f"{configured}TARGET.generate(**INPUTS{options[kind]})"


def _openvino(asked: _Asked) -> str | None:
    if any(one.maker != "Intel" for one in asked.devices) or len(asked.targets) > 1:
        return None
    target, draft = asked.targets[0].kind.upper(), asked.drafts[0].kind.upper()
    options = {
        "autoregressive": "",
        "speculative": f', draft_model=openvino_genai.draft_model("DRAFT", "{draft}")',
        "prompt_lookup": ", prompt_lookup=True",
    }
    if asked.kind not in options:
        return None
    window = f", num_assistant_tokens={asked.window}" if asked.window else ""
    window += ", max_ngram_size=4" * (asked.kind == "prompt_lookup")
    return f'openvino_genai.LLMPipeline("TARGET", "{target}"{options[asked.kind]}).generate(PROMPT{window})'


def _parallel(asked: _Asked, option: str, whole_experts: str) -> str:
    """Return the options for how many GPUs share each layer, and to keep experts whole that must not be cut."""
    num = len(asked.targets)
    return f" {option} {num}" + whole_experts * asked.cuts_blocks if num > 1 else ""


_ENGINES: Final[Mapping[str, Callable[[_Asked], str | None]]] = {
    "llama.cpp": _llama_cpp,
    "vllm": _vllm,
    "sglang": _sglang,
    "mlx-lm": _mlx_lm,
    _OPENVINO: _openvino,
    EAGER: _transformers,
    IK: _ik_llama_cpp,
}
