"""retries-without-limit: training that starts again for ever after each failure of its program."""

from __future__ import annotations

from typing import Final

from policies.accelerators.requests import is_large
from policies.containers.programs import only_idles
from policies.core.contracts import Facts, Finding, Findings, PodFeature, Target, rule
from policies.core.runs import RetryAt, Run, runs_in
from policies.kube.field_paths import every_value_at, field_path
from policies.kube.group_kinds import JOB, kind_of
from policies.kube.pods import Role

_NO_LIMIT: Final = 1000
"""Retries that no run reaches."""


def check(target: Target, facts: Facts) -> Findings:
    if only_idles(target):
        return
    yield from _in_place(target, facts)
    for run in runs_in(target.obj):
        found = next((each for each in run.retries() if _is_endless(each, run)), None)
        if found is None:
            continue
        # Retries of certain exit codes only are a decision.
        chosen = bool(found.retry.exit_codes) or not _is_expensive(target, run, facts)
        if chosen and not _has_useless(found, run):
            continue
        kind = run.life.kind if run.life.group_kind != JOB else kind_of(target.obj).kind
        useless = ", although the manifest limits its retries" if _has_useless(found, run) else ""
        yield Finding(
            field_path(found.steps),
            f"{_what(found)} restarts for as long as the {kind} exists{useless}, and its pods keep their "
            f"resources: {found.retry.why}.",
            found.retry.instead,
        )


def _in_place(target: Target, facts: Facts) -> Findings:
    """Containers of pods that are not restarted, with a restartPolicy of their own. The Job counts restarts
    only if the pods have it: `pastBackoffLimitOnFailure` in pkg/controller/job/job_controller.go of
    Kubernetes 1.36."""
    for run in runs_in(target.obj):
        if run.life.group_kind != JOB or run.value(run.life.deadline):
            continue
        for template in target.templates:
            spec = template.typed.spec
            if template.steps[: len(run.steps)] != run.steps or spec.restart_policy != "Never":
                continue
            if spec.active_deadline_seconds is not None or not is_large(template.view, facts):
                continue
            for container in template.containers(Role.MAIN):
                if container.typed.restart_policy == "OnFailure":
                    yield Finding(
                        template.at(container, "restartPolicy"),
                        f"The kubelet restarts container {container.name} after each error, for as long as "
                        "the pod exists: backoffLimit counts the restarts of containers only if the pods "
                        "have restartPolicy OnFailure.",
                        "Remove it, so that a failed pod is replaced and counts. Or set it for the pod.",
                    )


def _is_endless(each: RetryAt, run: Run) -> bool:
    deadline = run.life.deadline
    return bool(each.retry.why) and each.limit is None and not (deadline and run.value(deadline))


def _has_useless(each: RetryAt, run: Run) -> bool:
    """Whether its author wrote a limit that has no effect. Whoever writes 100000 wants no limit."""
    values = (value for path in each.retry.useless for _, value in every_value_at(run.spec, path))
    return any(value if not isinstance(value, int) else 0 < value < _NO_LIMIT for value in values)


def _what(each: RetryAt) -> str:
    return (
        "A program that fails with a retried exit code"
        if each.retry.exit_codes
        else "A program with an error"
    )


def _is_expensive(target: Target, run: Run, facts: Facts) -> bool:
    """Whether a run holds accelerators or large pods, or several pods that train or work together."""
    if not run.life.roles or any(is_large(template.view, facts) for template in target.templates):
        return True
    together = run.life.trains or any(map(run.has, run.life.together))
    serves = any(map(run.has, run.life.serves))
    return together and not serves and sum(each.pods for each in run.roles()) > 1


RULE = rule(__name__, check, requires=(PodFeature.COMPLETES,), unowned=True)
