"""The blocks of the page on Python, pasted one after the other, on little of everything."""

import re
import subprocess
import sys

from tests.journeys.printed import ROOT
from tests.journeys.walk import MINE

PAGE = ROOT / "docs" / "python.md"
QUICK = f"""
from functools import partial
import mirrorsd
from mirrorsd.lane_choice import device_lanes
from calibrate.recording.reach import Reach
from decoding.errors import ProfileError
from mirrorsd.text_engine import Decoding
from tests.journeys import quick

quick.few_sizes()
find_pair = mirrorsd.find_pair
mirrorsd.find_pair = lambda _, **options: find_pair({MINE!r}, drafter={MINE!r}, heads=("prompt-lookup",), **options)
mirrorsd.bundled_prompts = lambda known=mirrorsd.bundled_prompts: known()[:2]
one_lane = device_lanes("openvino:CPU", "bfloat16")[:1]
measure = partial(mirrorsd.calibrate, time_s=3.0, max_window=8, lanes=one_lane)


def calibrate(*given, **options):
    for _ in range(3):
        try:
            return measure(*given, **options)
        except ProfileError as error:  # a pass over each part is not enough on a machine that does other work
            noise = error
    raise noise


mirrorsd.calibrate = calibrate
mirrorsd.record = partial(mirrorsd.record, reach=Reach(max_new_tokens=8, max_window=4))
mirrorsd.generate = partial(mirrorsd.generate, target={MINE!r}, decoding=Decoding(max_new_tokens=24))
"""
"""The pair is the user's model, which drafts for itself."""


def test_all_blocks_run_in_their_order(walk):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    session = walk.folder / "session.py"
    session.write_text("\n".join([QUICK, *blocks]))
    ran = subprocess.run(
        [sys.executable, session], cwd=walk.folder, env=walk.environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(blocks) > 5
