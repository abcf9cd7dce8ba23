"""The blocks of the page on Python, pasted one after the other, on little of everything."""

import re
import subprocess
import sys

from tests.journeys.printed import ROOT
from tests.journeys.walk import FEW_SIZES

PAGE = ROOT / "docs" / "python.md"
QUICK = f"""
{FEW_SIZES}
from functools import partial
import mirrorsd
from mirrorsd.lane_choice import device_lanes
from calibrate.recording.reach import Reach
from mirrorsd.text_engine import Decoding

mirrorsd.bundled_prompts = lambda known=mirrorsd.bundled_prompts: known()[:2]
mirrorsd.find_pair = partial(mirrorsd.find_pair, heads=("prompt-lookup", "smollm2-135m-medusa"))
one_lane = device_lanes("openvino:CPU", "bfloat16")[:1]
mirrorsd.calibrate = partial(mirrorsd.calibrate, time_s=3.0, max_window=4, lanes=one_lane)
mirrorsd.record = partial(mirrorsd.record, reach=Reach(max_new_tokens=8, max_window=4))
mirrorsd.generate = partial(mirrorsd.generate, decoding=Decoding(max_new_tokens=24))
"""


def test_all_blocks_run_in_their_order(walk):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    session = walk.folder / "session.py"
    session.write_text("\n".join([QUICK, *blocks]))
    ran = subprocess.run(
        [sys.executable, session], cwd=walk.folder, env=walk.environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert len(blocks) > 5
