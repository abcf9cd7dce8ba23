"""How much would have to be accepted for our synchronous speculation to be as fast as the fastest other engine.

    python benchmarks/peers_break_even.py --profile profile.yaml --record record.npz

The profile is one of compiled lanes in int8 on the cores of benchmarks/results/peers.json (`mirrorsd calibrate --device
openvino:CPU --dtype int8`), and the record one of the same form. How many times as fast as our own plain decoding the
other engine is comes from peers.json, where both took turns; what speculation gains at which rate of accepted tokens,
the same at every place, from the profile. Writes benchmarks/results/peers-break-even.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from _common import RESULTS, arguments, formats, least_rate, measured_pair, read_result, write_result
from _results_page import is_ours

from decoding.record import AcceptanceRecord
from hwprofiles.profile import Profile, load_profile
from mirrorsd.model_pair import find_pair
from planner.search.search import Candidate, search
from planner.search.space import SearchSpace
from sim.acceptance.assumed import Bernoulli
from sim.acceptance.rates import Texts

RESULT = RESULTS / "peers-break-even.json"
OURS: Final = "plain, openvino, int8"
_HALVINGS: Final = 10
_SPACE: Final = SearchSpace(methods=("autoregressive", "speculative"))


def main() -> None:
    """Find the rate and write the result file."""
    options = arguments(__doc__, out=RESULT, profile=[Path], record=[Path]).parse_args()
    profile, record = load_profile(options.profile), AcceptanceRecord.load(options.record)
    contenders = read_result(RESULTS / "peers.json")["contenders"]
    ours_s = contenders[OURS]["tpot_s"]["median"]
    others_s = {name: one["tpot_s"]["median"] for name, one in contenders.items() if not is_ours(name)}
    fastest = min(others_s, key=lambda name: others_s[name])
    wanted = ours_s / others_s[fastest]
    found = break_even(profile, wanted)
    gained, best = _gain(profile, record)
    content = {
        "profile": {"dtype": profile.dtype, "lanes": [lane.name for lane in profile.lanes], "host": profile.host},
        "measured": measured_pair(find_pair(record.target, drafter=record.drafter)),
        "formats": formats(),
        "engine": fastest,
        "times_our_plain": wanted,
        "needed": found,
        "gain_if_all_is_accepted": gain(profile, 1.0)[0],
        "recorded": {
            "gain": gained,
            "schedule": best.schedule.model_dump(mode="json", exclude_defaults=True),
            "mean_acceptance_length": best.prediction.mean_acceptance_length,
        },
    }
    print(content)
    write_result(options.out, content)


def break_even(profile: Profile, wanted: float) -> dict[str, Any] | None:
    """The lowest rate at which some schedule has so many times the speed of plain decoding; None if none has."""
    if gain(profile, 1.0)[0] < wanted:
        return None
    rate = least_rate(lambda rate: gain(profile, rate)[0] >= wanted, halvings=_HALVINGS)
    gained, best = gain(profile, rate)
    return {
        "rate": rate,
        "gain": gained,
        "schedule": best.schedule.model_dump(mode="json", exclude_defaults=True),
        "mean_acceptance_length": best.prediction.mean_acceptance_length,
    }


def gain(profile: Profile, rate: float) -> tuple[float, Candidate]:
    """The most that speculation gains over plain decoding at a rate, and how."""
    texts = Texts(num_texts=16).within(profile)
    return _gain(profile, Bernoulli(rate, texts=texts, feature_rates=rate).record)


def _gain(profile: Profile, record: AcceptanceRecord) -> tuple[float, Candidate]:
    found = search(_SPACE, profile, record)
    plain, best = found.best(method="autoregressive"), found.best_drafting()
    if plain is None or best is None:
        raise SystemExit("the profile has no draft model")
    return plain.tpot_s / best.tpot_s, best


if __name__ == "__main__":
    main()
