"""User turns of training text: continued by the target from openers, or built around passages of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.models.decoder import Decoder
from runtime.models.tokenizer import Tokenizer
from training.data.conversations import Conversation
from training.text.batched_decoding import decode_batch
from training.text.text_recipe import PASSAGE, QUESTION, PassageRecipe, SelfTextRecipe


class OpenedTurns:
    """User turns that the target goes on with after openers."""

    def __init__(self, recipe: SelfTextRecipe, target: Decoder, tokenizer: Tokenizer) -> None:
        self._recipe, self._target, self._tokenizer = recipe, target, tokenizer
        turns = [_user_turn(tokenizer, text) for text in ("7", "9")]
        closing = _common_end(*turns)
        self._openings = {opener: _user_turn(tokenizer, opener)[: -len(closing) or None] for opener in recipe.openers}
        self._end_of_turn = {*target.config.eos_token_ids, *closing[:1]}

    def draw(self, count: int, generator: torch.Generator) -> list[str]:
        """Openers as the target continues them in a user's turn."""
        recipe = self._recipe
        places = torch.randint(len(recipe.openers), (count,), generator=generator).tolist()
        openers = [recipe.openers[place] for place in places]
        openings = [self._openings[opener] for opener in openers]
        continuations = decode_batch(
            self._target,
            openings,
            [recipe.user_temperature] * count,
            top_p=recipe.user_top_p,
            stop_ids=self._end_of_turn,
            max_new_tokens=recipe.max_user_tokens,
            generator=generator,
        )
        turns = []
        for opener, opening, sampled in zip(openers, openings, continuations, strict=True):
            continued = sampled[:-1] if sampled[-1] in self._end_of_turn else sampled
            before = self._tokenizer.decode(opening)
            turns.append((opener + self._tokenizer.decode([*opening, *continued])[len(before) :]).strip())
        return turns


class PassageTurns:
    """Requests about passages: answers of `conversations`, each with the user turn it answered."""

    def __init__(self, recipe: PassageRecipe, tokenizer: Tokenizer, conversations: Sequence[Conversation]) -> None:
        self._recipe, self._tokenizer, self._conversations = recipe, tokenizer, conversations
        prompts = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in ("7", "9")]
        self._around = (len(_common_end(*(prompt[::-1] for prompt in prompts))), len(_common_end(*prompts)))

    def draw(self, count: int, generator: torch.Generator) -> list[str]:
        """Templates filled with passages drawn at random."""
        return [self._turn(generator) for _ in range(count)]

    def _turn(self, generator: torch.Generator) -> str:
        template = self._recipe.templates[_below(len(self._recipe.templates), generator)]
        least, most = self._recipe.passage_tokens
        wanted = least + _below(most - least + 1, generator)
        chosen: list[Conversation] = []
        while sum(len(row.answer) for row in chosen) < wanted:
            chosen.append(self._conversations[_below(len(self._conversations), generator)])
        asked = chosen[_below(len(chosen), generator)].prompt
        question = self._text(asked[self._around[0] : len(asked) - self._around[1]])
        passages = "\n\n".join(self._text(row.answer) for row in chosen)
        return template.replace(QUESTION, question).replace(PASSAGE, passages)

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids).strip()


def _user_turn(tokenizer: Tokenizer, content: str) -> list[int]:
    return tokenizer.encode_chat([{"role": "user", "content": content}], add_generation_prompt=False)


def _below(limit: int, generator: torch.Generator) -> int:
    return int(torch.randint(limit, (), generator=generator))


def _common_end(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """What two lists of ids have in common at their ends."""
    count = 0
    while count < min(len(first), len(second)) and first[-1 - count] == second[-1 - count]:
        count += 1
    return list(first[len(first) - count :])
