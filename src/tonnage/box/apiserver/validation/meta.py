"""Validation of names, labels, annotations, finalizers, owner references and selectors."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from tonnage.box.apiserver.validation.field_errors import Faults

Obj = dict[str, Any]
Namer = Callable[[str], list[str]]

_LABEL_FORM = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN_FORM = rf"{_LABEL_FORM}(\.{_LABEL_FORM})*"
_QUALIFIED_FORM = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_VALUE_FORM = f"({_QUALIFIED_FORM})?"
_LABEL, _SUBDOMAIN = re.compile(_LABEL_FORM), re.compile(_SUBDOMAIN_FORM)
_QUALIFIED, _VALUE = re.compile(_QUALIFIED_FORM), re.compile(_VALUE_FORM)
_TRIMMED = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_ANNOTATIONS_BYTES = 256 << 10
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")


def too_long(limit: int) -> str:
    """The message about a name of too many bytes (Kubernetes counts bytes and says characters)."""
    return f"must be no more than {limit} characters"


def _form(message: str, form: str, *examples: str) -> str:
    shown = " or ".join(f"'{e}', " for e in examples).rstrip(", ") if len(examples) > 1 else f"'{examples[0]}'"
    return f"{message} (e.g. {shown}, regex used for validation is '{form}')"


def dns_subdomain(name: str) -> list[str]:
    """Fault of an RFC 1123 subdomain."""
    faults = [too_long(253)] if len(name.encode()) > 253 else []
    if not _SUBDOMAIN.fullmatch(name):
        message = (
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
            "and must start and end with an alphanumeric character"
        )
        faults.append(_form(message, _SUBDOMAIN_FORM, "example.com"))
    return faults


def dns_label(name: str) -> list[str]:
    """Fault of an RFC 1123 label."""
    faults = [too_long(63)] if len(name.encode()) > 63 else []
    if not _LABEL.fullmatch(name):
        message = (
            "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character"
        )
        faults.append(_form(message, _LABEL_FORM, "my-name", "123-abc"))
    return faults


def qualified_name(name: str) -> list[str]:
    """Fault of `[prefix/]name`, as label keys are."""
    prefix, slash, tail = name.rpartition("/")
    if "/" in prefix:
        message = (
            f"a qualified name {_TRIMMED} (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
            f"'{_QUALIFIED_FORM}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        )
        return [message]
    faults = []
    if slash and not prefix:
        faults.append("prefix part must be non-empty")
    elif slash:
        faults += [f"prefix part {m}" for m in dns_subdomain(prefix)]
    if not tail:
        faults.append("name part must be non-empty")
    elif len(tail.encode()) > 63:
        faults.append(f"name part {too_long(63)}")
    if not _QUALIFIED.fullmatch(tail):
        faults.append("name part " + _form(_TRIMMED, _QUALIFIED_FORM, "MyName", "my.name", "123-abc"))
    return faults


def label_value(value: str) -> list[str]:
    """Fault of a label's value."""
    faults = [too_long(63)] if len(value.encode()) > 63 else []
    if not _VALUE.fullmatch(value):
        message = f"a valid label must be an empty string or {_TRIMMED.removeprefix('must ')}"
        faults.append(_form(message, _VALUE_FORM, "MyValue", "my_value", "12345"))
    return faults


