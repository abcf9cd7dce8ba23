"""The blocks of the page on Python, pasted one after the other into one session; measuring is made quick."""

import re
import subprocess
import sys

from tests.journeys.printed import ROOT

PAGE = ROOT / "docs" / "python.md"
QUICK = """
from functools import partial
import mirrorsd
from mirrorsd.lane_choice import device_lanes
from mirrorsd.record_pair import Reach

mirrorsd.bundled_prompts = lambda known=mirrorsd.bundled_prompts: known()[:2]
mirrorsd.find_pair = partial(mirrorsd.find_pair, heads=("prompt-lookup", "smollm2-135m-medusa"))
one_lane = device_lanes("openvino:CPU", "bfloat16")[:1]
mirrorsd.calibrate = partial(mirrorsd.calibrate, time_s=3.0, max_window=4, lanes=one_lane)
mirrorsd.record = partial(mirrorsd.record, reach=Reach(max_new_tokens=8, max_window=4))
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
