"""The contract of inline drivers shows no secret."""

from tonnage.csi.inline.base import InlinePod, SourceNeeds


def test_a_pods_tokens_and_secrets_are_not_in_its_repr() -> None:
    pod = InlinePod("default", "web", "uid-1", tokens={"": "token-text"}, secrets={"password": "secret-text"})
    assert "web" in repr(pod)
    assert "token-text" not in repr(pod)
    assert "secret-text" not in repr(pod)


def test_a_source_takes_no_attribute_that_it_does_not_name() -> None:
    assert not SourceNeeds().accepts("anything")
