"""Approval and status of a CertificateSigningRequest, over the API."""

from __future__ import annotations

from typing import Any

from tests.unit.box.apiserver.api import Api
from tests.unit.box.apiserver.kinds.certificates.test_validation import request

Obj = dict[str, Any]
PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests"


async def asked(api: Api) -> Obj:
    made: Obj = await api.create(PATH, request(username="someone", groups=["else"], uid="u") | {"status": {"x": 1}})
    return made


def with_condition(obj: Obj, kind: str, **status: Any) -> Obj:
    condition = {"type": kind, "status": "True", "reason": "Test", "message": "why"}
    return obj | {"status": {"conditions": [condition], **status}}


async def test_the_server_says_who_asks(api: Api) -> None:
    made = await asked(api)
    assert (made["spec"]["username"], made["spec"]["groups"][0]) == ("kubernetes-admin", "system:masters")
    assert "uid" not in made["spec"]
    assert made["status"] == {}


async def test_approval_changes_conditions_only(api: Api) -> None:
    made = await asked(api)
    wanted = with_condition(made | {"spec": request(usages=["signing"])["spec"]}, "Approved", certificate="eA==")
    approved = await api.put(f"{PATH}/u/approval", wanted)
    assert approved["spec"] == made["spec"]
    [condition] = approved["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("Approved", "Test")
    assert condition["lastUpdateTime"] == condition["lastTransitionTime"]
    assert "certificate" not in approved["status"]


async def test_what_is_approved_cannot_be_denied_or_taken_back(api: Api) -> None:
    approved = await api.put(f"{PATH}/u/approval", with_condition(await asked(api), "Approved"))
    denied = with_condition(approved, "Denied")
    answer = await api.put(f"{PATH}/u/approval", denied, want=422)
    assert "Approved conditions may not be removed" in answer["message"]


async def test_the_signer_writes_the_certificate_and_keeps_the_approval(api: Api) -> None:
    approved = await api.put(f"{PATH}/u/approval", with_condition(await asked(api), "Approved"))
    status = approved["status"] | {"certificate": "eA=="}
    issued = await api.put(f"{PATH}/u/status", approved | {"status": status})
    assert issued["status"]["certificate"] == "eA=="
    assert [c["type"] for c in issued["status"]["conditions"]] == ["Approved"]
    table = await api.get(PATH, accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert table["rows"][0]["cells"][-1] == "Approved,Issued"


async def test_status_cannot_approve(api: Api) -> None:
    made = await asked(api)
    written = await api.put(f"{PATH}/u/status", with_condition(made, "Approved"))
    assert "conditions" not in written.get("status", {})


async def test_approval_is_read_and_patched(api: Api) -> None:
    await asked(api)
    patch = with_condition({}, "Denied")
    assert (await api.patch(f"{PATH}/u/approval", patch))["status"]["conditions"][0]["type"] == "Denied"
    assert (await api.get(f"{PATH}/u/approval"))["metadata"]["name"] == "u"
