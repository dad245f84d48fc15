"""OpenAPI documents of the served kinds: v3 (an index and one document per group version) and v2.

kubectl reads v3 for `explain`, for paths that take fieldValidation (`--validate=strict`), and for how lists merge
(`apply`). Documents are built from the schemas on request and cached as bytes only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tonnage_box.apiserver.discovery import groups
from tonnage_box.apiserver.request.resource import Resource
from tonnage_box.apiserver.schema import schemas
from tonnage_box.apiserver.schema.schemas import Field, Struct, Type

Obj = dict[str, Any]
_PLAIN: Mapping[str, Obj] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int32"},
    "long": {"type": "integer", "format": "int64"},
    "number": {"type": "number", "format": "double"},
    "bool": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "any": {"type": "object"},
}
_NAMED = {
    "quantity": "io.k8s.apimachinery.pkg.api.resource.Quantity",
    "time": "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    "microtime": "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime",
    "intstr": "io.k8s.apimachinery.pkg.util.intstr.IntOrString",
}
_AMOUNT = "An amount: a number, and perhaps a suffix as Ki, Mi, Gi (powers of 1024) or m, k, M, G (of 1000)."
_TEXTS: Mapping[str, Obj] = {
    "quantity": {"description": _AMOUNT},
    "time": {"description": "A time in RFC 3339, whole seconds.", "format": "date-time"},
    "microtime": {"description": "A time in RFC 3339, with microseconds.", "format": "date-time"},
    "intstr": {"description": "A number, or a text that represents one.", "format": "int-or-string"},
}
_LIST_META = "meta.v1.ListMeta"
_WRITES = ("post", "put", "patch")


class OpenApiVersion:
    """OpenAPI v2 or v3: where definitions are, and how a $ref takes a description."""

    def __init__(self, *, version: int) -> None:
        self.version = version
        self._prefix = "#/definitions/" if version == 2 else "#/components/schemas/"

    def ref(self, definition: str) -> Obj:
        """A reference."""
        return {"$ref": self._prefix + definition}

    def described(self, schema: Obj, text: str) -> Obj:
        """The schema with a description; v3 allows a description next to a $ref only in an allOf."""
        if not text:
            return schema
        if "$ref" in schema and self.version == 3:
            return {"allOf": [schema], "description": text}
        return schema | {"description": text}

    def named(self, word: str) -> Obj:
        """Quantity and its like."""
        if word == "quantity" and self.version == 3:
            return _TEXTS[word] | {"oneOf": [{"type": "string"}, {"type": "number"}]}
        return {"type": "string"} | _TEXTS[word]

    def type(self, kind: Type) -> Obj:
        """The schema of a type."""
        if kind.word == "[]":
            assert kind.item is not None
            return {"type": "array", "items": self.type(kind.item)}
        if kind.word == "{}":
            assert kind.item is not None
            return {"type": "object", "additionalProperties": self.type(kind.item)}
        if kind.word == "struct":
            return self.ref(schemas.struct(kind.struct).definition)
        return self.ref(_NAMED[kind.word]) if kind.word in _NAMED else dict(_PLAIN[kind.word])

    def field(self, field: Field) -> Obj:
        """The schema of a field, with how patches merge it."""
        schema = self.described(self.type(field.type), field.text)
        if field.merge_key is not None or field.retain_keys:
            words = (["merge"] if field.merge_key is not None else []) + (["retainKeys"] if field.retain_keys else [])
            schema["x-kubernetes-patch-strategy"] = ",".join(words)
        if field.merge_key:
            schema["x-kubernetes-patch-merge-key"] = field.merge_key
            schema |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field.merge_key]}
        return schema

    def struct(self, struct: Struct) -> Obj:
        """The schema of a struct."""
        schema: Obj = {"type": "object"}
        # `kubectl explain` prints a field's text and its type's, and the fields of these types say the same.
        if struct.text and not struct.short.endswith(("Spec", "Status")):
            schema["description"] = struct.text
        required = [f.name for f in struct.fields.values() if f.required]
        if required:
            schema["required"] = required
        if struct.fields:
            schema["properties"] = {f.name: self.field(f) for f in struct.fields.values()}
        return schema


def gvk(resource: Resource, kind: str = "") -> Obj:
    """x-kubernetes-group-version-kind of a resource."""
    return {"group": resource.kind.group, "version": resource.kind.version, "kind": kind or resource.kind.kind}


def definitions(resources: Iterable[Resource], dialect: OpenApiVersion) -> Obj:
    """The schemas that the resources need, theirs with their group, version and kind, and their lists."""
    found: Obj = {}
    pending: list[str] = []
    for resource in resources:
        name = resource.schema_name
        pending.append(name)
        definition = schemas.struct(name).definition
        if "list" in resource.verbs:
            found[f"{definition}List"] = _list(resource, definition, dialect)
            pending.append(_LIST_META)
        found[definition] = {"x-kubernetes-group-version-kind": [gvk(resource)]}
    pending += ["meta.v1.Status", "meta.v1.DeleteOptions"]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        struct = schemas.struct(name)
        found[struct.definition] = dialect.struct(struct) | found.get(struct.definition, {})
        for word, inner in _uses(struct):
            if word == "struct":
                pending.append(inner)
            elif word in _NAMED:
                found[_NAMED[word]] = dialect.named(word)
    return dict(sorted(found.items()))


def _uses(struct: Struct) -> Iterator[tuple[str, str]]:
    for field in struct.fields.values():
        kind: Type | None = field.type
        while kind is not None:
            yield kind.word, kind.struct
            kind = kind.item


def _list(resource: Resource, definition: str, dialect: OpenApiVersion) -> Obj:
    return {
        "type": "object",
        "description": f"A list of {resource.kind.plural}.",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": "Group and version of the list."},
            "kind": {"type": "string", "description": "Kind of the list."},
            "metadata": dialect.described(dialect.ref(schemas.struct(_LIST_META).definition), "Revision of the list."),
            "items": {"type": "array", "items": dialect.ref(definition), "description": "The objects."},
        },
        "x-kubernetes-group-version-kind": [gvk(resource, f"{resource.kind.kind}List")],
    }


def paths(resources: Iterable[Resource], dialect: OpenApiVersion) -> Obj:
    """The paths of the resources with their verbs."""
    found: Obj = {}
    for resource in resources:
        namespace = "{namespace}" if resource.kind.namespaced else ""
        collection, item = resource.kind.path(namespace), resource.kind.path(namespace, "{name}")
        verbs = {"list": "get", "create": "post", "deletecollection": "delete"}
        found[collection] = _path(resource, {m: v for v, m in verbs.items() if v in resource.verbs}, dialect)
        verbs = {"get": "get", "update": "put", "patch": "patch", "delete": "delete"}
        methods = {m: v for v, m in verbs.items() if v in resource.verbs}
        if methods:
            found[item] = _path(resource, methods, dialect)
        if resource.kind.namespaced and "list" in resource.verbs:
            found[resource.kind.path()] = _path(resource, {"get": "list"}, dialect)
        for name in sorted(resource.subresources):
            methods = {_method(verb): verb for verb in groups.SUBRESOURCES[name][3]}
            found[f"{item}/{name}"] = _path(resource, methods, dialect)
    return found


def _method(verb: str) -> str:
    return {"create": "post", "update": "put"}.get(verb, verb)


def _path(resource: Resource, methods: Mapping[str, str], dialect: OpenApiVersion) -> Obj:
    return {method: _operation(resource, method, verb, dialect) for method, verb in methods.items()}


def _operation(resource: Resource, method: str, verb: str, dialect: OpenApiVersion) -> Obj:
    definition = schemas.struct(resource.schema_name).definition
    body = dialect.ref(f"{definition}List" if verb == "list" else definition)
    operation: Obj = {
        "x-kubernetes-action": verb if verb in ("list", "deletecollection") else method,
        "x-kubernetes-group-version-kind": gvk(resource),
    }
    parameters = [_query(name, dialect) for name in ("dryRun", "fieldManager", "fieldValidation") if method in _WRITES]
    if dialect.version == 3:
        operation["responses"] = {"200": {"description": "OK", "content": {"application/json": {"schema": body}}}}
        if method in ("post", "put"):
            operation["requestBody"] = {"content": {"*/*": {"schema": dialect.ref(definition)}}, "required": True}
    else:
        operation |= {"produces": ["application/json"], "responses": {"200": {"description": "OK", "schema": body}}}
        if method in ("post", "put"):
            schema = dialect.ref(definition)
            parameters.append({"in": "body", "name": "body", "required": True, "schema": schema})
    return operation | ({"parameters": parameters} if parameters else {})


def _query(name: str, dialect: OpenApiVersion) -> Obj:
    kind: Obj = {"schema": {"type": "string"}} if dialect.version == 3 else {"type": "string"}
    return {"in": "query", "name": name} | kind


def _info() -> Obj:
    return {"title": "Kubernetes", "version": "v1"}


def v3(resources: Iterable[Resource]) -> Obj:
    """The v3 document of one group and version."""
    rows, dialect = list(resources), OpenApiVersion(version=3)
    components = {"schemas": definitions(rows, dialect)}
    return {"openapi": "3.0.0", "info": _info(), "paths": paths(rows, dialect), "components": components}


def v2(resources: Iterable[Resource]) -> Obj:
    """The v2 document of everything."""
    rows, dialect = list(resources), OpenApiVersion(version=2)
    return {"swagger": "2.0", "info": _info(), "paths": paths(rows, dialect), "definitions": definitions(rows, dialect)}


def key(resource: Resource) -> str:
    """`api/v1` or `apis/<group>/<version>`: how the v3 index names a document."""
    kind = resource.kind
    return f"apis/{kind.group}/{kind.version}" if kind.group else f"api/{kind.version}"
