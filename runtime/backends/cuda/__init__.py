"""A decoder as captured graphs over static buffers, replayed on a GPU.

capture.py            what a GPU captures and replays, and the CPU stand-in calls directly; memory that is pinned
static_memory.py      which static shapes there are; keys and values, with the calls that were captured on them
captured_calls.py     layers and heads on static inputs
captured_backend.py   the seam
"""
