"""The decoding algorithms, independent of simulation and hardware: methods, schedules, verdicts, traces, metrics."""
