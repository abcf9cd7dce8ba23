import gc
import weakref

import pytest

from runtime.garbage_collection import no_collection
from runtime.worker.server import leave_imports_alone


class Cycle:
    def __init__(self):
        self.own = self


def test_nothing_is_collected_meanwhile_and_afterwards_all_is_as_before():
    threshold = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with no_collection():
            found = weakref.ref(Cycle())
            _ = [Cycle() for _ in range(100)]
            assert found() is not None
        assert gc.isenabled()
        _ = [Cycle() for _ in range(100)]
        gc.collect()
        assert found() is None
    finally:
        gc.set_threshold(*threshold)


def test_it_stays_off_where_it_was_and_comes_back_after_an_error():
    with pytest.raises(ValueError, match="why"), no_collection():
        raise ValueError("why")
    assert gc.isenabled()
    with no_collection():
        with no_collection():
            pass
        assert not gc.isenabled()


def test_what_is_there_is_looked_at_no_more():
    there = [[] for _ in range(2000)]
    assert len(gc.get_objects()) > len(there)
    leave_imports_alone()
    assert len(gc.get_objects()) < 1000
