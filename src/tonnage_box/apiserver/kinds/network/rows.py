"""Rows of discovery.k8s.io and networking.k8s.io, which the box stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tonnage.kubernetes.api import kinds
from tonnage_box.apiserver.kinds.network import defaults
from tonnage_box.apiserver.kinds.shared.late import LateModule
from tonnage_box.apiserver.kinds.shared.rows import ONE_NETWORK, OWN_STATUS, stored
from tonnage_box.apiserver.request.resource import Resource

if TYPE_CHECKING:
    from tonnage_box.apiserver.kinds.network import columns, validation
else:
    columns = LateModule("tonnage_box.apiserver.kinds.network.columns")
    validation = LateModule("tonnage_box.apiserver.kinds.network.validation")

ROWS: tuple[Resource, ...] = (
    stored(
        kinds.ENDPOINT_SLICES,
        ONE_NETWORK,
        validation.endpoint_slice,
        columns.ENDPOINT_SLICE,
        defaults.endpoint_slice,
        generation=1,
        counted_metadata="labels",
    ),
    stored(
        kinds.INGRESSES,
        "nothing here serves its routes",
        validation.ingress,
        columns.INGRESS,
        defaults.ingress,
        generation=1,
        **OWN_STATUS,
    ),
    stored(
        kinds.INGRESS_CLASSES,
        "nothing here serves Ingresses",
        validation.ingress_class,
        columns.INGRESS_CLASS,
        defaults.ingress_class,
        generation=1,
    ),
    stored(
        kinds.NETWORK_POLICIES,
        "containers share the machine's network, and nothing filters it",
        validation.network_policy,
        columns.NETWORK_POLICY,
        defaults.network_policy,
        generation=1,
    ),
)
