"""What each row sees, against a walk up the tree."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime.backends.backend import tree_rows


@st.composite
def parent_lists(draw):
    return tuple(draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(1, 64))))


@given(parent_lists(), st.integers(0, 5))
def test_a_node_sees_the_text_its_ancestors_and_itself(parents, context):
    rows = tree_rows(parents)
    mask = rows.mask(context)
    assert mask.shape == (len(parents) + 1, context + len(parents) + 1)
    assert mask.dtype == np.float32
    for node in range(-1, len(parents)):
        path = [node]
        while path[-1] != -1:
            path.append(parents[path[-1]])
        seen = {*range(context), *[context + 1 + each for each in path]}
        expected = [0.0 if slot in seen else float("-inf") for slot in range(mask.shape[1])]
        assert mask[node + 1].tolist() == expected
        assert rows.depths[node + 1] == len(path) - 1
