"""Families of devices by the names that people write."""

import pytest

from hwprofiles.curves.names import device_key, family_of


@pytest.mark.parametrize(
    ("label", "family"),
    [
        ("NVIDIA RTX 5000 Ada Generation", "ada"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "ada"),
        ("Quadro RTX 4000", "turing"),
        ("RTX 4090", "ada"),
        ("RTX 5060 Ti", "blackwell"),
        ("NVIDIA L20", "ada"),
        ("NVIDIA Jetson AGX Thor", "blackwell"),
        ("NVIDIA Jetson AGX Orin", "ampere"),
        ("RTX A400", "ampere"),
        ("Quadro P600", "pascal"),
        ("p4d.24xlarge", None),
        ("t4g.xlarge", None),
        ("Apple A16", None),
        ("A17 Pro", None),
        ("Kunlun P800", None),
    ],
)
def test_a_device_counts_to_its_own_family(label, family):
    assert family_of(device_key(label)) == family
