"""Scheduling policies to compare: the scoring of nodes, and whether assumed claims count."""

from __future__ import annotations

from dataclasses import dataclass

from tonnage.base.errors import InvalidError
from tonnage.scheduler.plugins.storage_scoring import ScoringStrategy


@dataclass(frozen=True)
class Policy:
    """tracked: whether the scheduler subtracts assumed claims from published capacity; kube-scheduler does not."""

    name: str
    strategy: ScoringStrategy = ScoringStrategy.LEAST_ALLOCATED
    tracked: bool = True


POLICIES = {strategy.value: Policy(strategy.value, strategy) for strategy in ScoringStrategy}
POLICIES["untracked"] = Policy("untracked", tracked=False)
DEFAULT = ScoringStrategy.LEAST_ALLOCATED.value


def policies(given: list[str]) -> list[Policy]:
    """The policies of these names (each may be several with commas), each once.

    Raises: InvalidError for an unknown one.
    """
    wanted = dict.fromkeys(name for text in given for name in text.split(",")) or {DEFAULT: None}
    if unknown := [name for name in wanted if name not in POLICIES]:
        raise InvalidError(f"there is no policy {unknown[0]!r}; there are {', '.join(POLICIES)}")
    return [POLICIES[name] for name in wanted]
