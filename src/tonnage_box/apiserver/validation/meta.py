"""Validation of names, labels, annotations, finalizers, owner references and selectors."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Collection, Sequence

from tonnage.base.errors import FieldCause
from tonnage_box.apiserver.request.resource import Validate
from tonnage_box.apiserver.storage.store import Obj
from tonnage_box.apiserver.validation.field_errors import Faults, items

Namer = Callable[[str], Sequence[str]]
Rules = Callable[[Faults, Obj, Obj | None], None]
"""Add the faults of a new object; the old one is None on create."""

_LABEL_FORM = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_QUALIFIED_FORM = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_TRIMMED = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character"
)
_ANNOTATIONS_BYTES = 256 << 10
_SHORT = 128
_LABEL_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
_NODE_OPERATORS = (*_LABEL_OPERATORS, "Gt", "Lt")
_OPERATOR = "not a valid selector operator"
MAX_REQUIREMENTS = 100
"""Labels and expressions of a selector. Kubernetes has no bound; selectors of people have a few."""
MAX_VALUES = 10_000
"""Of the requirements of a selector; Kubernetes has no bound. Volumes and capacity are found by each."""
MAX_OWNERS = 1000
"""Of an object; Kubernetes has no bound. The garbage collector looks for each."""


def too_long(limit: int) -> str:
    """The message about a name of too many bytes (Kubernetes counts bytes and says characters)."""
    return f"must be no more than {limit} characters"


def _form(message: str, form: str, *examples: str) -> str:
    shown = ",  or ".join(f"'{example}'" for example in examples)
    return f"{message} (e.g. {shown}, regex used for validation is '{form}')"


def name_rule(limit: int, form: str, message: str, *examples: str) -> Namer:
    """A rule about names: at most so many bytes, and of a form (a regular expression, which the message shows)."""
    compiled, wrong = re.compile(form), _form(message, form, *examples)

    def rule(name: str) -> Sequence[str]:
        faults = (too_long(limit),) if len(name.encode()) > limit else ()
        return faults if compiled.fullmatch(name) else (*faults, wrong)

    return rule


def remembered(rule: Namer) -> Namer:
    """The rule, with what it found about short names: keys and values of labels return with each object."""
    short = functools.lru_cache(maxsize=1024)(rule)
    return lambda name: short(name) if len(name) <= _SHORT else rule(name)


dns_subdomain = name_rule(
    253,
    rf"{_LABEL_FORM}(\.{_LABEL_FORM})*",
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character",
    "example.com",
)
dns_label = remembered(
    name_rule(
        63,
        _LABEL_FORM,
        "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
        "with an alphanumeric character",
        *("my-name", "123-abc"),
    )
)
label_value = remembered(
    name_rule(
        63,
        f"({_QUALIFIED_FORM})?",
        f"a valid label must be an empty string or {_TRIMMED.removeprefix('must ')}",
        *("MyValue", "my_value", "12345"),
    )
)
_qualified_tail = name_rule(63, _QUALIFIED_FORM, _TRIMMED, "MyName", "my.name", "123-abc")


@remembered
def qualified_name(name: str) -> Sequence[str]:
    """Fault of `[prefix/]name`, as label keys are."""
    prefix, slash, tail = name.rpartition("/")
    if "/" in prefix:
        message = _form(f"a qualified name {_TRIMMED}", _QUALIFIED_FORM, "MyName", "my.name", "123-abc")
        return (f"{message} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",)
    faults = []
    if slash and not prefix:
        faults.append("prefix part must be non-empty")
    elif slash:
        faults += [f"prefix part {m}" for m in dns_subdomain(prefix)]
    if not tail:
        faults.append("name part must be non-empty")
    return (*faults, *(f"name part {m}" for m in _qualified_tail(tail)))


def path_segment(name: str) -> list[str]:
    """Fault of a name that must fit into a URL."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{c}'" for c in "/%" if c in name]


def kind_rules(
    name: Namer = dns_subdomain, *, whole: bool = False, **subresources: Rules
) -> Callable[[Rules], Validate]:
    """Make the rules of a kind of those of its own fields: ObjectMeta is checked first.

    whole: they hold for writes of the object only, not for those of its subresources, which preserve the rest of it.
    subresources: further rules of writes of a subresource (status=RULES).
    """

    def complete(rules: Rules) -> Validate:
        @functools.wraps(rules)
        def validate(new: Obj, old: Obj | None, *, subresource: str) -> list[FieldCause]:
            faults = Faults()
            metadata(faults, new, name, old=old)
            if not (whole and subresource):
                rules(faults, new, old)
            if subresource in subresources:
                subresources[subresource](faults, new, old)
            if old is not None and faults.above:
                before, copied = Faults(), copy.deepcopy(old)
                metadata(before, copied, name)
                rules(before, copied, None)
                faults.forgive(before)
            return faults

        return validate

    return complete


