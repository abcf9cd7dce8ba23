"""A tiny target in a Hugging Face folder, and a token file of its own greedy answers."""

import gzip
import json

import pytest
import torch

from runtime.models.decoder import load_decoder
from runtime.models.model_folder import NamedFolder
from tests.runtime import plain
from tests.runtime.tiny_folders import save_target
from tests.tiny_models import EOS, VOCAB_SIZE, tiny_target
from training.data.states import TargetStates, read_conversations

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


def assert_learns(task, parameters, *, frozen, batch, num_steps, rate, share):
    """Training lowers the loss to a share of what it was, and moves none of the `frozen` module's weights."""
    before = {name: weight.clone() for name, weight in frozen.named_parameters() if not weight.requires_grad}
    assert before
    optimizer = torch.optim.AdamW([weight for weight in parameters if weight.requires_grad], lr=rate)
    losses = []
    for step in range(num_steps):
        loss, _ = task.loss(batch, torch.Generator().manual_seed(step % 2))
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < share * losses[0]
    after = dict(frozen.named_parameters())
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())


@pytest.fixture(scope="session")
def target_folder(tmp_path_factory):
    return save_target(tiny_target(), tmp_path_factory.mktemp("models") / "tiny-target", torch.bfloat16)


@pytest.fixture(scope="session")
def named_target(target_folder):
    return NamedFolder("tiny-target", target_folder)


@pytest.fixture(scope="session")
def target(target_folder):
    return load_decoder(target_folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def data_path(target, tmp_path_factory):
    """Fourteen answers of 6 to 10 tokens; every third was sampled, so to speak."""
    generator = torch.Generator().manual_seed(0)
    path = tmp_path_factory.mktemp("data") / "answers.jsonl.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for index in range(NUM_CONVERSATIONS):
            prompt = torch.randint(VOCAB_SIZE, (2 + index % 4,), generator=generator).tolist()
            answer = plain.continue_text(target, prompt, 6 + index % 5)
            row = {"prompt": prompt, "answer": answer, "temperature": 0.8 if index % 3 == 2 else 0}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture
def states(request, target, data_path, tmp_path):
    """States of all conversations after the last layer, and after those that a module names as `STATE_LAYERS`."""
    layers = getattr(request.module, "STATE_LAYERS", ())
    conversations = read_conversations([data_path], vocab_size=VOCAB_SIZE)
    states = TargetStates(tmp_path / "states", target, conversations, layers)
    states.fill()
    return states
