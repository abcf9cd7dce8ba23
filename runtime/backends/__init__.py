"""What a lane asks of its device: the seam, and what implements it.

backend.py   the seam: segments of layers over rows, heads, texts that are rolled back, branches of them
eager.py     torch as it comes: the reference, and what runs everywhere
by_torch.py  what it shares with captured graphs
openvino/    compiled graphs, without torch
cuda/        captured graphs of torch
devices.py   which devices there are, how they are named, and why one is missing
opening.py   from a device's name to its back end, for who has torch
self_test.py whether a row says the same in any company
"""
