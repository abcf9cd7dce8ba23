"""Lanes that OpenVINO computes: a decoder as compiled segments of static shapes."""
