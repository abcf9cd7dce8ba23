"""The parts of a simulated machine, each of use alone in any SimPy program: devices, memory, links, a host."""
