"""root-user-refused: containers that run as root in a pod that must not."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule

_OTHER_USERS = "windows"
"""The operating system on which runAsUser has no meaning."""


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        spec = template.typed.spec
        pod = spec.security_context
        every = (*spec.containers, *spec.init_containers)
        if pod.run_as_user != 0 and all(each.security_context.run_as_user != 0 for each in every):
            continue
        for container in template.containers():
            own = container.typed.security_context
            user = pod.run_as_user if own.run_as_user is None else own.run_as_user
            # Values of the container win, each by itself: pkg/securitycontext/util.go of Kubernetes.
            wanted = pod.run_as_non_root if own.run_as_non_root is None else own.run_as_non_root
            if user != 0 or not wanted or spec.operating_system == _OTHER_USERS:
                continue
            where = "the pod" if own.run_as_non_root is None else "the same container"
            yield Finding(
                f"{template.spec_path}.securityContext.runAsUser"
                if own.run_as_user is None
                else template.at(container, "securityContext.runAsUser"),
                f"Container {container.name} runs as user 0, but {where} sets runAsNonRoot. The kubelet "
                "never creates the container (CreateContainerConfigError).",
                f"Set runAsNonRoot: false in the securityContext of container {container.name}, or another "
                "user.",
            )


RULE = rule(__name__, check)
