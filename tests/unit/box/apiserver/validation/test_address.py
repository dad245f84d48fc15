"""Services, routes and policies: good ones pass, faults are named as Kubernetes names them."""

from __future__ import annotations

import pytest

from tonnage_box.apiserver.validation import address as network


@pytest.mark.parametrize("name", ["http", "a", "8080a", "a-b", "x" * 15])
def test_names_of_ports(name: str) -> None:
    assert network.port_name(name) == ()


@pytest.mark.parametrize("name", ["", "8080", "-a", "a-", "a--b", "A", "x" * 16, "a\n"])
def test_what_is_no_name_of_a_port(name: str) -> None:
    assert network.port_name(name)
