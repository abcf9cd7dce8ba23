"""What happens: decoding methods as generators, schedules, verdicts, traces and their metrics."""
