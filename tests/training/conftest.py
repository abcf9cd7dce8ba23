"""A tiny target in a Hugging Face folder, and a token file of its own greedy answers."""

import gzip
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.models.decoder import Decoder, causal_mask
from runtime.models.weights import load_decoder
from runtime.storage.decoder_names import decoder_tensors
from tests.tiny_models import EOS, VOCAB_SIZE, tiny_target
from training.data.conversations import read_conversations
from training.data.states import TargetStates

NUM_CONVERSATIONS = 14


class NumberTokenizer:
    """Text is numbers with spaces between them; 1 opens a turn, 2 ends one, 3 opens an answer."""

    def encode_chat(self, messages, *, add_generation_prompt=True):
        ids = []
        for message in messages:
            ids += [1, *map(int, message["content"].split()), EOS, 4]
        return [*ids, 1, 3] if add_generation_prompt else ids

    def decode(self, ids, *, skip_special_tokens=True):
        return " ".join(str(token) for token in ids if token not in (1, EOS) or not skip_special_tokens)


def write_hf_folder(target: Decoder, folder: Path) -> Path:
    """Write a decoder the way Hugging Face lays it out, in bfloat16."""
    config = target.config
    folder.mkdir(parents=True)
    raw = {
        "architectures": [config.architecture],
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "max_position_embeddings": config.max_position,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tie_embeddings,
        "eos_token_id": EOS,
    }
    (folder / "config.json").write_text(json.dumps(raw))
    weights = dict(target.named_parameters())
    width = {"q": config.num_heads * config.head_dim, "kv": config.num_kv_heads * config.head_dim}
    sizes = {"qkv": [width["q"], width["kv"], width["kv"]], "gate_up": [config.intermediate_size] * 2}
    tensors = {}
    for ours, theirs in decoder_tensors(config).items():
        part = ours.split(".")[-2] if ours.endswith(".weight") else ours
        pieces = weights[ours].split(sizes[part]) if len(theirs) > 1 else [weights[ours]]
        for name, piece in zip(theirs, pieces, strict=True):
            tensors[name] = piece.detach().to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors")
    return folder


def greedy_answer(target: Decoder, prompt: list[int], length: int) -> list[int]:
    ids = list(prompt)
    for _ in range(length):
        x = target.run_layers(
            target.embedding(torch.tensor([ids])),
            0,
            target.config.num_layers,
            positions=torch.arange(len(ids)),
            mask=causal_mask(len(ids), target.embedding.weight.dtype),
        )
        ids.append(int(target.logits(x)[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_folder(tiny_target(), tmp_path_factory.mktemp("models") / "tiny-target")


@pytest.fixture(scope="session")
def target(target_folder: Path) -> Decoder:
    return load_decoder(target_folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def data_path(target: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen answers of 6 to 10 tokens; every third was sampled, so to speak."""
    generator = torch.Generator().manual_seed(0)
    path = tmp_path_factory.mktemp("data") / "answers.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for index in range(NUM_CONVERSATIONS):
            prompt = torch.randint(VOCAB_SIZE, (2 + index % 4,), generator=generator).tolist()
            answer = greedy_answer(target, prompt, 6 + index % 5)
            row = {"prompt": prompt, "answer": answer, "temperature": 0.8 if index % 3 == 2 else 0}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def states(target: Decoder, data_path: Path, tmp_path: Path) -> TargetStates:
    """Last states of all conversations; a module that needs those of more layers has its own."""
    states = TargetStates(tmp_path / "states", target, read_conversations([data_path], vocab_size=VOCAB_SIZE), ())
    states.fill()
    return states
