"""Makes the templates of the Helm chart out of those of `tonnage manifests`: python scripts/gen_chart.py.

What differs between installations is `${name}` there and an expression here; everything else is copied as it is, so
that there is one place of each object. tests/unit/tools/ops/install/test_manifests.py holds the chart against this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from tonnage.kubernetes.api import names
from tonnage.storage.pools import kinds
from tonnage.tools.ops.install.manifests import PARTS, PLACE, inline_specs, template

CHART = Path(__file__).parent.parent / "deploy" / "helm" / "tonnage"
_HEADER = "{{- /* Made by scripts/gen_chart.py of src/tonnage/tools/ops/install/templates: change it there. */ -}}\n"

WORDS: Mapping[str, str] = {
    "namespace": "$.Release.Namespace",
    "image": 'include "tonnage.image" $ | quote',
    "pullPolicy": "$.Values.image.pullPolicy",
    "nodeName": '$group | empty | ternary "tonnage-node" (printf "tonnage-node-%s" $group)',
    "kubelet": "$.Values.kubelet",
    "metricsPort": "$.Values.metricsPort",
    "runbooks": "$.Values.monitoring.runbooks",
    "provisioners": 'include "tonnage.provisioners" $',
    "drivers": 'include "tonnage.drivers" $',
    "flexProvisioners": 'include "tonnage.flexProvisioners" $',
    "issuerSigners": 'include "tonnage.issuerSigners" $',
    "signers": 'include "tonnage.signers" $',
    "secrets": "$.Values.secrets | toJson",
    "seLinuxMount": 'include "tonnage.seLinuxMount" $',
    "lifecycleModes": 'ternary (list "Persistent" "Ephemeral") (list "Persistent") $.Values.inlineVolumes | toJson',
    "controllerReplicas": "$.Values.controller.replicas",
    "schedulerReplicas": "$.Values.scheduler.replicas",
    "scoring": "$.Values.scheduler.scoring",
    "capacity": "$.Values.capacity",
    "className": "$name",
    "classDefault": "$class.default | default false | quote",
    "secretNamespace": "$namespace",
    "inlineName": 'include "tonnage.inlineName" $driver',
    "inlineSpec": 'index ($.Files.Get "inline-specs.json" | fromJson) (splitList "," $driver | first) | toJson',
}
BLOCKS: Mapping[str, str] = {
    "labels": 'include "tonnage.labels" $',
    "config": 'include "tonnage.config" (dict "root" $ "pools" $pools)',
    "poolMounts": 'include "tonnage.poolMounts" (dict "root" $ "pools" $pools)',
    "poolVolumes": 'include "tonnage.poolVolumes" (dict "root" $ "pools" $pools)',
    "contentMounts": 'include "tonnage.contentMounts" (dict "root" $ "pools" $pools)',
    "contentVolumes": 'include "tonnage.contentVolumes" (dict "root" $ "pools" $pools)',
    "groupLabel": 'include "tonnage.groupLabel" $group',
    "nodeAffinity": 'include "tonnage.nodeAffinity" (dict "root" $ "group" $group)',
    "metricsFrom": 'include "tonnage.peers" (dict "key" "from" "peers" $.Values.networkPolicy.metricsFrom)',
    "apiPorts": 'include "tonnage.apiPorts" $',
    "apiServers": 'include "tonnage.peers" (dict "key" "to" "peers" $.Values.networkPolicy.apiServers)',
    "moreEgress": 'include "tonnage.list" $.Values.networkPolicy.egress',
    "tolerations": 'include "tonnage.list" $.Values.node.tolerations',
    "nodeSelector": 'include "tonnage.map" $.Values.node.selector',
    "nodeAnnotations": 'include "tonnage.map" $.Values.node.annotations',
    "nodeResources": "toYaml $.Values.node.resources",
    "controllerResources": "toYaml $.Values.controller.resources",
    "schedulerResources": "toYaml $.Values.scheduler.resources",
    "controllerEvicts": 'ternary (list "--evict-unfit" | toYaml) "" $.Values.controller.evictUnfit',
    "controllerFrees": 'ternary (list "--free-populators" | toYaml) "" $.Values.controller.freePopulators',
    "controllerSnapshots": 'ternary (list "--snapshot-controller" | toYaml) "" $.Values.controller.snapshotController',
    "controllerIssuers": 'include "tonnage.controllerIssuers" $',
    "controllerAttaches": 'include "tonnage.controllerAttaches" $',
    "controllerUser": 'include "tonnage.controllerUser" $',
    "controllerNodeSelector": 'include "tonnage.map" $.Values.controller.nodeSelector',
    "attachSecretReader": 'include "tonnage.attachSecretReader" $',
    "controllerMounts": 'include "tonnage.controllerMounts" $',
    "controllerVolumes": 'include "tonnage.controllerVolumes" $',
    "controllerDrivers": 'include "tonnage.controllerDrivers" $',
    "controllerTemplates": 'include "tonnage.controllerTemplates" $',
    "pullSecrets": 'include "tonnage.pullSecrets" $',
    "classFields": 'include "tonnage.classFields" $class',
    "secretRule": 'include "tonnage.secretRule" $names',
    "dashboard": '$.Files.Get "dashboard.json"',
}
_WHEN: Mapping[str, str] = {
    "flex-driver.yaml": "if $.Values.config.flexvolume",
    "inline-driver.yaml": "range $driver := $.Values.inlineDrivers",
    "namespace.yaml": "if $.Values.createNamespace",
    "class.yaml": "range $name, $class := $.Values.classes",
    "snapshotclass.yaml": "if $.Values.snapshotClass",
    "groupsnapshotclass.yaml": (
        'if and $.Values.snapshotClass ($.Capabilities.APIVersions.Has "groupsnapshot.storage.k8s.io/v1")'
    ),
    "rbac-secrets.yaml": "range $namespace, $names := $.Values.secrets",
    "rbac-evict.yaml": "if or $.Values.controller.evictUnfit $.Values.controller.freePopulators",
    "rbac-certificates.yaml": "if $.Values.controller.certificateIssuers",
    "rbac-snapshots.yaml": "if $.Values.controller.snapshotController",
    "rbac-attach.yaml": "if $.Values.controller.attachEndpoints",
    "rbac-scheduler.yaml": "if $.Values.scheduler.enabled",
    "scheduler.yaml": "if $.Values.scheduler.enabled",
    "scope-policy.yaml": 'if include "tonnage.hasScopePolicy" $',
    "empty-dir-policy.yaml": 'if semverCompare ">=1.36.0-0" $.Capabilities.KubeVersion.Version',
    "agent-policy.yaml": 'if include "tonnage.hasAgentPolicy" $',
    "config.yaml": 'range $group, $pools := include "tonnage.groups" $ | fromJson',
    "node.yaml": 'range $group, $pools := include "tonnage.groups" $ | fromJson',
    "networkpolicy.yaml": "if $.Values.networkPolicy.enabled",
    "podmonitor.yaml": "if $.Values.monitoring.podMonitor",
    "rules.yaml": "if $.Values.monitoring.rules",
    "dashboard.yaml": "if $.Values.monitoring.dashboard",
}


def chart_files() -> dict[Path, str]:
    """Path -> content of every file that is made."""
    made = {CHART / "templates" / part.file: _template(part.file) for part in PARTS}
    return {
        **made,
        CHART / "dashboard.json": template("dashboard.json"),
        CHART / "inline-specs.json": inline_specs(),
        CHART / "flex-provisioners.json": json.dumps(names.FLEX_PROVISIONERS, indent=2) + "\n",
        CHART / "selinux-kinds.json": json.dumps([kind for kind in _kinds() if kinds.take_contexts([kind])]) + "\n",
    }


def _kinds() -> list[str]:
    """Names of kinds of pools, also old ones."""
    return [*kinds.MODULES, *kinds.RENAMED]


def _template(file: str) -> str:
    text = PLACE.sub(_expression, template(file).replace("{{", '{{ "{{" }}'))
    if (when := _WHEN.get(file)) is None:
        return _HEADER + text
    separator = "---\n" if when.startswith("range") else ""
    return f"{_HEADER}{{{{- {when} }}}}\n{separator}{text}{{{{- end }}}}\n"


def _expression(found: re.Match[str]) -> str:
    name, indent = found["word"] or found["block"], found["indent"] or ""
    if name in WORDS:
        return f"{indent}{{{{ {WORDS[name]} }}}}" + ("" if found["word"] else "\n")
    return f"{indent}{{{{- with {BLOCKS[name]} }}}}{{{{ . | trim | nindent {len(indent)} }}}}{{{{- end }}}}\n"


def main() -> None:
    """Write them, and remove what is made no more."""
    made = chart_files()
    for path in (CHART / "templates").glob("*.yaml"):
        if path not in made:
            path.unlink()
    for path, text in made.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
