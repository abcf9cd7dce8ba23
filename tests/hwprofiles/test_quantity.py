"""Numbers as people write them come to the same as in SI units, and a unit of something else is refused."""

from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decoding.errors import ConfigError
from decoding.yaml_file import parse_yaml
from hwprofiles.quantity import number_in
from hwprofiles.sheets import DeviceSheet

WRITTEN = [
    ("memory_bytes_per_s", "80 GB/s", 8e10),
    ("memory_bytes_per_s", "80GBps", 8e10),
    ("memory_bytes_per_s", "80e9", 8e10),
    ("bytes_per_s", "1.8 TB/s", 1.8e12),
    ("memory_bytes", "24 gb", 2.4e10),
    ("memory_bytes", "16 GiB", 2**34),
    ("bf16_flops", "1.25e14", 1.25e14),
    ("bf16_flops", "125 TFLOPS", 1.25e14),
    ("int8_ops", "48 TOPS", 4.8e13),
    ("dispatch_s", "3 us", 3e-6),
    ("dispatch_s", "0.5ms", 5e-4),
    ("latency_s", "2", 2.0),
    ("power_w", "350 W", 350.0),
    ("memory_efficiency", "80 %", 0.8),
    ("memory_efficiency", ".5", 0.5),
    ("bf16_flops", "5. TFLOPS", 5e12),
    ("transfers_per_s", "8.533 GT/s", 8.533e9),
]
WRONG = [
    ("memory_bytes_per_s", "24 GB"),
    ("memory_bytes", "80 GB/s"),
    ("memory_bytes_per_s", "80 Gb/s"),
    ("bytes_per_s", "120 gbps"),
    ("bytes_per_s", "40 gb/s"),
    ("power_w", "20 ms"),
    ("dispatch_s", "2 %"),
    ("dispatch_s", "3 W"),
    ("dispatch_s", "3 Ms"),
    ("memory_efficiency", "3 GB"),
    ("bf16_flops", "many"),
    ("bf16_flops", ""),
    ("bf16_flops", "nan"),
    ("latency_s", "1 2"),
    ("latency_s", "."),
    ("latency_s", ". s"),
]


@pytest.mark.parametrize(("field", "text", "value"), WRITTEN)
def test_a_number_is_read_in_the_unit_it_is_written_in(field, text, value):
    assert number_in(text, field) == pytest.approx(value)


@pytest.mark.parametrize(("field", "text"), WRONG)
def test_a_unit_of_something_else_is_refused(field, text):
    with pytest.raises(ValueError, match="a number such as"):
        number_in(text, field)


def test_a_long_text_that_is_no_number_is_refused_at_once():
    times_s = []
    for _ in range(5):
        start_s = thread_time()
        with pytest.raises(ValueError, match="a number such as"):
            number_in("1" * 396 + " a b", "latency_s")
        times_s.append(thread_time() - start_s)
    assert min(times_s) < 0.02, "cubic time takes 150 ms, that by the square of its length 1 ms"


@pytest.mark.parametrize(("field", "text"), [one for one in WRONG if one[0] in DeviceSheet.model_fields])
@pytest.mark.parametrize(
    "spelt",
    ["{}", "{{value: {}, status: guessed, source: me}}", "{{value: 1, span: [1, {}], status: guessed, source: me}}"],
)
def test_a_unit_of_something_else_is_refused_wherever_it_stands(field, text, spelt):
    data = f"name: mine\nkind: gpu\n{field}: {spelt}".format(repr(text))
    with pytest.raises(ConfigError, match=rf"mine.yaml:3:\d+: {field}.*a number such as"):
        parse_yaml(data, DeviceSheet, source="mine.yaml")


@given(st.floats(1e-12, 1e20), st.sampled_from(sorted({field for field, _, _ in WRITTEN})))
def test_a_bare_number_is_itself(value, field):
    assert number_in(repr(value), field) == value


def test_a_sheet_does_and_its_spans_too():
    rate = "{value: 80 GB/s, span: [70 GB/s, 90e9], status: measured, source: me}"
    text = f"name: mine\nkind: gpu\nmemory_bytes_per_s: {rate}"
    found = parse_yaml(text, DeviceSheet, source="mine.yaml").memory_bytes_per_s
    assert (found.lowest, found.value, found.highest) == (7e10, 8e10, 9e10)
