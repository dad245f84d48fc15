"""Metrics of certificates: what was issued, and when the first of each issuer's certificates ends.

Used by the sources of all driver names of a process. A volume counts for as long as its folder exists.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tonnage.base.observe import metrics

_MOST_ISSUERS = 64
OTHER = "other"
"""Label of an issuer that has issued nothing here: pods may name any."""


@dataclass
class CertificateExpiry:
    """Ends of the certificates that are shown, by the folder of their volumes."""

    _ends: dict[str, dict[Path, tuple[float, Callable[[], float]]]] = field(default_factory=dict)

    def issued(self, issuer: str, code: str, *, is_renewal: bool = False) -> None:
        """Count an answer of an issuer. code: ok, denied or unavailable."""
        if code == "ok" and issuer not in self._ends and len(self._ends) < _MOST_ISSUERS:
            self._ends[issuer] = {}
            metrics.CERTIFICATE_EXPIRY.labels(issuer).set_function(lambda: self.seconds(issuer))
        metrics.CERTIFICATES_ISSUED.labels(issuer if issuer in self._ends else OTHER, code).inc()
        if code == "ok" and is_renewal:
            metrics.CERTIFICATE_RENEWALS.inc()

    def show(self, issuer: str, folder: Path, end: float, now: Callable[[], float]) -> None:
        """Record when the certificate of a volume ends, in seconds since 1970."""
        if issuer in self._ends:
            self._ends[issuer][folder] = (end, now)

    def seconds(self, issuer: str) -> float:
        """Return the seconds until the first certificate of an issuer ends, NaN without one."""
        ends = self._ends[issuer]
        for folder in [one for one in ends if not one.exists()]:
            del ends[folder]
        return min((end - now() for end, now in ends.values()), default=math.nan)


EXPIRY = CertificateExpiry()
"""Of this process, as the metrics are."""
