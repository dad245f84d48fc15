"""Users, and how a rejection names them."""

from __future__ import annotations

import pytest

from tonnage_box.apiserver.request.user import ADMIN, ApiUser, Attributes, account_name, denied, split_account


def test_service_accounts_are_users() -> None:
    assert split_account(account_name("ns", "robot")) == ("ns", "robot")
    for other in ("jane", "system:serviceaccount:ns", "system:serviceaccount:ns:", "system:serviceaccount:a:b:c"):
        assert split_account(other) is None


def test_empty_facts_are_left_out() -> None:
    assert ApiUser("jane").info() == {"username": "jane"}
    assert ADMIN.info() == {"username": "kubernetes-admin", "groups": ["system:masters", "system:authenticated"]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            Attributes("get", "apps", "deployments", "scale", "ns", "d"),
            'deployments.apps "d" is forbidden: User "<b>" cannot get resource "deployments/scale" in API group "apps" '
            'in the namespace "ns"',
        ),
        (Attributes("get", path="/x"), 'forbidden: User "<b>" cannot get path "/x"'),
    ],
)
def test_rejections_are_in_the_words_of_kubernetes(asked: Attributes, message: str) -> None:
    error = denied(ApiUser("<b>"), asked)
    assert (error.code, error.reason) == (403, "Forbidden")
    assert error.message == message.replace("<", "&lt;").replace(">", "&gt;")
