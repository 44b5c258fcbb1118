"""Other ways to write the same manifests: the answers must not depend on how somebody writes.

Each form changes objects in place and leaves their meaning alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any, Final

Json = dict[str, Any]
Form = Callable[[list[Json]], None]

_SHELL: Final = re.compile(r"(?:.*/)?(?:ba|da|z|k)?sh")
_REFERENCE: Final = re.compile(r"\$\(\w+\)")
_VALUED: Final = re.compile(r"(--[A-Za-z][\w.-]*)=([^-].*)")
_PROBES: Final = ("livenessProbe", "readinessProbe", "startupProbe")
_BUILT_IN: Final = frozenset({"v1", "apps/v1", "batch/v1"})


def _maps(value: Any) -> Iterator[Json]:
    """Every map of an object, the outer ones first."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _maps(each)


def _pods(objects: list[Json]) -> Iterator[Json]:
    for each in _maps(objects):
        containers = each.get("containers")
        if isinstance(containers, list) and any("image" in one for one in containers):
            yield each


def _containers(objects: list[Json]) -> Iterator[Json]:
    for pod in _pods(objects):
        yield from (*pod.get("initContainers", ()), *pod["containers"])


def options_with_a_space(objects: list[Json]) -> None:
    """`--port=8000` is `--port 8000`, unless the option may be a switch."""
    for container in _containers(objects):
        for field in container.keys() & {"command", "args"}:
            words: list[str] = []
            for word in container[field]:
                found = _VALUED.fullmatch(str(word))
                switch = found is None or found[2].lower() in ("true", "false")
                words += [word] if found is None or switch else [found[1], found[2]]
            container[field] = words


def in_a_script(objects: list[Json]) -> None:
    """A command runs at the end of a shell's script, over several lines."""
    for container in _containers(objects):
        words = [str(word) for word in (*container.get("command", ()), *container.get("args", ()))]
        if "command" in container and not _SHELL.fullmatch(words[0]):
            line = " \\\n  ".join(_quoted(word) for word in words)
            container["command"] = ["/bin/bash", "-c"]
            container["args"] = [f"set -euo pipefail\necho starting\nexec {line}\n"]


def _quoted(word: str) -> str:
    """Kubernetes expands $(NAME) inside of the quotes, too."""
    return f'"{word}"' if _REFERENCE.search(word) and '"' not in word else shlex.quote(word)


