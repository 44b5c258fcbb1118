"""Text in which some parts are known only inside the running container, and the container's environment.

A value is a plain `str`. A part that isn't known is marked in it with private-use characters, so that
URLs, flags and host:port pairs can be taken apart by ordinary string work with the marks in place:
`http://<unknown DB_HOST>:5432/` still has a host and a port. There are three marks: unknown, the pod's
own (its IP, its hostname), and another's for certain (the node's IP, the API server's).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from policies.commands.budget import CHARACTERS, Budget

_UNKNOWN, _OWN, _OTHER, _END = "\ue000", "\ue001", "\ue002", "\ue003"
_MARK = re.compile("[\ue000-\ue002]([^\ue000-\ue003]*)\ue003")
_NAME_SAFE = re.compile(r"[^A-Za-z0-9_.()-]")
_REFERENCE = re.compile(r"\$(?:\$|\(([^()$]*)\))")

MAX_VALUE = 4096
"""Longest expanded value that is followed, in characters. `A=$B$B` can double at every step."""

_OWN_FIELDS = {"status.podIP", "status.podIPs", "metadata.name"}
_NODE_FIELDS = {"status.hostIP", "status.hostIPs", "spec.nodeName"}


def clean(text: str) -> str:
    """`text` without the private-use characters that marks are made of."""
    return text if text.isascii() else re.sub("[\ue000-\ue003]", "?", text)


def _spelled(name: str) -> str:
    return _NAME_SAFE.sub("", name[:240])[:60]


def unknown(name: str) -> str:
    """A part that only the running container knows; `name` is how the script spells it, without `$`."""
    return f"{_UNKNOWN}{_spelled(name)}{_END}"


def own(name: str) -> str:
    """The pod's own address or name."""
    return f"{_OWN}{_spelled(name)}{_END}"


def other(name: str) -> str:
    """An address that is another machine's for certain."""
    return f"{_OTHER}{_spelled(name)}{_END}"


def is_known(text: str) -> bool:
    """Whether no part of `text` is marked."""
    return text.isascii() or _MARK.search(text) is None


def has_unknown(text: str) -> bool:
    return _UNKNOWN in text


def starts_with_own(text: str) -> bool:
    return text.startswith(_OWN)


def starts_with_other(text: str) -> bool:
    return text.startswith(_OTHER)


def after_mark(text: str) -> str:
    """The text after the mark that `text` starts with."""
    return text.partition(_END)[2]


def show(text: str) -> str:
    """`text` for people: marked parts as a shell spells them."""
    if text.isascii():  # marks are not
        return text
    return _MARK.sub(lambda mark: f"${mark[1]}", text)


class Environment:
    """A container's variables, as Kubernetes sets them: `env` in order, `envFrom` as the unknown it is.

    `values` maps each variable of `env` to its value, marked where it comes from the downward API, a
    Secret or a ConfigMap. `references` is what kubelet puts in place of `$(VAR)`: in a container's own
    command it knows them all; in exec probes and lifecycle hooks only literal values, and a variable with
    `valueFrom` becomes empty there (`ExpandContainerCommandOnlyStatic` in kubelet's
    `container/helpers.go`).
    """

    def __init__(
        self,
        env: Sequence[Any] = (),
        env_from: Sequence[Any] = (),
        *,
        budget: Budget,
        static: bool = True,
        host_network: bool = False,
    ) -> None:
        self.budget = budget
        self.values: dict[str, str] = {}
        self.references: Mapping[str, str] = {}
        self.open = bool(env_from)
        """Whether further variables may be set that the spec doesn't list."""
        self.emptied: set[str] = set()
        """Variables that `$(VAR)` replaces by nothing."""
        budget.spend(len(env) // 4)
        values, emptied = self.values, self.emptied
        plain = 0  # steps for plain values: most are plain, and there may be hundreds
        for entry in env:
            if type(entry) is not dict or type(name := entry.get("name")) is not str:
                continue
            text = entry.get("value")
            if len(entry) == 2 and type(text) is str and "$" not in text and text.isascii():
                plain += 2 + len(name) // CHARACTERS + len(text) // CHARACTERS
                values[name] = text
                if emptied:
                    emptied.discard(name)
                continue
            source = entry.get("valueFrom")
            if type(source) is dict:
                budget.scan(len(name))
                values[name] = _from_source(name, source, host_network=host_network)
                if static:
                    emptied.add(name)
                continue
            if type(text) is not str:
                text = ""
            if "$" not in text and text.isascii():
                plain += 2 + len(name) // CHARACTERS + len(text) // CHARACTERS
                values[name] = text
            else:
                budget.scan(len(name))
                values[name] = self._expanded(clean(text), values, known_only=False)
            if emptied:
                emptied.discard(name)
        budget.spend(plain)
        self.references = {**values, **dict.fromkeys(emptied, "")} if emptied else values

    def expand(self, text: str) -> str:
        """`text` of a command with Kubernetes' `$(VAR)` replaced; `$$(VAR)` becomes `$(VAR)`."""
        if "$" not in text and text.isascii():  # as most words are
            self.budget.scan(len(text))
            return text
        return self._expanded(clean(text), self.references, known_only=True)

    def emptied_in(self, text: str) -> Collection[str]:
        """The variables that `$(VAR)` in `text` would replace by nothing."""
        if not self.emptied:
            return ()
        self._pay_for_references(text)
        return sorted({name for name in _REFERENCE.findall(text) if name in self.emptied})

    def _pay_for_references(self, text: str) -> None:
        self.budget.spend(text.count("$"))

    def _expanded(self, text: str, values: Mapping[str, str], *, known_only: bool) -> str:
        self.budget.scan(len(text))
        if "$" not in text:
            return text
        self._pay_for_references(text)
        room = MAX_VALUE if not known_only else max(MAX_VALUE, 4 * len(text))

        def replace(found: re.Match[str]) -> str:
            nonlocal room
            name = found[1]
            if name is None:
                return "$"
            value = values.get(name)
            if value is None:
                return unknown(name) if self.open and not known_only else found[0]
            room -= len(value)
            return value if room > 0 else unknown(name)

        expanded = _REFERENCE.sub(replace, text)
        self.budget.scan(len(expanded))
        return expanded if known_only or len(expanded) <= MAX_VALUE else unknown("value")


def _from_source(name: str, source: Mapping[str, Any], *, host_network: bool) -> str:
    reference = source.get("fieldRef")
    path = str(reference.get("fieldPath")) if isinstance(reference, Mapping) else None
    if path in _OWN_FIELDS:
        return own(name)
    if path in _NODE_FIELDS:
        return own(name) if host_network else other(name)
    return unknown(name)
