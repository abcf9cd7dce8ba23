"""Changes a record as if its draft were better or worse, to find the acceptance that would change the answer.

The draft "learns" or "forgets" a random share of a text's tokens. Random draws are the same for every acceptance, so a
better draft knows every token that a worse one knows. A forgotten token is removed from trees. A learned one becomes
the best child of the node before it, and the tree continues below as recorded for the next position. Exits do not
change: they belong to the target.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from decoding.record import AcceptanceRecord, Ids, PromptRecord

Booleans = NDArray[np.bool_]
_Floats = NDArray[np.float64]

NOWHERE = -1
"""The rank of a token that is not in the tree."""


def token_acceptance(record: AcceptanceRecord) -> float:
    """Return the share of first drafted tokens that are right: the draft model's, else the first chain's or tree's."""

    def first_is_right(prompt: PromptRecord) -> Booleans:
        drafts = next((ids for ids in (prompt.rollouts, *prompt.chain_drafts) if len(ids)), None)
        is_right: Booleans = prompt.tree_ranks[0][:, 0] >= 0 if drafts is None else drafts[:, 0] == prompt.text
        return is_right

    return float(np.concatenate(list(map(first_is_right, record.prompts))).mean())


def whose_tokens(record: AcceptanceRecord) -> str:
    """Return in words which drafter's tokens `token_acceptance` counts."""
    if record.drafter is not None:
        return f"the draft model's {'likeliest ' if record.temperature else ''}tokens"  # not the sampled ones
    drafters = [one.drafter for one in record.chains] + [one.drafter for one in record.trees]
    return f"the tokens of {drafters[0]}" if drafters else "drafted tokens"


class Mixing:
    """Makes the draft of one record better or worse, any number of times; the record is analysed once."""

    def __init__(self, record: AcceptanceRecord) -> None:
        self._record, self._now = record, token_acceptance(record)
        self._drafts = [
            (_drafts_of(one, one.rollouts), _drafts_of(one, one.feature_rollouts)) for one in record.prompts
        ]

    def at(self, acceptance: float, *, seed: int = 0) -> AcceptanceRecord:
        """Return the record with `token_acceptance` moved to `acceptance` (0..1), in expectation over `seed`.

        Rollouts with features, sampled drafts, trees and chains learn or forget the same share of tokens. After a
        learned token the draft continues as recorded for the next position. Instead of a forgotten token it proposes
        its runner-up, and the right token gets a rank among the alternatives that is drawn from the positions at which
        the recorded draft was wrong.
        """
        now, random = self._now, np.random.default_rng(seed)
        share = 0.0
        if acceptance < now:
            share = acceptance / now - 1
        elif now < 1:
            share = (acceptance - now) / (1 - now)
        prompts = (
            _mixed(prompt, *drafts, share, random)
            for prompt, drafts in zip(self._record.prompts, self._drafts, strict=True)
        )
        return replace(self._record, prompts=tuple(prompts))


class _Drafts(NamedTuple):
    """Rollouts from every position, and which tokens are right. N positions, W drafted tokens, F alternatives.

    Attributes:
        drafts_NW, alternatives_NF: as recorded.
        following_NW, token_NW: see `_following`.
        knows_NW: see `_known`.
        wrong_N: what is proposed instead of the right token if that is forgotten.
        usual_ranks: ranks of the right tokens among the alternatives, at positions where the draft was wrong.
    """

    drafts_NW: Ids
    alternatives_NF: Ids
    following_NW: Ids
    token_NW: Ids
    knows_NW: Booleans
    wrong_N: Ids
    usual_ranks: Ids


def _drafts_of(prompt: PromptRecord, drafts_NW: Ids) -> _Drafts | None:
    if not (len(drafts_NW) and len(prompt.rollouts)):
        return None
    text_N, alternatives_NF = prompt.text, prompt.alternatives
    following_NW, token_NW = _following(text_N, drafts_NW.shape[1])
    knows_NW = _known(drafts_NW == following_NW)
    ranks = _ranks(text_N, alternatives_NF)[~knows_NW[:, 0]]
    return _Drafts(
        drafts_NW,
        alternatives_NF,
        following_NW,
        token_NW,
        knows_NW,
        wrong_N=np.where(drafts_NW[:, 0] != text_N, drafts_NW[:, 0], _runner_up(text_N, alternatives_NF)),
        usual_ranks=ranks if len(ranks) else np.array([alternatives_NF.shape[1]], dtype=np.int32),
    )


