"""Maps the many names of devices, engines and weights to one key each, so that measurements can be compared."""

import re
from typing import Any, Final, Literal, get_args

Maker = Literal["NVIDIA", "AMD", "Apple", "Intel", "Qualcomm", "AWS", "Google", "Habana", "Tenstorrent"]
"""Makers of accelerators; Habana is Intel's maker of Gaudi."""

_DEVICE: Final = re.compile(
    r"rtx ?pro ?\d{4}|rtx ?\d{4}(?: ?sff)? ?ada|rtx ?a?\d{4}(?: ?ti)?(?: ?super)?|cmp \d+hx|gtx ?\d{4}(?: ?ti)?"
    r"|gb\d{2,3}|dgx spark|gh200|jetson (?:agx )?\w+(?: nano)?"
    r"|rx ?\d{4} ?(?:xtx|xt|gre)?|rx ?[45][5-9]0\b|steam deck|r9700|w[67][89]00|radeon (?:pro )?vii|mi\d{2,3}x?"
    r"|(?:80[56]0s|[678][689]0m)\b|strix halo|\bm\d(?: (?:ultra|max|pro))?\b"
    r"|arc (?:pro )?[ab]\d{2,3}\w?|(?<!apple )\b(?:rtx ?)?[abhlptv]\d{1,3}s?\b|titan \w+"
)
_SAME: Final = {"dgxspark": "gb10", "strixhalo": "8060s", "h800": "h100", "a800": "a100"}
_FAMILIES: Final = {
    "hopper": re.compile(r"h[12]00|h20|gh200"),
    "blackwell": re.compile(r"rtx50(?!00)|rtxpro|gb10|g?b[23]00|jetson\w*thor"),
    "ada": re.compile(r"rtx40(?!00$)|rtx\d+(?:sff)?ada|l4|l20$"),
    "ampere": re.compile(r"rtx30|(?:rtx)?a(?:2|10|16|30|40|[14]00|[1-6]\d00)$|jetson|cmp1"),
    "turing": re.compile(r"rtx20|gtx16|(?:quadro)?rtx[4-8]000$|titanrtx|cmp[345]|t(?:4|[4-6]\d0|1000)$"),
    "volta": re.compile(r"v100|titanv"),
    "pascal": re.compile(r"p(?:4|6|40|100|400|6[02]0)$|gtx10"),
    "rdna4": re.compile(r"rx90|r9700"),
    "rdna3": re.compile(r"rx7|w7|80[56]0s|[78][689]0m"),
    "rdna2": re.compile(r"rx6|w68|6[68]0m|steamdeck"),
    "cdna": re.compile(r"mi[123]\d\dx?$"),
    "gcn": re.compile(r"mi[568]\d$|radeon"),
    "polaris": re.compile(r"rx[45]\d0$"),
    "apple": re.compile(r"m\d"),
    "arc": re.compile(r"arc"),
}
_ENGINES: Final = {
    "ik_llama.cpp": re.compile(r"ik[_-]llama"),
    "mlx": re.compile(r"mlx"),
    "llama.cpp": re.compile(r"llama[.-]?(?:cpp|server)|llamacpp|lm ?studio|ollama|koboldcpp"),
    "vllm": re.compile(r"\bvllm\b|sglang|tensorrt|trt-?llm|lmdeploy|aphrodite|nano-?pearl"),
    "transformers": re.compile(
        r"^(?!.*(?:compile|gpt-?fast|graph|\btgi\b|text-generation|\.js|rest api))"
        r"(?:(?:the )?(?:spec-?bench|medusa|hydra|eagle|kangaroo|layer ?skip"
        r"|lookahead|rest|pld|hass|amusd|pearl)|.*\b(?:transformers|hugging ?face|hf|(?:py)?torch|eager"
        r"|(?:authors?'?s?|papers?'?s?|official|reference|research) (?:own )?(?:code|implementation)))-?\d?\b"
    ),
}
"""Engines by their names; names of papers' own code mean transformers, since most of it is eager PyTorch."""
_BACKENDS: Final = ("cuda", "rocm", "hip", "vulkan", "metal", "sycl", "cpu")
_USUAL_BACKENDS: Final = {
    "apple": "metal", "cdna": "rocm", "gcn": "rocm", "rdna2": "vulkan", "rdna3": "vulkan", "rdna4": "vulkan",
    "polaris": "vulkan", "arc": "vulkan",
}  # fmt: skip
_DATA_CENTRE: Final = re.compile(
    r"[abh]\d{3}|gh200|gb[23]00|h20$|l(?:4|20|40s?)$|a(?:2|10|30|40)$|v100|t4$|mi[23]\d\dx?$"
)
_BEFORE_VOLTA: Final = re.compile(
    r"NVIDIA.* (?:[KMP]\d|GTX? (?:10\d\d|[4-9]\d\d)|GTX Titan|Titan (?:X|Z|Black))", re.IGNORECASE
)
"""Names of Kepler, Maxwell and Pascal cards, most of which have no curves and so no family."""
_WEIGHTS: Final = {
    "codebook": re.compile(r"(?:^|[^a-z])iq[123]"),
    "low": re.compile(r"q[123]_|^q[123]\b|[23]-?bit"),
    "fp4": re.compile(r"nvfp4|mxfp4|fp4"),
    "four": re.compile(r"q[456]_|^q[456]\b|iq4|[456]-?bit|w4|awq|gptq|int4|nf4"),
    "eight": re.compile(r"q8|int8|fp8|8-?bit|w8|mxfp8"),
    "sixteen": re.compile(r"bf16|fp?16|fp?32"),
}


