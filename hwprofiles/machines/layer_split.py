"""A lane of several devices that hold different layers of one target, as llama.cpp's `-ngl` and `-ts` split them."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

_BESIDE, _NEXT, _EXPERTS = " + ", "/", "experts"
_ON_CARD: Final = re.compile(r"(.+)\((\d+)\)")
_ON_CPU: Final = re.compile(rf"(.+)\((?:(\d+)(?:, |(?=\))))?(?:(\d+) {_EXPERTS})?\)")


class LayerSplit(NamedTuple):
    """The first layers of a target on a CPU, the following ones on one card after the other.

    The CPU may also hold the experts of some of the cards' layers (llama.cpp's `--n-cpu-moe`).

    Attributes:
        layers: number of layers on each card, fastest card first (CUDA's usual order); the last has the `lm_head` too.
        cpu: name of the CPU; None if it holds nothing.
        num_left: number of layers on the CPU.
        num_apart: number of the cards' layers whose experts are on the CPU: the first layers with experts.
    """

    layers: Mapping[str, int]
    cpu: str | None = None
    num_left: int = 0
    num_apart: int = 0

    @classmethod
    def of(cls, lane: str) -> Self | None:
        """Return the split that a lane's name describes; None for the name of any other lane."""
        if not any(sign in lane for sign in (_BESIDE, _NEXT)):
            return None
        cards, _, rest = lane.partition(_BESIDE)
        on_cards = [_ON_CARD.fullmatch(one) for one in cards.split(_NEXT)]
        layers = {one[1]: int(one[2]) for one in on_cards if one is not None}
        if len(layers) < len(on_cards):
            return None
        on_cpu = _ON_CPU.fullmatch(rest)
        return cls(layers) if on_cpu is None else cls(layers, on_cpu[1], int(on_cpu[2] or 0), int(on_cpu[3] or 0))

    @property
    def lane(self) -> str:
        """The lane's name: `gpu(45) + cpu(35)`, `gpu0(30)/gpu1(6) + cpu(24 experts)`."""
        held = []
        if self.num_left > 0:
            held.append(str(self.num_left))
        if self.num_apart > 0:
            held.append(f"{self.num_apart} {_EXPERTS}")
        on_cpu = f"{_BESIDE}{self.cpu}({', '.join(held)})" if held else ""
        return _NEXT.join(f"{card}({count})" for card, count in self.layers.items()) + on_cpu

    @property
    def devices(self) -> tuple[str, ...]:
        """The cards, and the CPU if it holds anything."""
        return (*self.layers, *filter(None, [self.cpu]))

    @property
    def last(self) -> str:
        """The card with the last layers, the `lm_head` and the target's draft heads."""
        return [*self.layers][-1]

    @property
    def num_layers(self) -> int:
        """Layers of the target."""
        return self.num_left + sum(self.layers.values())

    def experts_on(self, dense_layers: int = 0) -> dict[str, int]:
        """Return for each device the number of layers whose experts it holds; the first `dense_layers` have none."""
        first, found = self.num_left, {}
        stop = max(first, dense_layers) + self.num_apart
        for card, count in self.layers.items():
            first += count
            found[card] = max(0, min(count, first - stop))
        rest = self.num_layers - dense_layers - sum(found.values())
        return found | ({self.cpu: rest} if self.cpu else {})

    def apart_on(self, dense_layers: int = 0) -> dict[str, int]:
        """Return for each card the number of its layers whose experts are on the CPU."""
        together = self._replace(num_apart=0).experts_on(dense_layers)
        return {
            card: together[card] - count for card, count in self.experts_on(dense_layers).items() if card != self.cpu
        }

    def share_of(self, device: str) -> str:
        """Say which part of the target a device holds."""
        count, held = self.layers.get(device, self.num_left), []
        if count > 0:
            held.append(f"{count} of {self.num_layers} layers")
        if device == self.cpu and self.num_apart > 0:
            held.append(f"the experts of {self.num_apart}")
        return " and ".join(held)

    def options(self, dense_layers: int = 0, num_more: int = 0) -> str:
        """Return llama.cpp's options for this split.

        `-ngl` counts the `lm_head` as a layer, which goes to a card first (#18148). `--n-cpu-moe` counts from the first
        layer, dense ones included. `num_more`: layers of a draft head in the target's file, on the last card.
        """
        *others, last = self.layers.values()
        counts: Sequence[int] = [*others, last + num_more + 1]
        shares = f" -ts {','.join(map(str, counts))}" if others else ""
        experts = f" --n-cpu-moe {max(self.num_left, dense_layers) + self.num_apart}" if self.num_apart else ""
        return f"-ngl {sum(counts)}{shares}{experts}"
