"""The Helm chart: the documents of `manifests/base`, with the settings of an installation as values."""

import json
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml

from ingero_operator.kinds import Manifest
from ingero_operator.render.crds import all_definitions
from ingero_operator.render.install import NAMESPACE, OPERATOR, everything, namespace_access, rules
from ingero_operator.render.text import NOTE, dump
from scripts.chart_values import AGENT_PRIORITY_CLASS, NOTES, PLACEMENT, schema, values_text

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = "charts/ingero"
RELEASE_NAMESPACE: Final = "{{ $.Release.Namespace }}"
IMAGE: Final = (
    "{{ .Values.image.registry }}/ingero/operator:{{ .Chart.AppVersion }}"
    '{{ with get .Values.image.digests "operator" }}@{{ . }}{{ end }}'
)
HEADER: Final = (
    "{{- /* Printed by `make generate` from the documents of manifests/base; edit the code there. */ -}}\n"
)

ARGUMENTS: Final = """\
{{- if ne .Values.image.registry "localhost" }}
- {{ printf "--image-registry=%s" .Values.image.registry | quote }}
{{- end }}
{{- $digests := list }}
{{- range $name, $digest := omit .Values.image.digests "operator" }}
{{- $digests = append $digests (printf "%s=%s" $name $digest) }}
{{- end }}
{{- with $digests }}
- {{ printf "--image-digests=%s" (join "," .) | quote }}
{{- end }}
{{- with .Values.image.pullSecrets }}
- {{ printf "--image-pull-secrets=%s" (join "," .) | quote }}
{{- end }}
{{- with .Values.watchNamespaces }}
- {{ printf "--watch-namespaces=%s" (join "," .) | quote }}
{{- end }}
{{- if ne .Values.minEncryption "Declared" }}
- {{ printf "--min-encryption=%s" .Values.minEncryption | quote }}
{{- end }}
{{- if not .Values.taints.enabled }}
- --no-taints
{{- end }}
{{- if .Values.taints.paused }}
- --pause-taints
{{- end }}
{{- with .Values.extraArgs }}
{{- toYaml . | nindent +0 }}
{{- end }}"""
PULL_SECRETS: Final = """\
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}"""


def _rules(*scopes: bool) -> str:
    return dump([{"rules": rules(*scopes)}]).removeprefix(NOTE).rstrip()


def _optional(name: str) -> str:
    """A field of the pod where the value of this name is not empty."""
    return f"{{{{- with .Values.{name} }}}}\n{name}:\n  {{{{- toYaml . | nindent +2 }}}}\n{{{{- end }}}}"


BLOCKS: Final = {
    **{name: _optional(name) for name in PLACEMENT},
    "args": ARGUMENTS,
    "env": "{{- with .Values.extraEnv }}\n{{- toYaml . | nindent +0 }}\n{{- end }}",
    "pullSecrets": PULL_SECRETS,
    "replicas": "replicas: {{ .Values.replicas }}",
    "resources": "resources:\n  {{- toYaml .Values.resources | nindent +2 }}",
    "priorityClassName": "{{- with .Values.priorityClassName }}\npriorityClassName: {{ . | quote }}\n{{- end }}",
    "interval": "interval: {{ .Values.serviceMonitor.interval }}",
    "labels": "{{- with .Values.serviceMonitor.labels }}\n{{- toYaml . | nindent +0 }}\n{{- end }}",
    "rules": "\n".join(
        ("{{- if .Values.watchNamespaces }}", _rules(True), "{{- else }}", _rules(True, False), "{{- end }}")
    ),
}
"""Text with more than one value in place of the key or list item `BLOCK name`; `nindent +2` counts from there."""
_BLOCK: Final = re.compile(r"^( *)(?:- )?BLOCK (\w+)(?:: null)?$", re.MULTILINE)


def _insert(match: re.Match[str]) -> str:
    indent, name = match.groups()
    text = re.sub(r"nindent \+(\d+)", lambda found: f"nindent {len(indent) + int(found[1])}", BLOCKS[name])
    return "\n".join(f"{indent}{line}" for line in text.splitlines())


