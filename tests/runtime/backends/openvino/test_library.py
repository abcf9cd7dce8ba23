"""What the library does to the process that imports it."""

import subprocess
import sys

_SIGNALLED = """
import gc, os, signal
from runtime.backends.openvino.library import new_core
cores = [new_core(), new_core()]
for core in cores:
    core.get_property("CPU", "FULL_DEVICE_NAME")
del core
while cores:
    del cores[0]
    gc.collect()
signal.signal(signal.SIGINT, lambda *_: print("answered"))
os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_signal_is_answered_after_cores_have_ended_in_the_order_in_which_they_began():
    found = subprocess.run([sys.executable, "-c", _SIGNALLED], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "answered\n"), found.stderr
