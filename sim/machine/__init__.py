"""The parts of a machine room, each of use alone in any SimPy program: devices, memory, links, collectives, a host."""
