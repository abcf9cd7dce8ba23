"""A lane of several devices that have different layers of a target, as llama.cpp's `-ngl` and `-ts` split them."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Self

_BESIDE, _NEXT, _EXPERTS = " + ", "/", "experts"
_ON_CARD: Final = re.compile(r"(.+)\((\d+)\)")
_ON_CPU: Final = re.compile(rf"(.+)\((?:(\d+)(?:, |(?=\))))?(?:(\d+) {_EXPERTS})?\)")


class LayerSplit(NamedTuple):
    """Layers of a target on a CPU, and after them those on cards, one card's after the other's.

    Of a mixture the experts of some of the cards' layers may be on the CPU, too (llama.cpp's `--n-cpu-moe`).

    Attributes:
        layers: how many are on each card, the fastest first, as CUDA mostly has them; the last has the `lm_head`, too.
        cpu: what has the others; None where there are none.
        num_left: layers on the CPU.
        num_apart: layers on cards whose experts are on the CPU: the first that have any.
    """

    layers: Mapping[str, int]
    cpu: str | None = None
    num_left: int = 0
    num_apart: int = 0

    @classmethod
    def of(cls, lane: str) -> Self | None:
        """Return the split of a lane of that name; None for other lanes, whose names have no such signs."""
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
        """The name of the lane: `gpu(45) + cpu(35)`, `gpu0(30)/gpu1(6) + cpu(24 experts)`."""
        left = [str(self.num_left)] * (self.num_left > 0) + [f"{self.num_apart} {_EXPERTS}"] * (self.num_apart > 0)
        on_cpu = f"{_BESIDE}{self.cpu}({', '.join(left)})" if left else ""
        return _NEXT.join(f"{card}({count})" for card, count in self.layers.items()) + on_cpu

    @property
    def devices(self) -> tuple[str, ...]:
        """The cards, and the CPU if it has anything."""
        return (*self.layers, *filter(None, [self.cpu]))

    @property
    def last(self) -> str:
        """The card with the last layers, the `lm_head` and what heads of the target there are."""
        return [*self.layers][-1]

    @property
    def num_layers(self) -> int:
        """Layers of the target."""
        return self.num_left + sum(self.layers.values())

    def experts_on(self, dense_layers: int = 0) -> dict[str, int]:
        """Return of how many layers each device has the experts; the target's first `dense_layers` have none."""
        first, found = self.num_left, {}
        stop = max(first, dense_layers) + self.num_apart
        for card, count in self.layers.items():
            first += count
            found[card] = max(0, min(count, first - stop))
        rest = self.num_layers - dense_layers - sum(found.values())
        return found | ({self.cpu: rest} if self.cpu else {})

    def apart_on(self, dense_layers: int = 0) -> dict[str, int]:
        """Return the layers of each card whose experts are elsewhere."""
        together = self._replace(num_apart=0).experts_on(dense_layers)
        return {
            card: together[card] - count for card, count in self.experts_on(dense_layers).items() if card != self.cpu
        }

    def share_of(self, device: str) -> str:
        """Return in words what a device has of the target."""
        count = self.layers.get(device, self.num_left)
        told = [f"{count} of {self.num_layers} layers"] * (count > 0)
        return " and ".join(told + [f"the experts of {self.num_apart}"] * (device == self.cpu and self.num_apart > 0))

    def options(self, dense_layers: int = 0, num_more: int = 0) -> str:
        """Return what llama.cpp is told; it counts the `lm_head` as a layer, and the first that a card gets (#18148).

        Of the first layers whose experts are to be on the CPU it counts those that have none, too. `num_more` counts
        blocks of a head that are in the target's file, on the last card.
        """
        *others, last = self.layers.values()
        counts: Sequence[int] = [*others, last + num_more + 1]
        shares = f" -ts {','.join(map(str, counts))}" if others else ""
        experts = f" --n-cpu-moe {max(self.num_left, dense_layers) + self.num_apart}" if self.num_apart else ""
        return f"-ngl {sum(counts)}{shares}{experts}"
