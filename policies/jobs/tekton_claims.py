"""Tasks of Tekton that mount two claims, which its affinity assistant does not allow, and tasks that look for
files of others in an emptyDir of their own.

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


def files_in_empty_dirs(target: Target, facts: Facts) -> Findings:
    """Findings about the emptyDirs of a PipelineRun that a task has after another one."""
    bound = maps(target.obj, "spec", "workspaces") if target.kind == _PIPELINE_RUN else ()
    names = {text(each, "name") for each in bound if each.get("emptyDir") is not None}
    tasks = list(maps(_pipeline(target, facts), "tasks")) if names else []
    for task in tasks:
        before = task.get("runAfter")
        earlier = [each for each in tasks if isinstance(before, list) and text(each, "name") in before]
        for other in earlier:
            shared = sorted(names & set(_workspaces(task)) & set(_workspaces(other)))
            if shared:
                yield Finding(
                    "spec.workspaces",
                    f"Tasks {text(other, 'name')} and {text(task, 'name')} have the workspace {shared[0]}, "
                    "an emptyDir. Each task gets another one, so the second finds no files of the first.",
                    "Use a volumeClaimTemplate or a claim for it.",
                    Certainty.LIKELY,  # both may use it for files of their own
                )
                return


def _pipeline(target: Target, facts: Facts) -> Mapping[str, object]:
    """The spec of the Pipeline of a run, also from another file; empty if it is unknown."""
    spec = mapping(target.obj, "spec")
    name = text(spec, "pipelineRef", "name")
    if not name or facts.whole is None:
        return mapping(spec, "pipelineSpec")
    found: Json | None = facts.whole.named(_PIPELINE, facts.namespace, name)
    return mapping(found or {}, "spec")


def _workspaces(task: Json) -> list[str]:
    """The names of the run's workspaces that a task of a Pipeline mounts."""
    return [text(each, "workspace") or text(each, "name") for each in maps(task, "workspaces")]


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
    pipeline = _pipeline(target, facts)
    for task in (*maps(pipeline, "tasks"), *maps(pipeline, "finally")):
        yield f"Task {text(task, 'name')}", _workspaces(task)


def _is_off(facts: Facts) -> bool:
    """Whether a ConfigMap of Tekton among the manifests switches the assistant off."""
    known = () if facts.whole is None else facts.whole.typed(CONFIG_MAP, None, ConfigMap)
    return any(
        each.data.get("coschedule", "workspaces") != "workspaces"
        or each.data.get("disable-affinity-assistant") == "true"
        for each in known
        if each.name == _FLAGS
    )
