"""Back ends: the interface (`backend.py`), and its implementations (`eager.py` in torch, `openvino/`, `cuda/`)."""
