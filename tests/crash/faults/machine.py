"""What a driver must do with any calls, as a model: which volumes and snapshots there are, what is in them, where they are
shown. Knows neither gRPC nor pools."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tonnage.csi.errors import Code

MI = 1024**2


@dataclass
class Vol:
    """A volume. data: what a pod wrote last, "" for nothing yet. origin: what it was made from. targets: where it is
    shown, and whether read-only there."""

    size: int
    block: bool = False
    data: str = ""
    origin: str = ""
    staged: bool = False
    targets: dict[str, bool] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """Whether it must not be deleted."""
        return self.staged or bool(self.targets)


@dataclass(frozen=True)
class Snap:
    """A snapshot and what was in the volume."""

    volume: str
    size: int
    block: bool
    data: str


@dataclass
class Model:
    """What there is. total: bytes of the pool. shares: whether a volume in use can be copied in any case. grows:
    whether a file system can grow while it is mounted."""

    total: int
    shares: bool
    grows: bool
    volumes: dict[str, Vol] = field(default_factory=dict)
    snapshots: dict[str, Snap] = field(default_factory=dict)
    inline: dict[str, int] = field(default_factory=dict)
    """Bytes of the inline volumes."""

    @property
    def free(self) -> int:
        """Bytes that are not promised."""
        volumes, snapshots = self.volumes.values(), self.snapshots.values()
        promised = (*(v.size for v in volumes), *(s.size for s in snapshots), *self.inline.values())
        return self.total - sum(promised)

    def origin(self, source: str) -> Vol | Snap | None:
        """What a volume is made from: `volume/NAME` or `snapshot/NAME`."""
        kind, _, name = source.partition("/")
        return self.snapshots.get(name) if kind == "snapshot" else self.volumes.get(name)


@dataclass(frozen=True)
class Call:
    """A call. method: as in CSI, in short. name: of the volume or snapshot. size, block: what is asked for. other: the
    volume that a snapshot is of, the source of a clone, the target of a publication."""

    method: str
    name: str
    size: int = 0
    block: bool = False
    other: str = ""
    readonly: bool = False

    @property
    def touched(self) -> frozenset[str]:
        """What it reads or changes."""
        names = {f"snapshot/{self.name}" if "snapshot" in self.method else f"volume/{self.name}"}
        if self.method == "snapshot":
            names.add(f"volume/{self.other}")
        if self.method == "clone":
            names.add(self.other)
        return frozenset(names)

    def undone_by(self) -> Call:
        """The call that takes it back; itself where nothing does."""
        undo = {"create": "delete", "clone": "delete", "stage": "unstage", "snapshot": "delete_snapshot"}
        undo["inline"] = "end_inline"
        if self.method == "publish":
            return Call("unpublish", self.name, other=self.other)
        return Call(undo[self.method], self.name) if self.method in undo else self

    def grows(self, model: Model) -> int:
        """Bytes that it takes from the pool if it succeeds."""
        if self.method in ("create", "clone") and self.name not in model.volumes:
            return self.size
        if self.method == "inline" and self.name not in model.inline:
            return self.size
        if self.method == "snapshot" and self.name not in model.snapshots:
            return model.volumes[self.other].size if self.other in model.volumes else 0
        if self.method == "expand" and self.name in model.volumes:
            return max(0, self.size - model.volumes[self.name].size)
        return 0

    def expected(self, model: Model) -> frozenset[Code]:
        """The codes that may be answered when nothing fails; room is looked at by the caller."""
        return frozenset(getattr(self, f"_expect_{self.method}")(model))

    def apply(self, model: Model) -> None:
        """What is so when it has succeeded."""
        getattr(self, f"_apply_{self.method}")(model)

    def _expect_create(self, model: Model) -> Iterator[Code]:
        found = model.volumes.get(self.name)
        fits = found is None or (found.size >= self.size and found.block == self.block and not found.origin)
        yield Code.OK if fits else Code.ALREADY_EXISTS

    def _apply_create(self, model: Model) -> None:
        model.volumes.setdefault(self.name, Vol(self.size, self.block))

    def _expect_clone(self, model: Model) -> Iterator[Code]:
        origin, found = model.origin(self.other), model.volumes.get(self.name)
        if found is not None:
            same = found.origin == self.other and found.size >= self.size and found.block == self.block
            yield Code.OK if same else Code.ALREADY_EXISTS
        elif origin is None:
            yield Code.NOT_FOUND
        else:
            yield Code.OK
            if isinstance(origin, Vol) and origin.block and origin.is_used and not model.shares:
                yield Code.FAILED_PRECONDITION

    def _apply_clone(self, model: Model) -> None:
        if self.name not in model.volumes:
            origin = model.origin(self.other)
            assert origin is not None
            model.volumes[self.name] = Vol(self.size, self.block, origin.data, self.other)

    def _expect_delete(self, model: Model) -> Iterator[Code]:
        found = model.volumes.get(self.name)
        yield Code.FAILED_PRECONDITION if found is not None and found.is_used else Code.OK

    def _apply_delete(self, model: Model) -> None:
        model.volumes.pop(self.name, None)

    def _expect_stage(self, model: Model) -> Iterator[Code]:
        yield Code.OK if self.name in model.volumes else Code.NOT_FOUND

    def _apply_stage(self, model: Model) -> None:
        model.volumes[self.name].staged = True

    def _expect_unstage(self, model: Model) -> Iterator[Code]:
        yield Code.OK

    def _apply_unstage(self, model: Model) -> None:
        if self.name in model.volumes:
            model.volumes[self.name].staged = False

    def _expect_publish(self, model: Model) -> Iterator[Code]:
        found = model.volumes.get(self.name)
        if found is None:
            yield Code.NOT_FOUND
        elif not found.staged:
            yield Code.FAILED_PRECONDITION
        else:
            shown = found.targets.get(self.other, self.readonly)
            yield Code.OK if shown == self.readonly else Code.ALREADY_EXISTS

    def _apply_publish(self, model: Model) -> None:
        model.volumes[self.name].targets[self.other] = self.readonly

    def _expect_unpublish(self, model: Model) -> Iterator[Code]:
        yield Code.OK

    def _apply_unpublish(self, model: Model) -> None:
        if self.name in model.volumes:
            model.volumes[self.name].targets.pop(self.other, None)

    def _expect_inline(self, model: Model) -> Iterator[Code]:
        yield Code.OK

    def _apply_inline(self, model: Model) -> None:
        model.inline[self.name] = self.size

    def _expect_end_inline(self, model: Model) -> Iterator[Code]:
        yield Code.OK

    def _apply_end_inline(self, model: Model) -> None:
        model.inline.pop(self.name, None)

    def _expect_snapshot(self, model: Model) -> Iterator[Code]:
        found, volume = model.snapshots.get(self.name), model.volumes.get(self.other)
        if found is not None:
            yield Code.OK if found.volume == self.other else Code.ALREADY_EXISTS
        elif volume is None:
            yield Code.NOT_FOUND
        else:
            yield Code.OK
            if volume.block and volume.is_used and not model.shares:
                yield Code.FAILED_PRECONDITION

    def _apply_snapshot(self, model: Model) -> None:
        volume = model.volumes.get(self.other)
        if self.name not in model.snapshots:
            assert volume is not None
            model.snapshots[self.name] = Snap(self.other, volume.size, volume.block, volume.data)

    def _expect_delete_snapshot(self, model: Model) -> Iterator[Code]:
        yield Code.OK

    def _apply_delete_snapshot(self, model: Model) -> None:
        model.snapshots.pop(self.name, None)

    def _expect_expand(self, model: Model) -> Iterator[Code]:
        yield Code.OK if self.name in model.volumes else Code.NOT_FOUND

    def _apply_expand(self, model: Model) -> None:
        volume = model.volumes[self.name]
        volume.size = max(volume.size, self.size)

    def _expect_grow(self, model: Model) -> Iterator[Code]:
        found = model.volumes.get(self.name)
        yield Code.OK if found is not None and found.staged else Code.NOT_FOUND
        if found is not None and found.staged and not model.grows:
            yield Code.FAILED_PRECONDITION

    def _apply_grow(self, model: Model) -> None:
        """Sizes were promised before."""

    def _expect_stats(self, model: Model) -> Iterator[Code]:
        found = model.volumes.get(self.name)
        yield Code.OK if found is not None and found.staged else Code.NOT_FOUND

    def _apply_stats(self, model: Model) -> None:
        """It only looks."""

    def _expect_get(self, model: Model) -> Iterator[Code]:
        yield Code.OK if self.name in model.volumes else Code.NOT_FOUND

    def _apply_get(self, model: Model) -> None:
        """It only looks."""
