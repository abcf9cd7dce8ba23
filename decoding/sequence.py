"""The committed tokens of one sequence, and when it stops. Real runs and the recording of acceptance use it."""

from collections.abc import Collection, Sequence

from decoding.messages import Verdict, Window


class DecodedSequence:
    """Committed tokens of one request; it ends with an EOS token or at exactly `max_new_tokens`.

    `tokens` holds the new tokens only. The last committed token (at first the prompt's last) is not in the KV cache
    yet: it is the first row of the next verification.
    """

    def __init__(self, prompt: Sequence[int], *, max_new_tokens: int, eos_token_ids: Collection[int]) -> None:
        if not prompt or max_new_tokens < 1:
            msg = f"a sequence needs a prompt and max_new_tokens >= 1, not {len(prompt)} tokens and {max_new_tokens}"
            raise ValueError(msg)
        self.prompt = tuple(prompt)
        self.tokens: list[int] = []
        self.max_new_tokens = max_new_tokens
        self._eos = frozenset(eos_token_ids)
        self.unfinished = True

    def commit(self, window: Window, verdict: Verdict) -> tuple[int, ...]:
        """Append the accepted tokens and the target's next one, cut after EOS and at `max_new_tokens`; return them."""
        accepted = (*window.accepted(verdict), verdict.next_token)
        appended = accepted[: self.max_new_tokens - len(self.tokens)]
        if not self._eos.isdisjoint(appended):
            end = next(place for place, token in enumerate(appended, 1) if token in self._eos)
            appended = appended[:end]
            self.unfinished = False
        self.tokens += appended
        if len(self.tokens) == self.max_new_tokens:
            self.unfinished = False
        return appended
