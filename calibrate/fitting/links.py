"""What messages cost on their way from the target's lane to the draft's."""

from __future__ import annotations

from typing import Final

from hwprofiles.profile import BYTES_PER_CANDIDATE, LinkProfile

MESSAGE_ROWS: Final = 5
MESSAGE_CANDIDATES: Final = 9
_LEAST_WIDTH: Final = 1024
"""A smaller payload would cost too little to measure the bandwidth."""
_HOPS: Final = 2
"""An exit message goes from the target's lane to the driver, and from there to the draft's."""


def message_width(feature_width: int) -> int:
    """Numbers per row of the message that measures the bandwidth."""
    return max(feature_width, _LEAST_WIDTH)


def link_of(pair: tuple[str, str], hop_s: tuple[float, float], feature_width: int, source: str) -> LinkProfile:
    """The link of two lanes, from what one hop of a message costs without features and with them."""
    plain_s, loaded_s = hop_s
    plain_bytes = MESSAGE_ROWS * MESSAGE_CANDIDATES * BYTES_PER_CANDIDATE
    features_bytes = MESSAGE_ROWS * message_width(feature_width) * 2
    byte_s = max(loaded_s - plain_s, 1e-3 * plain_s, 1e-9) / features_bytes
    return LinkProfile(
        lanes=pair,
        latency_s=_HOPS * max(0.0, plain_s - plain_bytes * byte_s),
        bytes_per_s=1 / (_HOPS * byte_s),
        source=source,
    )
