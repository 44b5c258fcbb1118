"""Tasks of Tekton that mount two claims, which its affinity assistant does not allow.

Source: `ValidateOnlyOnePVCIsUsed` in pkg/workspace/validate.go and its caller in
pkg/reconciler/taskrun/taskrun.go of Tekton Pipelines 1.0, as in 0.44, and
https://tekton.dev/docs/pipelines/affinityassistants/.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.core.contracts import Certainty, Facts, Finding, Findings, Target
from policies.kube.group_kinds import CONFIG_MAP, GroupKind
from policies.kube.json import Json, mapping, maps, text
from policies.kube.names import listed
from policies.kube.objects.storage import ConfigMap

_TASK_RUN: Final = GroupKind("tekton.dev", "TaskRun")
_PIPELINE_RUN: Final = GroupKind("tekton.dev", "PipelineRun")
_PIPELINE: Final = GroupKind("tekton.dev", "Pipeline")
_FLAGS: Final = "feature-flags"
"""The ConfigMap in which `coschedule`, before 0.68 also `disable-affinity-assistant`, switches it off."""
_PARAMETER: Final = "$("


def claims_of_one_task(target: Target, facts: Facts) -> Findings:
    """Findings about the workspaces of a TaskRun or a PipelineRun of which one task mounts several claims."""
    if target.kind not in (_TASK_RUN, _PIPELINE_RUN):
        return
    claims = dict(_claims(mapping(target.obj, "spec")))
    if len(set(claims.values())) < 2 or _is_off(facts):
        return
    for task, names in _tasks(target, facts):
        used = {claims[name]: name for name in names if name in claims}
        if len(used) > 1:
            yield Finding(
                "spec.workspaces",
                f"{task} mounts two claims, of the workspaces {listed(sorted(used.values()))}. With its "
                "affinity assistant, which is on by default, Tekton fails such a TaskRun without a pod.",
                "Use one claim with a subPath for each workspace, or an emptyDir for all but one of them.",
                Certainty.LIKELY,  # the cluster may have switched it off
            )
            return


def _claims(spec: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The names of workspaces, each with a key of its claim."""
    for each in maps(spec, "workspaces"):
        name, claim = text(each, "name"), text(each, "persistentVolumeClaim", "claimName")
        if each.get("volumeClaimTemplate") is not None:
            yield name, f"{_PARAMETER}{name}"  # no claim has such a name
        elif claim and _PARAMETER not in claim:
            yield name, claim


def _tasks(target: Target, facts: Facts) -> Iterator[tuple[str, list[str]]]:
    """The tasks of a run, each with the names of the run's workspaces that it mounts."""
    spec = mapping(target.obj, "spec")
    if target.kind == _TASK_RUN:
        yield "The task", [name for name, _ in _claims(spec)]
        return
    pipeline: Mapping[str, object] = mapping(spec, "pipelineSpec")
    if (name := text(spec, "pipelineRef", "name")) and facts.whole is not None:
        found: Json | None = facts.whole.named(_PIPELINE, facts.namespace, name)
        pipeline = mapping(found or {}, "spec")
    for task in (*maps(pipeline, "tasks"), *maps(pipeline, "finally")):
        names = [text(each, "workspace") or text(each, "name") for each in maps(task, "workspaces")]
        yield f"Task {text(task, 'name')}", names


def _is_off(facts: Facts) -> bool:
    """Whether a ConfigMap of Tekton among the manifests switches the assistant off."""
    known = () if facts.whole is None else facts.whole.typed(CONFIG_MAP, None, ConfigMap)
    return any(
        each.data.get("coschedule", "workspaces") != "workspaces"
        or each.data.get("disable-affinity-assistant") == "true"
        for each in known
        if each.name == _FLAGS
    )
