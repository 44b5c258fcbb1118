"""The canary that an annotation describes: one request that a user's own server answers only if it works."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from policies.core.annotations import CANARY, CANARY_BODY, CANARY_TIME
from policies.core.facts import Facts
from policies.core.pod_view import PodView
from policies.kube.json import Json
from policies.kube.pods import Container
from policies.kube.quantities import parse_duration
from policies.probes.health import annotations_apply_to
from policies.probes.preset import Canary, Progress

LONGEST: Final = 300
"""Seconds that an answer to a canary may take."""
BODY_VARIABLE: Final = "MLCHASSIS_CANARY_BODY"
"""The variable of the container with a body from a ConfigMap."""
_TIME: Final = 20
"""Seconds that it may take without an annotation."""
_INCLUDED: Final = 15
"""Seconds of it that fit into the program's own deadline."""
_SILENCE: Final = 300
"""Seconds in which nothing may show work until a check fails."""
_LARGEST_BODY: Final = 16 << 10


def parse_canary(value: object) -> tuple[str, str]:
    """`POST /predict` -> the method and the path. Raises ValueError with a sentence."""
    match = _REQUEST.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{str(value)[:40]!r} is not GET or POST and a path, such as POST /predict")
    return match[1], match[2]


_REQUEST: Final = re.compile(r"(GET|POST) (/[!-~]{0,2047})", re.ASCII)


class BodyKey(NamedTuple):
    """The key of a ConfigMap that contains the body."""

    config_map: str
    key: str


def parse_body(value: object) -> str | BodyKey:
    """The text of a JSON body, or `configMap:NAME/KEY`. Raises ValueError with a sentence."""
    text = str(value)
    if text.startswith(_CONFIG_MAP):
        match = _BODY_KEY.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:40]!r} is not configMap: with a name, a slash and a key")
        return BodyKey(match[1], match[2])
    if len(text) > _LARGEST_BODY:
        raise ValueError(f"its {len(text)} characters are more than {_LARGEST_BODY}")
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    return text


_CONFIG_MAP: Final = "configMap:"
_BODY_KEY: Final = re.compile(r"configMap:([a-z0-9][a-z0-9.-]{0,252})/([A-Za-z0-9._-]{1,253})", re.ASCII)


def parse_time(value: object) -> int:
    """Seconds. Raises ValueError with a sentence."""
    seconds = parse_duration(value)
    if not 1 <= seconds <= LONGEST:
        raise ValueError(f"{seconds} s is not between 1 s and {LONGEST} s")
    return seconds


def requested_canary(pod: PodView, container: Container, facts: Facts) -> str | None:
    """The request in a container's annotation, such as `POST /predict`; None without a valid one."""
    progress = annotated_progress(pod, container, facts)
    if progress is None:
        return None
    (canary,) = progress.canaries
    return f"{'GET' if canary.body is None else 'POST'} {canary.path}"


def annotated_progress(pod: PodView, container: Container, facts: Facts) -> Progress | None:
    """The check of progress that a container's annotations describe; None without valid ones."""
    if not pod.chassis_annotations:
        return None
    return facts.pod_caches[pod].once_for(container, _annotated_progress, pod, container, facts)


def _annotated_progress(pod: PodView, container: Container, facts: Facts) -> Progress | None:
    if (request := _value(pod, container, CANARY, facts)) is None:
        return None
    body, seconds = (_value(pod, container, each, facts) for each in (CANARY_BODY, CANARY_TIME))
    try:
        method, path = parse_canary(request)
        content = None if method == "GET" else "{}" if body is None else parse_body(body)
        longest = _TIME if seconds is None else parse_time(seconds)
    except ValueError:
        return None
    return Progress(
        connections=True,
        canaries=(Canary(path=path, body="" if isinstance(content, BodyKey) else content),),
        body_variable=BODY_VARIABLE if isinstance(content, BodyKey) else "",
        longest=max(longest - _INCLUDED, 0),
        silence=_SILENCE,
    )


def body_variable(pod: PodView, container: Container, facts: Facts) -> Json | None:
    """The variable for a canary with its body in a ConfigMap; None for others, and if the container has it.
    Without the ConfigMap it is not set, and no canary is sent."""
    progress = annotated_progress(pod, container, facts)
    if progress is None or any(each.name == progress.body_variable for each in container.typed.env):
        return None
    body = parse_body(_value(pod, container, CANARY_BODY, facts)) if progress.body_variable else ""
    if not isinstance(body, BodyKey):
        return None
    reference = {"name": body.config_map, "key": body.key, "optional": True}
    return {"name": progress.body_variable, "valueFrom": {"configMapKeyRef": reference}}


def _value(pod: PodView, container: Container, name: str, facts: Facts) -> str | None:
    """An annotation for a container: its own one, or the pod's if that is about it."""
    given = pod.chassis_annotations
    own = given.get(f"{name}.{container.name}")
    return given.get(name) if own is None and annotations_apply_to(pod, container, facts) else own
