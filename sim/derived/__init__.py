"""Derived profiles: the times of machines that nobody measured, from data sheets, public curves and rooflines."""