def _in_release_namespace(value: Any) -> Any:
    """Every mention of the installation's namespace becomes that of the release."""
    if isinstance(value, dict):
        return {key: _in_release_namespace(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_in_release_namespace(item) for item in value]
    return RELEASE_NAMESPACE if value == NAMESPACE else value


def _document(item: Manifest, condition: str = "") -> str:
    text = "---\n" + _BLOCK.sub(_insert, dump([_in_release_namespace(item)]).removeprefix(NOTE))
    return f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text


def _block(item: Manifest, key: str) -> Any:
    """Put the block of this name in the place of the key, and return what was there."""
    before = item.pop(key, None)
    item[f"BLOCK {key}"] = None
    return before


def _deployment(item: Manifest) -> None:
    """Put the values into the operator's Deployment."""
    pod = item["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    for key, holder in (("replicas", item["spec"]), ("resources", container), ("priorityClassName", pod)):
        _block(holder, key)
    pod |= {f"BLOCK {name}": None for name in ("pullSecrets", *PLACEMENT)}
    container["image"] = IMAGE
    container["args"] = [
        arg.replace(f"={AGENT_PRIORITY_CLASS}", "={{ .Values.agentPriorityClass }}") for arg in container["args"]
    ] + ["BLOCK args"]
    container["env"].append("BLOCK env")


def _installation() -> list[Manifest]:
    """The documents of manifests/base but for the Namespace, which is the release's."""
    return [item for item in everything(version("ingero")) if item["kind"] != "Namespace"]


def operator() -> str:
    """templates/operator.yaml"""
    texts = []
    for item in _installation():
        condition = ""
        if item["kind"] == "Deployment":
            _deployment(item)
        elif (item["kind"], item["metadata"]["name"]) == ("ClusterRole", OPERATOR):
            _block(item, "rules")
        elif item["kind"] == "PriorityClass":
            condition = f'eq .Values.agentPriorityClass "{AGENT_PRIORITY_CLASS}"'
        texts.append(_document(item, condition))
    return HEADER + "".join(texts)


def watched_namespaces() -> str:
    """templates/watched-namespaces.yaml"""
    texts = [_document(item) for item in namespace_access("{{ . }}")]
    return f"{HEADER}{{{{- range .Values.watchNamespaces }}}}\n{''.join(texts)}{{{{- end }}}}\n"


def service_monitor() -> str:
    """templates/servicemonitor.yaml"""
    item = yaml.safe_load((ROOT / "manifests/monitoring/prometheus-operator/servicemonitor.yaml").read_text())
    _block(item["spec"]["endpoints"][0], "interval")
    item["metadata"]["labels"]["BLOCK labels"] = None
    return HEADER + _document(item, ".Values.serviceMonitor.enabled")


def chart() -> str:
    """Chart.yaml"""
    number = version("ingero")
    return dump(
        [
            {
                "apiVersion": "v2",
                "name": "ingero",
                "description": "The operator of ingero, which names the straggling node and rank of a GPU cluster",
                "type": "application",
                "version": number,
                "appVersion": number,
                "kubeVersion": ">=1.30.0-0",
            }
        ]
    )


def values() -> str:
    """values.yaml"""
    (deployment,) = (item for item in _installation() if item["kind"] == "Deployment")
    return NOTE + values_text(deployment)


DOCUMENTS: Final[dict[str, Callable[[], str]]] = {
    f"{FOLDER}/Chart.yaml": chart,
    f"{FOLDER}/values.yaml": values,
    f"{FOLDER}/values.schema.json": lambda: json.dumps(schema(), indent=2) + "\n",
    f"{FOLDER}/crds/crds.yaml": lambda: dump(all_definitions()),  # one file: `helm show crds` joins without `---`
    f"{FOLDER}/templates/operator.yaml": operator,
    f"{FOLDER}/templates/watched-namespaces.yaml": watched_namespaces,
    f"{FOLDER}/templates/servicemonitor.yaml": service_monitor,
    f"{FOLDER}/templates/NOTES.txt": lambda: NOTES,
}
