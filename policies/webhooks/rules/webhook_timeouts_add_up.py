"""webhook-timeouts-add-up: mutating webhooks whose timeouts together exceed that of a request."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.kube.group_kinds import MUTATING_WEBHOOKS
from policies.kube.objects.reading import readable
from policies.kube.objects.webhooks import Webhook, WebhookConfiguration
from policies.webhooks.requests import covers_any_object, covers_namespace, covers_resource

REQUEST: Final = 34
"""Seconds after which the API server ends a request: `requestTimeoutUpperBound` in k8s.io/apiserver v0.36."""
_PLACE: Final = "default"
"""A namespace that no webhook leaves out by accident."""
_MAX_NAMES: Final = 3


class _Wait(Struct, frozen=True):
    """A webhook that is called for new pods and may be skipped."""

    seconds: int
    configuration: str
    index: int
    name: str


def check(target: Target, facts: Facts) -> Findings:
    known = [target.obj] if facts.whole is None else facts.whole.every(MUTATING_WEBHOOKS, "")
    read = (readable(obj, WebhookConfiguration) for obj in known)
    waits = [
        _Wait(webhook.timeout, configuration.name, index, webhook.name)
        for configuration in read
        if configuration is not None
        for index, webhook in enumerate(configuration.webhooks)
        if not configuration.fails_closed(webhook) and _reviews_pods(webhook, facts)
    ]
    waits.sort(key=lambda each: (-each.seconds, each.configuration, each.index))
    once: dict[str, _Wait] = {}
    for each in waits:  # two of one name are alternatives: an operator with a component, and the component
        once.setdefault(each.name, each)
    waits = list(once.values())
    total = sum(each.seconds for each in waits)
    if total <= REQUEST:
        return
    if waits[0].configuration != target.name:
        return  # it is reported once, at the longest timeout
    named = ", ".join(f"{each.name}: {each.seconds} s" for each in waits[:_MAX_NAMES])
    more = ", …" if len(waits) > _MAX_NAMES else ""
    yield Finding(
        f"webhooks[{waits[0].index}].timeoutSeconds",
        f"{len(waits)} mutating webhooks with failurePolicy Ignore are called one after the other for each "
        f"pod ({named}{more}). If none of them answers, that takes {total} s, but the API server ends the "
        f"request after {REQUEST} s.",
        "Set timeoutSeconds of each to 5 or less.",
    )


def _reviews_pods(webhook: Webhook, facts: Facts) -> bool:
    return (
        covers_resource(webhook, "", "pods", ("CREATE",), namespaced=True)
        and covers_any_object(webhook)
        and covers_namespace(webhook, _PLACE, facts)
    )


RULE = rule(__name__, check, (MUTATING_WEBHOOKS,))
