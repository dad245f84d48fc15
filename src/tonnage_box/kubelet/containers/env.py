"""Environment, command and arguments of a container, with $(VAR) expanded as Kubernetes does."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tonnage.base.errors import HostError, InvalidError, NotFoundError, UnsupportedError
from tonnage.host.run import PATH
from tonnage.kubernetes.api.pods import Container, EnvVar, Pod
from tonnage.storage.images.manifest import RunConfig

if TYPE_CHECKING:  # `tonnage down` ends containers, and reads no objects
    from tonnage_box.kubelet.volumes.sources import ObjectSources

_PART = re.compile(r"\$\$|\$\(([^)]*)\)")
_PROGRAMS = ("/usr/", "/bin/", "/sbin/")
"""Folders of the machine that a container has."""
_NAME = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace $(NAME) by its value; an unknown name stays as it is, $$ is a $ that begins nothing."""

    def put(match: re.Match[str]) -> str:
        name = match[1]
        return "$" if name is None else values.get(name, match[0])

    return _PART.sub(put, text) if "$" in text else text


def image_arguments(container: Container, values: Mapping[str, str], image: RunConfig) -> list[str]:
    """The command line of a container of an image: command replaces Entrypoint and Cmd, args replace Cmd.

    Raises: HostError when there is none at all, as container runtimes do.
    """
    command = [expand(text, values) for text in container.command] or list(image.entrypoint or ())
    args = [expand(text, values) for text in container.args]
    if not args and not container.command:
        args = list(image.cmd or ())
    if not command + args:
        raise HostError(
            f"container {container.name}: no command specified: image {container.image!r} has neither Entrypoint nor "
            "Cmd; give the container a command"
        )
    return command + args


def arguments(container: Container, values: Mapping[str, str]) -> list[str]:
    """The whole command line. Raises: InvalidError when there is no command: nothing is known of images.

    Arguments alone are a command line if they begin with a program of this machine: so it is with images that
    have no Entrypoint, such as busybox and those of distributions.
    """
    line = [expand(text, values) for text in (*container.command, *container.args)]
    if not container.command and not (line and shutil.which(line[0], path=values.get("PATH") or PATH)):
        raise InvalidError(
            f"container {container.name} has no command: images are not pulled here, so nothing is known of image "
            f"{container.image!r}; load it with `tonnage images load`, or give the container a command that the "
            "machine has in /usr"
        )
    return line


def why_not_found(container: Container, program: str, path: str) -> str:
    """Why this machine cannot start a program, "" if it may. path: PATH of the container.

    A program with a folder in its name, or of a folder that is not the machine's, may be in a volume.
    """
    mounted = any(f"{mount.mount_path}/".startswith(_PROGRAMS) for mount in container.volume_mounts)
    is_machines = all(f"{folder}/".startswith(_PROGRAMS) for folder in path.split(":"))
    if "/" in program or mounted or not is_machines or shutil.which(program, path=path):
        return ""
    return (
        f'exec: "{program}": executable file not found in $PATH: programs are those of this machine; if they are of '
        f"image {container.image!r}, load it with `tonnage images load`"
    )


class Environment:
    """Computes environments of one node's containers."""

    def __init__(self, sources: ObjectSources) -> None:
        self._sources = sources

    async def of(self, pod: Pod, container: Container) -> dict[str, str]:
        """All variables: where the API server is, envFrom, then env; later ones win.

        Raises: NotFoundError, InvalidError, UnsupportedError, ApiError.
        """
        values = _server(self._sources.node.server)
        for source in container.env_from:
            values |= await self._from(pod, source)
        for variable in container.env:
            if variable.value_from is None:
                values[variable.name] = expand(variable.value, values)
            elif (value := await self._value(pod, container, variable)) is not None:
                values[variable.name] = value
        return values

    async def _from(self, pod: Pod, source: Mapping[str, Any]) -> dict[str, str]:
        prefix = source.get("prefix", "")
        for member, kind in (("configMapRef", "configmap"), ("secretRef", "secret")):
            if (ref := source.get(member)) is not None:
                keys = await self._sources.of(
                    kind, pod.metadata.namespace, ref.get("name", ""), optional=bool(ref.get("optional"))
                )
                return {prefix + key: _text(key, data) for key, data in keys.items() if _NAME.fullmatch(prefix + key)}
        raise UnsupportedError(f"envFrom source {', '.join(sorted(source))} is not supported")

    async def _value(self, pod: Pod, container: Container, variable: EnvVar) -> str | None:
        source = variable.value_from or {}
        if (ref := source.get("fieldRef")) is not None:
            return self._sources.field(pod, ref.get("fieldPath", ""))
        if (ref := source.get("resourceFieldRef")) is not None:
            return self._sources.resource(pod, ref, container)
        for member, kind in (("configMapKeyRef", "configmap"), ("secretKeyRef", "secret")):
            if (ref := source.get(member)) is not None:
                return await self._key(pod, kind, ref)
        raise UnsupportedError(f"env {variable.name}: valueFrom {', '.join(sorted(source))} is not supported")

    async def _key(self, pod: Pod, kind: str, ref: Mapping[str, Any]) -> str | None:
        name, key, optional = ref.get("name", ""), ref.get("key", ""), bool(ref.get("optional"))
        keys = await self._sources.of(kind, pod.metadata.namespace, name, optional=optional)
        if key in keys:
            return _text(key, keys[key])
        if optional:
            return None
        what = "ConfigMap" if kind == "configmap" else "Secret"
        raise NotFoundError(f"couldn't find key {key} in {what} {pod.metadata.namespace}/{name}")


def _server(server: tuple[str, int] | None) -> dict[str, str]:
    """Variables of the service `kubernetes`, with which clients in containers find the API server."""
    if server is None:
        return {}
    host, port = server[0], str(server[1])
    shown = f"tcp://{f'[{host}]' if ':' in host else host}:{port}"
    prefix = f"KUBERNETES_PORT_{port}_TCP"
    return {
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
        "KUBERNETES_SERVICE_PORT_HTTPS": port,
        "KUBERNETES_PORT": shown,
        prefix: shown,
        f"{prefix}_PROTO": "tcp",
        f"{prefix}_PORT": port,
        f"{prefix}_ADDR": host,
    }


def _text(key: str, data: bytes) -> str:
    if b"\0" in data:
        raise InvalidError(f"the value of key {key} contains NUL: it cannot be an environment variable")
    return data.decode(errors="surrogateescape")
