"""What a lane asks of its device: the seam (`backend.py`), and what is behind it (`eager.py`, `openvino/`, `cuda/`)."""
