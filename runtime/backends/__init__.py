"""What a lane asks of its device: the seam, and what implements it.

backend.py           the seam: segments of layers over rows, heads, sequences that are rolled back, branches of them
eager.py             torch as it comes: the reference, and what runs everywhere
sequences.py         sequences and branches in memory that calls read and write
openvino/            models compiled by OpenVINO, without torch
cuda/                captured graphs of torch
lane_device.py       a device by its name, and all that this settles
devices.py           which devices there are, and why one is missing
opening.py           from a device to its back end, for who has torch
self_test.py         whether a row says the same in any company
"""