def path_segment(name: str) -> list[str]:
    """Fault of a name that must fit into a URL."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{c}'" for c in "/%" if c in name]


def metadata(faults: Faults, obj: Obj, name_rule: Namer = dns_subdomain, *, old: Obj | None = None) -> None:
    """ObjectMeta, and on update what of it may not change."""
    meta = obj["metadata"]
    if old is None:
        if meta.get("generateName"):
            # The tail that is still to come makes a trailing dash or dot good.
            faults.each("metadata.generateName", meta["generateName"], name_rule(_stem(meta["generateName"])))
        if meta.get("name"):
            faults.each("metadata.name", meta["name"], name_rule(meta["name"]))
        else:
            faults.required("metadata.name", "name or generateName is required")
    else:
        before = old["metadata"]
        for field in ("name", "namespace", "uid", "creationTimestamp"):
            if meta.get(field, before.get(field)) != before.get(field):
                faults.invalid(f"metadata.{field}", meta.get(field), "field is immutable")
        _no_new_finalizers(faults, meta, before)
    labels(faults, meta.get("labels") or {}, "metadata.labels")
    annotation_map(faults, meta.get("annotations") or {}, "metadata.annotations")
    owners(faults, meta.get("ownerReferences") or [])
    finalizers = meta.get("finalizers") or []
    for finalizer in finalizers:
        _finalizer(faults, finalizer, "metadata.finalizers")
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        detail = "finalizer orphan and foregroundDeletion cannot be both set"
        faults.invalid("metadata.finalizers", finalizers, detail)


def _stem(prefix: str) -> str:
    """generateName as the name rules want it: what ends in `-` or `.` will be followed by letters."""
    return prefix[:-1] + "a" if prefix[-1:] in "-." else prefix


def _no_new_finalizers(faults: Faults, meta: Obj, before: Obj) -> None:
    added = sorted(set(meta.get("finalizers") or ()) - set(before.get("finalizers") or ()))
    if before.get("deletionTimestamp") and added:
        shown = ", ".join(f'"{finalizer}"' for finalizer in added)
        detail = "no new finalizers can be added if the object is being deleted, found new finalizers "
        faults.forbidden("metadata.finalizers", f"{detail}[]string{{{shown}}}")


def _finalizer(faults: Faults, name: str, path: str) -> None:
    faults.each(path, name, qualified_name(name))
    if "/" not in name and name not in ("orphan", "foregroundDeletion", "kubernetes"):
        detail = "name is neither a standard finalizer name nor is it fully qualified"
        if not qualified_name(name):
            faults.invalid(path, name, detail)


def labels(faults: Faults, pairs: Obj, path: str) -> None:
    """A map of labels."""
    for key, value in pairs.items():
        faults.each(path, key, qualified_name(key))
        faults.each(path, value, label_value(value))


def annotation_map(faults: Faults, pairs: Obj, path: str) -> None:
    """A map of annotations: keys as labels have them, 256 KiB together."""
    for key in pairs:
        faults.each(path, key, qualified_name(key.lower()))
    if sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items()) > _ANNOTATIONS_BYTES:
        faults.too_long(path, _ANNOTATIONS_BYTES)


def owners(faults: Faults, references: list[Obj]) -> None:
    """ownerReferences: complete, and one controller at most."""
    path = "metadata.ownerReferences"
    for index, owner in enumerate(references):
        here = f"{path}[{index}]"
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                what = "version must not be empty" if field == "apiVersion" else "must not be empty"
                faults.invalid(f"{here}.{field}", "", what)
        if (owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event"):
            faults.invalid(here, owner, "v1, Kind=Event is disallowed from being an owner")
    controllers = [f"{o.get('kind')}/{o.get('name')}" for o in references if o.get("controller")]
    if len(controllers) > 1:
        detail = "Only one reference can have Controller set to true. Found "
        faults.invalid(path, references, detail + f'"true" in references for {controllers[0]} and {controllers[1]}')


def label_selector(faults: Faults, selector: Obj, path: str) -> None:
    """metav1.LabelSelector."""
    labels(faults, selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for index, expression in enumerate(selector.get("matchExpressions") or ()):
        here = f"{path}.matchExpressions[{index}]"
        operator, values = expression.get("operator", ""), expression.get("values") or []
        if operator in ("In", "NotIn"):
            if not values:
                faults.required(f"{here}.values", "must be specified when `operator` is 'In' or 'NotIn'")
        elif operator in ("Exists", "DoesNotExist"):
            if values:
                faults.forbidden(f"{here}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
        else:
            faults.invalid(f"{here}.operator", operator, "not a valid selector operator")
        faults.each(f"{here}.key", expression.get("key", ""), qualified_name(expression.get("key", "")))
        for number, value in enumerate(values):
            faults.each(f"{here}.values[{number}]", value, label_value(value))


def node_selector_terms(faults: Faults, terms: list[Obj], path: str) -> None:
    """The terms of a NodeSelector (node affinity of pods and volumes)."""
    if not terms:
        faults.required(path, "must have at least one node selector term")
    for index, term in enumerate(terms):
        node_selector_term(faults, term, f"{path}[{index}]")


def node_selector_term(faults: Faults, term: Obj, path: str) -> None:
    """One NodeSelectorTerm."""
    for index, expression in enumerate(term.get("matchExpressions") or ()):
        _node_requirement(faults, expression, f"{path}.matchExpressions[{index}]")
    for index, expression in enumerate(term.get("matchFields") or ()):
        here = f"{path}.matchFields[{index}]"
        operator, values = expression.get("operator", ""), expression.get("values") or []
        if operator not in ("In", "NotIn"):
            faults.invalid(f"{here}.operator", operator, "not a valid selector operator")
        elif len(values) != 1:
            faults.required(
                f"{here}.values", "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            )
        if expression.get("key") != "metadata.name":
            faults.invalid(f"{here}.key", expression.get("key", ""), "not a valid field selector key")


def _node_requirement(faults: Faults, expression: Obj, path: str) -> None:
    operator, values = expression.get("operator", ""), expression.get("values") or []
    if operator in ("In", "NotIn"):
        if not values:
            faults.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            faults.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt"):
        if len(values) != 1:
            faults.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    else:
        faults.invalid(f"{path}.operator", operator, "not a valid selector operator")
    faults.each(f"{path}.key", expression.get("key", ""), qualified_name(expression.get("key", "")))