def is_of_data_centre(key: str) -> bool:
    """Return whether a `device_key` is that of a data-centre GPU."""
    return _DATA_CENTRE.match(key) is not None


def facts_in(name: str) -> dict[str, Any]:
    """Return the fields of a data sheet that a device's name implies; fields in the sheet win.

    No other code infers facts from a device's name.
    """
    chip, maker = device_key(name), next((one for one in get_args(Maker) if name.startswith(one)), None)
    return {
        "maker": "Habana" if name.startswith("Intel Gaudi") else maker,
        "chip": chip,
        "before_volta": family_of(chip) == "pascal" or _BEFORE_VOLTA.search(name) is not None,
    }


def device_key(label: str) -> str:
    """Return the key of a label's device in public curves; export variants have the key of the original chip."""
    key = device_in(label)
    return _SAME.get(key, key)


def device_in(label: str) -> str:
    """Return the device's name in a label, letters and digits only; the whole label if no known name is in it."""
    found = _DEVICE.search(label.lower().replace("-", " "))
    return re.sub(r"[^a-z0-9]", "", found.group() if found else label.lower())


def family_of(key: str, engine: str = "", weights: str = "") -> str | None:
    """Return the architecture of a device, None if not known; devices of one family have similar curves.

    With MLX and quantised weights, M1 and M2 are a family of their own: they read the weights once per row, an M3 or
    later once for several rows (mlx#3764).
    """
    family = next((family for family, known in _FAMILIES.items() if known.match(key)), None)
    reads_again = engine == "mlx" and weights not in ("", "sixteen") and key[:2] in ("m1", "m2")
    return "apple m1 m2" if family == "apple" and reads_again else family


def engine_of(label: str) -> str | None:
    """Return the engine that a label names; None if it names none."""
    return next((engine for engine, known in _ENGINES.items() if known.search(label.lower())), None)


def backend_of(label: str, key: str) -> str:
    """Return the back end that a label names, else the usual one of the device with that key."""
    told = next((one for one in _BACKENDS if one in label.lower()), None)
    family = family_of(key)
    usual = _USUAL_BACKENDS.get(family or "", "cuda")
    return "rocm" if told == "hip" else told or usual


def weights_class(name: str) -> str | None:
    """Return the class of a weight format: formats of one class have similar kernels; None if not known."""
    return next((kind for kind, known in _WEIGHTS.items() if known.search(name.lower())), None)
