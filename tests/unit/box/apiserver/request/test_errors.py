"""Status objects of errors."""

from __future__ import annotations

from tests.unit.box.apiserver.api import Api

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


async def test_faults_and_warnings_of_an_answer_are_few(api: Api) -> None:
    containers = [{"name": f"C{n}", "image": "i"} for n in range(3000)]
    answer = await api.create(PODS, {"metadata": {"name": "x"}, "spec": {"containers": containers}}, want=422)
    assert len(answer["details"]["causes"]) == 1001
    assert answer["details"]["causes"][-1]["message"] == "and 2000 more faults"
    odd = {"metadata": {"name": "x"}} | {f"u{n}": "v" for n in range(3000)}
    made = await api.send("POST", MAPS, odd)
    assert made.status == 201
    assert len(made.headers["Warning"]) < 5000