def metadata(faults: Faults, obj: Obj, name_rule: Namer = dns_subdomain, *, old: Obj | None = None) -> None:
    """ObjectMeta, and on update what of it may not change."""
    meta = obj["metadata"]
    if old is None:
        if meta.get("generateName"):
            # The tail that is still to come makes a trailing dash or dot good.
            faults.check("metadata.generateName", meta["generateName"], lambda prefix: name_rule(_stem(prefix)))
        faults.name("metadata.name", meta.get("name"), name_rule, "name or generateName is required")
    else:
        before = old["metadata"]
        for field in ("name", "namespace", "uid", "creationTimestamp"):
            faults.immutable(f"metadata.{field}", meta.get(field, before.get(field)), before.get(field))
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
    is_standard = "/" in name or name in ("orphan", "foregroundDeletion", "kubernetes")
    if faults.check(path, name, qualified_name) and not is_standard:
        faults.invalid(path, name, "name is neither a standard finalizer name nor is it fully qualified")


def labels(faults: Faults, pairs: Obj, path: str) -> None:
    """A map of labels."""
    for key, value in pairs.items():
        faults.check(path, key, qualified_name)
        faults.check(path, value, label_value)


def annotation_map(faults: Faults, pairs: Obj, path: str) -> None:
    """A map of annotations: keys as labels have them, 256 KiB together."""
    for key in pairs:
        faults.check(path, key, lambda key: qualified_name(key.lower()))
    if sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items()) > _ANNOTATIONS_BYTES:
        faults.too_long(path, _ANNOTATIONS_BYTES)


def owners(faults: Faults, references: list[Obj]) -> None:
    """ownerReferences: complete, and one controller at most."""
    path = "metadata.ownerReferences"
    faults.too_many(path, len(references), MAX_OWNERS)
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


def label_selector(faults: Faults, selector: Obj, path: str, *, most: int = MAX_REQUIREMENTS) -> None:
    """metav1.LabelSelector. Its size is bounded here: it is compared with every pod."""
    if faults.too_many(path, requirements(selector), most, "requirements") or _many_values(faults, [selector], path):
        return
    labels(faults, selector.get("matchLabels") or {}, f"{path}.matchLabels")
    for here, expression in items(selector, "matchExpressions", f"{path}."):
        _expression(faults, expression, here, _LABEL_OPERATORS)
        for place, value in items(expression, "values", f"{here}."):
            faults.check(place, value, label_value)


def _many_values(faults: Faults, selectors: Sequence[Obj], path: str) -> bool:
    values = sum(len(e.get("values") or ()) for one in selectors for e in one.get("matchExpressions") or ())
    return faults.too_many(path, values, MAX_VALUES, "values")


def requirements(selector: Obj) -> int:
    """How many labels and expressions a LabelSelector has."""
    return sum(len(selector.get(word) or ()) for word in ("matchLabels", "matchExpressions"))


def _expression(faults: Faults, expression: Obj, path: str, operators: Collection[str]) -> None:
    """A requirement of a label's value, of a node or of any object."""
    operator, values = expression.get("operator", ""), expression.get("values") or []
    if operator not in operators:
        faults.invalid(f"{path}.operator", operator, _OPERATOR)
    elif operator in ("In", "NotIn") and not values:
        faults.required(f"{path}.values", "must be specified when `operator` is 'In' or 'NotIn'")
    elif operator in ("Exists", "DoesNotExist") and values:
        faults.forbidden(f"{path}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt") and len(values) != 1:
        faults.required(f"{path}.values", "must be specified single value when `operator` is 'Lt' or 'Gt'")
    faults.check(f"{path}.key", expression.get("key", ""), qualified_name)


def node_selector_terms(faults: Faults, selector: Obj, path: str) -> None:
    """A NodeSelector (node affinity of pods and volumes)."""
    path = f"{path}.nodeSelectorTerms"
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        faults.required(path, "must have at least one node selector term")
    if faults.too_many(path, sum(map(node_requirements, terms)), MAX_REQUIREMENTS, "requirements"):
        return
    if _many_values(faults, terms, path):
        return
    for index, term in enumerate(terms):
        node_selector_term(faults, term, f"{path}[{index}]")


def node_requirements(term: Obj) -> int:
    """How many requirements a NodeSelectorTerm has. An empty one counts, too.

    One field is left out: the DaemonSet controller adds the node's name to the terms of a template.
    """
    fields = max(len(term.get("matchFields") or ()) - 1, 0)
    return len(term.get("matchExpressions") or ()) + fields or 1


def node_selector_term(faults: Faults, term: Obj, path: str) -> None:
    """One NodeSelectorTerm."""
    for here, expression in items(term, "matchExpressions", f"{path}."):
        _expression(faults, expression, here, _NODE_OPERATORS)
    for here, expression in items(term, "matchFields", f"{path}."):
        operator, values = expression.get("operator", ""), expression.get("values") or []
        if operator not in ("In", "NotIn"):
            faults.invalid(f"{here}.operator", operator, _OPERATOR)
        elif len(values) != 1:
            detail = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector"
            faults.required(f"{here}.values", detail)
        if expression.get("key") != "metadata.name":
            faults.invalid(f"{here}.key", expression.get("key", ""), "not a valid field selector key")
