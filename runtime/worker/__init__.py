"""The process of a lane: serves requests, loads models, runs their operations and times their parts."""
