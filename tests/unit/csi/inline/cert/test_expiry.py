"""Metrics of certificates."""

from __future__ import annotations

import math
from pathlib import Path

from tonnage.base.observe import metrics
from tonnage.csi.inline.cert.expiry import OTHER, CertificateExpiry


def count(issuer: str, code: str) -> float:
    return float(metrics.CERTIFICATES_ISSUED.labels(issuer, code)._value.get())


def test_the_first_end_of_the_volumes_that_exist(tmp_path: Path) -> None:
    expiry, issuer = CertificateExpiry(), "expiry-test"
    folders = [tmp_path / name for name in "ab"]
    for folder, end in zip(folders, (100.0, 50.0), strict=True):
        folder.mkdir()
        expiry.issued(issuer, "ok")
        expiry.show(issuer, folder, end, lambda: 10.0)
    assert expiry.seconds(issuer) == 40
    assert f'tonnage_cert_seconds_to_expiry{{issuer="{issuer}"}} 40.0' in metrics.render().decode()
    folders[1].rmdir()
    assert expiry.seconds(issuer) == 90
    folders[0].rmdir()
    assert math.isnan(expiry.seconds(issuer))


def test_names_that_pods_invent_make_no_series() -> None:
    expiry, before = CertificateExpiry(), count(OTHER, "denied")
    expiry.issued("invented", "denied")
    assert count(OTHER, "denied") == before + 1
    for number in range(100):
        expiry.issued(f"many-{number}", "ok")
    assert len(expiry._ends) == 64


def test_renewals_are_counted() -> None:
    expiry = CertificateExpiry()
    before = metrics.CERTIFICATE_RENEWALS._value.get()
    expiry.issued("renewed", "ok")
    expiry.issued("renewed", "ok", is_renewal=True)
    expiry.issued("renewed", "unavailable", is_renewal=True)
    assert metrics.CERTIFICATE_RENEWALS._value.get() == before + 1