def _mixed(
    prompt: PromptRecord, plain: _Drafts | None, featured: _Drafts | None, share: float, random: np.random.Generator
) -> PromptRecord:
    """Forget (`share` < 0) or learn (`share` > 0) that share of the prompt's tokens."""
    draws = random.random(len(prompt.text))
    places = random.random(len(prompt.text))
    trees = tuple(mixed_ranks(ranks, share, draws) for ranks in prompt.tree_ranks)
    chains = tuple(_mixed_windows(prompt.text, drafts, share, draws) for drafts in prompt.chain_drafts)
    fields: dict[str, Any] = {}
    if plain is not None:
        is_right_NW = _mixed_places(plain, share, draws)
        fields["rollouts"] = _rollouts(plain, is_right_NW)
        fields["alternatives"] = _alternatives(plain, prompt.text, is_right_NW[:, 0], places)
    if featured is not None:
        fields["feature_rollouts"] = _rollouts(featured, _mixed_places(featured, share, draws))
    for drafts, accepted, refused in (
        (plain, "draft_acceptance", "refused_drafts"),
        (featured, "feature_draft_acceptance", "feature_refused_drafts"),
    ):
        shares = getattr(prompt, accepted)
        if drafts is not None and len(shares):
            fields[accepted] = shares * (1 + share) if share < 0 else 1 - (1 - shares) * (1 - share)
            fields[refused] = _refused(drafts, getattr(prompt, refused))
    return replace(prompt, tree_ranks=trees, chain_drafts=chains, **fields)


def _mixed_places(drafts: _Drafts, share: float, draws_N: _Floats) -> Booleans:
    """Return which tokens the mixed draft knows, [N, W]."""
    draws_NW = np.append(draws_N, 1.0)[np.minimum(drafts.token_NW, len(draws_N))]
    is_right_NW: Booleans = np.where(drafts.knows_NW, draws_NW >= -share, draws_NW < share)
    return is_right_NW & (drafts.token_NW < len(draws_N))


def _refused(drafts: _Drafts, refused_NW: Ids) -> Ids:
    """Return the refused token of each place; where none was recorded, one that differs from the text."""
    wrong_NW = drafts.wrong_N[np.minimum(drafts.token_NW, len(drafts.wrong_N) - 1)]
    filled: Ids = np.where(refused_NW == NOWHERE, wrong_NW, refused_NW)
    return filled


def _rollouts(drafts: _Drafts, is_right_NW: Booleans) -> Ids:
    """Return the rollouts of the mixed draft; a rollout stays as recorded if none of its tokens changes."""
    wrong_NW = drafts.wrong_N[np.minimum(drafts.token_NW, len(drafts.wrong_N) - 1)]
    is_changed_N = (is_right_NW != drafts.knows_NW).any(axis=1)
    mixed: Ids = np.where(is_changed_N[:, None], np.where(is_right_NW, drafts.following_NW, wrong_NW), drafts.drafts_NW)
    return mixed


def _alternatives(drafts: _Drafts, text_N: Ids, is_right_N: Booleans, places_N: _Floats) -> Ids:
    """Return the alternatives of the mixed draft: a learned token comes first, a forgotten one has a usual rank."""
    changed = np.flatnonzero(is_right_N != drafts.knows_NW[:, 0])
    usual = drafts.usual_ranks[(places_N[changed] * len(drafts.usual_ranks)).astype(np.int64)]
    mixed = drafts.alternatives_NF.copy()
    mixed[changed] = _placed(text_N[changed], mixed[changed], np.where(is_right_N[changed], 0, usual))
    return mixed


def _mixed_windows(text_N: Ids, drafts_NW: Ids, share: float, draws_N: _Floats) -> Ids:
    """Return windows of the mixed draft, each as long as it was recorded."""
    following_NW, token_NW = _following(text_N, drafts_NW.shape[1])
    draws_NW = draws_N[np.minimum(token_NW, len(text_N) - 1)]
    was_right_NW = drafts_NW == following_NW
    is_right_NW = np.where(was_right_NW, draws_NW >= -share, draws_NW < share)
    wrong_NW = np.where(was_right_NW, following_NW + 1, drafts_NW)
    mixed: Ids = np.where(drafts_NW == -1, -1, np.where(is_right_NW, following_NW, wrong_NW)).astype(np.int32)
    return mixed


