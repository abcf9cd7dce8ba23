"""Links: messages of one direction pass one after the other, and arrive a latency after their last byte has left."""

from costs.crossings import Hop
from costs.ticks import one_in_ticks


class Link:
    """One direction of a link, by the name of its track in a trace; the other one is another `Link`.

    A message occupies it for its bytes over the bandwidth, after the messages sent before (until `free_s`), and is on
    its way for the latency, in which others may follow.
    """

    def __init__(self, hop: Hop) -> None:
        self.name, self._latency_s, self._bytes_per_s = hop
        self.free_s = 0.0
        self._occupied_s: dict[float, float] = {}  # by bytes: few sizes are sent again and again

    def arrival_s(self, num_bytes: float, sent_s: float) -> float:
        """Send a message at a time that is known already, after all others, and return when it arrives."""
        occupied_s = self._occupied_s.get(num_bytes)
        if occupied_s is None:
            occupied_s = self._occupied_s[num_bytes] = one_in_ticks(num_bytes / self._bytes_per_s)
        self.free_s = max(self.free_s, sent_s) + occupied_s
        return self.free_s + self._latency_s


Path = tuple[Link, ...]
"""Links in a row; each passes a message on when it has all of it. Without links nothing is crossed."""


def arrival_s(path: Path, num_bytes: float, sent_s: float) -> float:
    """Return when a message arrives that is sent then, on a path on which no other comes in between."""
    for link in path:
        sent_s = link.arrival_s(num_bytes, sent_s)
    return sent_s
