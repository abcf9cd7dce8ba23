"""The OpenVINO back end, without torch: segments of a decoder's layers are compiled graphs."""