def mixed_ranks(ranks: Ids, share: float, draws: _Floats) -> Ids:
    """Return the ranks, [N, depth], of the nodes along the text in the mixed draft's trees, from those recorded.

    A share of the known tokens is forgotten (`share` < 0), or of the unknown ones learned: the lowest `draws` first.
    """
    num_tokens, depth = ranks.shape
    positions = np.arange(num_tokens)
    begins = np.concatenate([ranks[:, 0], [NOWHERE]])
    mixed = np.full_like(ranks, NOWHERE)
    last = np.full(num_tokens, NOWHERE)
    goes_on = np.ones(num_tokens, dtype=np.bool_)
    is_recorded = np.ones(num_tokens, dtype=np.bool_)
    for place in range(depth):
        token = np.minimum(positions + place, num_tokens)
        draw = np.append(draws, 1.0)[token]
        recorded = np.where(
            is_recorded, ranks[:, place], np.where(begins[token] < 0, NOWHERE, last + 1 + begins[token])
        )
        knows = recorded >= 0
        is_learned = ~knows & (draw < share)
        goes_on &= np.where(knows, draw >= -share, is_learned) & (token < num_tokens)
        last = np.where(is_learned, last + 1, recorded)
        mixed[goes_on, place] = last[goes_on]
        # After a learned token this position's tree has no further nodes: the one of a later position continues.
        is_recorded &= ~is_learned
    return mixed


def _following(text_N: Ids, width: int) -> tuple[Ids, Ids]:
    """Return (the text's token, its index) at every place of every rollout, [N, W]; -2 after the end."""
    token_NW = np.add.outer(np.arange(len(text_N)), np.arange(width)).astype(np.int32)
    padded = np.concatenate([text_N, np.full(width, -2, dtype=np.int32)])
    return padded[token_NW], token_NW


def _known(matches_NW: Booleans) -> Booleans:
    """Return whether the draft proposes the right token given all before it, also after its first mistake."""
    num_tokens, width = matches_NW.shape
    lengths = np.cumprod(matches_NW, axis=1).sum(axis=1)
    known_NW = np.zeros_like(matches_NW)
    for index in reversed(range(num_tokens)):
        length = lengths[index]
        known_NW[index, :length] = True
        onwards = index + length + 1
        if onwards < num_tokens and length + 1 < width:
            known_NW[index, length + 1 :] = known_NW[onwards, : width - length - 1]
    return known_NW


def _runner_up(text_N: Ids, alternatives_NF: Ids) -> Ids:
    """Return the draft's best id that is not the text's; -1 where it has none."""
    is_other_NF = alternatives_NF != text_N[:, None]
    best_N = np.take_along_axis(alternatives_NF, is_other_NF.argmax(axis=1)[:, None], axis=1)[:, 0]
    runner_up: Ids = np.where(is_other_NF.any(axis=1), best_N, -1).astype(np.int32)
    return runner_up


def _ranks(text_N: Ids, alternatives_NF: Ids) -> Ids:
    """Return the rank of the text's token among the alternatives, [N]; F where it is not one of them."""
    is_right_NF = alternatives_NF == text_N[:, None]
    ranks: Ids = np.where(is_right_NF.any(axis=1), is_right_NF.argmax(axis=1), is_right_NF.shape[1]).astype(np.int32)
    return ranks


def _placed(tokens_R: Ids, ids_RF: Ids, ranks_R: Ids) -> Ids:
    """Return `ids_RF` with each row's token moved to its rank, or removed where the rank is beyond the end."""
    rows, width = np.arange(len(ids_RF)), ids_RF.shape[1]
    is_other_RF = ids_RF != tokens_R[:, None]
    place_RF = np.cumsum(is_other_RF, axis=1) - 1
    place_RF += place_RF >= ranks_R[:, None]
    row, column = np.nonzero(is_other_RF & (place_RF < width))
    placed: Ids = np.full_like(ids_RF, -1)
    placed[row, place_RF[row, column]] = ids_RF[row, column]
    is_within = ranks_R < width
    placed[rows[is_within], ranks_R[is_within]] = tokens_R[is_within]
    return placed
