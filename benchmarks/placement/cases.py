"""The cases on nodes that have agents: what was measured upstream, a storm of two volumes a pod, a pace, full speed.

Upstream's figures: csi-driver-host-path, docs/storage-capacity-tracking.md; 10 and 100 nodes that are full when all
pods run, and volumes that fit exactly. The number of pods is what one machine can do.

The Go stack's driver, as pinned, answers a full node with Unknown around OutOfRange. The sidecar then tries the same
node again and again, and the pod is stuck: an error of the example driver, beside which nothing of ours is praised.
"""

from __future__ import annotations

from benchmarks.box.box import in_process
from benchmarks.box.burst import all_running
from benchmarks.figure import Figure
from benchmarks.placement import turns
from benchmarks.placement.agents import simulated
from benchmarks.placement.turns import BARE, OURS_BARE, Turn, Work, rows, side_by_side

NODES = 10


async def ten(*, quick: bool) -> list[Figure]:
    """10 nodes, 1000 pods of 1Gi; they are full then."""
    count = 100 if quick else 1000
    return await _reference(Work(count), room=f"{count // NODES}Gi")


async def exact(*, quick: bool) -> list[Figure]:
    """10 nodes, 200 pods of 5Gi that fit exactly."""
    count = 100 if quick else 200
    return await _reference(Work(count, sizes=("5Gi",)), room=f"{5 * count // NODES}Gi")


async def _reference(work: Work, *, room: str) -> list[Figure]:
    peer, stock, ours = turns.go(room), turns.tonnage(room, ours=False), turns.tonnage(room, ours=True)
    found = await side_by_side((BARE, peer, stock, OURS_BARE, ours), work, nodes=NODES, raised=True)
    return [
        *rows(ours, found, beside=OURS_BARE, promised=True),
        *rows(stock, found, beside=BARE, promised=True),
        *rows(peer, found, beside=BARE, promised=False),
    ]


async def hundred(*, quick: bool) -> list[Figure]:
    """100 nodes whose agents share a process, 2000 pods of 1Gi; they are full then."""
    nodes, count = (20, 200) if quick else (100, 2000)
    room = f"{count // nodes}Gi"
    stock = Turn("tonnage, stock scheduler", lambda plane, informers: simulated(plane, room))
    ours = Turn("tonnage, our scheduler", stock.opened, ours=True)
    found = await side_by_side((BARE, stock, OURS_BARE, ours), Work(count), nodes=nodes, raised=True)
    return [*rows(ours, found, beside=OURS_BARE, promised=True), *rows(stock, found, beside=BARE, promised=True)]


async def storm(*, quick: bool) -> list[Figure]:
    """10 nodes, 200 pods with two volumes of 5Gi each; all together they take 95 % of the room."""
    count, room = (95, "100Gi") if quick else (200, "211Gi")
    peer, stock, ours = turns.go(room), turns.tonnage(room, ours=False), turns.tonnage(room, ours=True)
    work = Work(count, sizes=("5Gi", "5Gi"), patience=90)
    found = await side_by_side((peer, stock, ours), work, nodes=NODES, raised=True)
    shown = [(ours, True), (stock, True), (peer, False)]
    return [row for turn, promised in shown for row in rows(turn, found, beside=peer, promised=promised)]


async def paced(*, quick: bool) -> list[Figure]:
    """10 nodes, 600 pods at 10 a second with raised client limits: what volumes add to the time."""
    peer, stock, ours = turns.go(), turns.tonnage(ours=False), turns.tonnage(ours=True)
    work = Work(100 if quick else 600, pace=10)
    found = await side_by_side((OURS_BARE, ours, BARE, stock, peer), work, nodes=NODES, raised=True)
    seconds = {title: outcome.seconds for title, outcome in found.items()}
    return [
        _time(ours, OURS_BARE, seconds, at_most=1.05),
        _time(stock, BARE, seconds),
        _time(peer, BARE, seconds),
        *(Figure(f"{turn.title}: time to Running, p99", found[turn.title].p99, "s") for turn in (ours, stock, peer)),
    ]


def _time(turn: Turn, bare: Turn, seconds: dict[str, float], *, at_most: float | None = None) -> Figure:
    what = f"{turn.title}: from the first pod to the last that runs"
    return Figure(what, seconds[turn.title], "s", seconds[bare.title], "no volumes:", at_most=at_most)


async def fast(*, quick: bool) -> list[Figure]:
    """10 nodes, 300 pods as fast as it goes.

    With default limits the controller manager makes 20 claims a second for pods' volumes, and so nobody is faster.
    """
    work = Work(80 if quick else 300)
    peer, ours = turns.go(), turns.tonnage(ours=True)
    limited = await side_by_side((OURS_BARE, peer, ours), work, nodes=NODES, raised=False)
    raised = await side_by_side((OURS_BARE, peer, ours), work, nodes=NODES, raised=True)
    rate, slow, go = raised[ours.title].rate, limited[peer.title].rate, raised[peer.title].rate
    bare = raised[OURS_BARE.title].rate
    return [
        Figure("ours at raised limits", rate, "pods/s", slow, "Go at default limits:", at_least=10),
        Figure("ours at raised limits", rate, "pods/s", go, "Go at raised limits:", at_least=2),
        Figure("ours at raised limits", rate, "pods/s", bare, "no volumes:"),
        Figure("ours at default limits", limited[ours.title].rate, "pods/s", slow, "Go at default limits:"),
        *(Figure(f"ours at {name} limits: time to Running, p99", found[ours.title].p99, "s")
          for name, found in (("default", limited), ("raised", raised))),
    ]  # fmt: skip


async def box(*, quick: bool) -> list[Figure]:
    """The box with 10 nodes over memory pools, 1000 pods of 1Gi as fast as it goes."""
    count = 300 if quick else 1000
    async with in_process(nodes=NODES, pool="fake,size=100Gi") as made:
        seconds = await all_running(made, count, "1Gi")
    return [Figure("in the box", count / seconds, "pods/s", at_least=100)]
