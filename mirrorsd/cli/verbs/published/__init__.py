"""Verbs about measurements that others published."""
