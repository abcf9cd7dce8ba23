"""A decoder as captured graphs over static buffers, replayed on a GPU.

capture.py            what a GPU captures and replays, and the CPU stand-in calls directly
pinned.py             pinned memory on its way to the device and back
static_sizes.py       which static shapes there are
static_memory.py      keys and values of sequences, with the calls that were captured on them
captured_calls.py     layers and heads on static inputs
captured_backend.py   the seam
"""
