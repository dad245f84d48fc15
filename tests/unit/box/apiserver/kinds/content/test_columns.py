"""Columns of contents: the same as those of the CRD."""

from __future__ import annotations

from datetime import UTC, datetime

import yaml

from tonnage.tools.ops.install.manifests import template
from tonnage_box.apiserver.kinds.content import columns as content


def test_they_show_what_it_is_made_of() -> None:
    obj = {"metadata": {"name": "c"}, "spec": {"url": {"url": "https://h/x"}}}
    cells = {column.name: column.cell(obj, datetime.now(UTC)) for column in content.CONTENT}
    assert (cells["Name"], cells["URL"], cells["Image"], cells["Bucket"]) == ("c", "https://h/x", "", "")


def test_they_are_those_of_the_crd() -> None:
    crd = yaml.safe_load(template("content-crd.yaml").replace("${labels}", "a: b"))
    shown = [column["name"] for column in crd["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert ["Name", *shown] == [column.name for column in content.CONTENT]
