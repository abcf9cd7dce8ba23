"""The OpenVINO back end: a decoder as compiled segments of layers, without torch."""
