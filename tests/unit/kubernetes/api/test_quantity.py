"""Quantities are exact and print as Kubernetes prints them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.base.errors import InvalidError
from tonnage.kubernetes.api.quantity import MAX, NANO, Quantity, from_bytes, to_bytes

# Text and what `kubectl` shows for it after the API server has canonicalised it (apimachinery quantity_test.go's rules).
CANONICAL = [
    ("0", "0"), ("0Gi", "0"), ("1", "1"), ("-1", "-1"), ("1.0", "1"), ("1.5", "1500m"), ("1.5Gi", "1536Mi"),
    ("0.5Gi", "512Mi"), ("1024", "1024"), ("1000", "1k"), ("100000", "100k"), ("1024Mi", "1Gi"), ("1025Ki", "1025Ki"),
    ("30716Mi", "30716Mi"), ("4Gi", "4Gi"), ("0.1Ki", "102400m"), ("512", "512"), ("1e3", "1e3"), ("12e5", "1200e3"),
    ("1E", "1E"), ("1E3", "1e3"), ("1e-3", "1e-3"), ("0.1n", "1n"), ("1500m", "1500m"), ("2000m", "2"), ("1u", "1u"), ("5.", "5"),
    (".5", "500m"), ("+3", "3"), ("1000Ei", "9223372036854775807"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "canonical"), CANONICAL)
def test_canonical(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize("text", ["", " 1", "1 ", "Gi", "1gi", "1K", "1ki", "1e", "1e3Ki", "--1", "1.2.3", "١", "0x10", "1" * 200, "1Gib", "NaN", "inf", "1,5"])  # fmt: skip
def test_rejected(text: str) -> None:
    with pytest.raises(InvalidError, match="quantity"):
        Quantity.parse(text)


@given(st.integers(-MAX, MAX), st.sampled_from(["BinarySI", "DecimalSI", "DecimalExponent"]))
def test_round_trip_is_exact(nanos: int, form: str) -> None:
    text = str(Quantity(nanos, form))
    again = Quantity.parse(text)
    assert again.nanos == nanos
    assert str(Quantity.parse(str(again))) == str(again)  # what was read and printed once stays as it is
    assert form == "BinarySI" or str(again) == text  # 3125000 bytes have no binary suffix: read again they are 3125k


@given(st.integers(0, 2**63 - 1))
def test_bytes_round_trip(number: int) -> None:
    assert to_bytes(from_bytes(number)) == number


@given(st.integers(1, 2**62), st.sampled_from(["", "Ki", "Mi", "Gi", "k", "M", "G"]))
def test_value_rounds_up(number: int, suffix: str) -> None:
    quantity = Quantity.parse(f"{number / 8:.3f}{suffix}" if number < 2**40 else f"{number}{suffix}")
    assert (quantity.value - 1) * NANO < quantity.nanos <= quantity.value * NANO


def test_fraction_of_a_byte_counts_as_one() -> None:
    assert to_bytes("100m") == 1
    assert Quantity.parse("250m").milli == 250


@given(st.integers(0, 10**18 - 1), st.sampled_from(["", *"numkMGTPE", *(f"{letter}i" for letter in "KMGTPE")]))
def test_the_quick_way_and_the_exact_one_agree(number: int, suffix: str) -> None:
    assert Quantity.parse(f"{number}{suffix}") == Quantity.parse(f"+{number}{suffix}")