def with_a_log_shipper(objects: list[Json]) -> None:
    """A sidecar that has nothing to do with it."""
    for pod in _pods(objects):
        shipper: Json = {"name": "log-shipper", "image": "fluent/fluent-bit:3.1.9", "restartPolicy": "Always"}
        shipper["resources"] = {field: {"cpu": 0, "memory": 0} for field in ("requests", "limits")}
        shipper["securityContext"] = {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        pod.setdefault("initContainers", []).insert(0, shipper)


def with_the_registry(objects: list[Json]) -> None:
    """`vllm/vllm-openai` is `docker.io/vllm/vllm-openai`."""
    for container in _containers(objects):
        first, slash, _ = str(container.get("image", "")).partition("/")
        if slash and not set(first) & set(".:") and first != "localhost":
            container["image"] = f"docker.io/{container['image']}"


def selected_by_expressions(objects: list[Json]) -> None:
    """`matchLabels` are `matchExpressions` with one value each."""
    for each in _maps([one for one in objects if one["kind"] != "InferencePool"]):
        if "matchLabels" in each and "matchExpressions" not in each:
            labels = each.pop("matchLabels")
            each["matchExpressions"] = [
                {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
            ]


def in_other_units(objects: list[Json]) -> None:
    """`2` CPUs are `2000m`, and `1Gi` is `1024Mi`."""
    for each in _maps(objects):
        lists = [each[name] for name in each.keys() & {"requests", "limits"} if isinstance(each[name], dict)]
        amounts = [(one, key) for one in lists for key in one]
        amounts += [(each, "sizeLimit")] if "sizeLimit" in each else []
        for owner, key in amounts:
            value = str(owner[key])
            if re.fullmatch(r"\d+Gi", value):
                owner[key] = f"{int(value[:-2]) * 1024}Mi"
            elif value.isdigit():
                owner[key] = f"{value}000m" if key == "cpu" else value


def with_named_ports(objects: list[Json]) -> None:
    """Probes name the container's ports."""
    for container in _containers(objects):
        names: dict[int, str] = {}
        for index, port in enumerate(container.get("ports", ())):
            names.setdefault(port.get("containerPort"), port.setdefault("name", f"port-{index}"))
        for probe in container.keys() & set(_PROBES):
            for handler in (container[probe].get("httpGet", {}), container[probe].get("tcpSocket", {})):
                if handler.get("port") in names:
                    handler["port"] = names[handler["port"]]


def in_reverse(objects: list[Json]) -> None:
    """The last object first."""
    objects.reverse()


def in_a_list(objects: list[Json]) -> None:
    """One object of kind List."""
    objects[:] = [{"apiVersion": "v1", "kind": "List", "items": list(objects)}]


def as_stored(objects: list[Json]) -> None:
    """With the defaults and the metadata that an API server adds."""
    for index, each in enumerate(objects):
        if each["apiVersion"] not in _BUILT_IN or each["kind"] in ("Job", "CronJob"):
            continue  # nothing can be added to an existing Job
        each["metadata"] |= {
            "resourceVersion": str(index + 1),
            "uid": f"{index:08}-0000-4000-8000-000000000000",
        }
        for pod in _pods([each]):
            pod.setdefault("restartPolicy", "Always")
            pod.setdefault("dnsPolicy", "ClusterFirst")
            pod.setdefault("schedulerName", "default-scheduler")
            pod.setdefault("securityContext", {})
        for container in _containers([each]):
            container.setdefault("resources", {})
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            _complete_probes(container)
        if each["kind"] == "Deployment":
            _complete_deployment(each["spec"])


def _complete_probes(container: Json) -> None:
    for name in container.keys() & set(_PROBES):
        probe = container[name]
        for field, value in (
            ("failureThreshold", 3),
            ("periodSeconds", 10),
            ("successThreshold", 1),
            ("timeoutSeconds", 1),
        ):
            probe.setdefault(field, value)
        if "httpGet" in probe:
            probe["httpGet"].setdefault("scheme", "HTTP")
            probe["httpGet"].setdefault("path", "/")


def _complete_deployment(spec: Json) -> None:
    spec.setdefault("replicas", 1)
    spec.setdefault("progressDeadlineSeconds", 600)
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("maxSurge", "25%")
        strategy["rollingUpdate"].setdefault("maxUnavailable", "25%")


def as_rollouts(objects: list[Json]) -> None:
    """Deployments as Rollouts of Argo Rollouts with a canary, which is the same rolling update."""
    names = set()
    for each in objects:
        if (each["apiVersion"], each["kind"]) != ("apps/v1", "Deployment"):
            continue
        strategy = each["spec"].get("strategy", {})
        if strategy.get("type") != "Recreate":
            names.add(each["metadata"]["name"])
            each |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}
            each["spec"]["strategy"] = {"canary": strategy.get("rollingUpdate", {})}
    for each in _maps(objects):
        scaled = each.get("scaleTargetRef")
        if scaled and scaled["name"] in names and scaled.get("kind", "Deployment") == "Deployment":
            scaled |= {"apiVersion": "argoproj.io/v1alpha1", "kind": "Rollout"}


FORMS: Final[dict[str, tuple[Form, ...]]] = {
    "written otherwise": (
        as_stored,
        options_with_a_space,
        in_a_script,
        with_the_registry,
        selected_by_expressions,
        in_other_units,
        with_named_ports,
        in_reverse,
        in_a_list,
    ),
    "as Rollouts with a sidecar": (as_rollouts, with_a_log_shipper),
}
"""Forms that are tried together: whoever meets a lost answer leaves out one after the other."""
