"""Lanes that OpenVINO computes: a decoder as compiled segments, without torch."""
