"""Text in which only the running container knows some parts, and the container's environment.

A value is a plain `str`. Private-use characters mark its unknown parts, so that URLs, flags and host:port
pairs can be split with ordinary string functions: `http://<unknown DB_HOST>:5432/` still has a host and a
port. There are three marks: unknown, the pod's own (its IP address or hostname), and certainly another
machine's (the node's IP address, the API server's).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

from policies.commands.model import CHARACTERS, StepBudget

UNKNOWN, OWN, OTHER, END = "\ue000", "\ue001", "\ue002", "\ue003"
_MARK = re.compile("[\ue000-\ue002]([^\ue000-\ue003]*)\ue003")
_NAME_SAFE = re.compile(r"[^A-Za-z0-9_.()-]")
_REFERENCE = re.compile(r"\$(?:\$|\(([^()$]*)\))")

MAX_VALUE = 4096
"""Maximum length of an expanded value that is followed, in characters. `A=$B$B` can double at every step."""

_OWN_FIELDS = {"status.podIP", "status.podIPs", "metadata.name"}
_NODE_FIELDS = {"status.hostIP", "status.hostIPs", "spec.nodeName"}


def clean(text: str) -> str:
    """`text` without the private-use characters of marks."""
    return text if text.isascii() else re.sub("[\ue000-\ue003]", "?", text)


def _marked(mark: str, name: str) -> str:
    return f"{mark}{_NAME_SAFE.sub('', name[:240])[:60]}{END}"


def unknown(name: str) -> str:
    """A part that only the running container knows; `name` is its name in the script, without `$`."""
    return _marked(UNKNOWN, name)


def own(name: str) -> str:
    """The pod's own address or name."""
    return _marked(OWN, name)


def other(name: str) -> str:
    """An address that is certainly another machine's."""
    return _marked(OTHER, name)


def is_known(text: str) -> bool:
    """Whether no part of `text` is marked."""
    return text.isascii() or _MARK.search(text) is None


def has_unknown(text: str) -> bool:
    return UNKNOWN in text


def show(text: str) -> str:
    """`text` for people: marked parts as a shell spells them."""
    if text.isascii():  # marks are not
        return text
    return _MARK.sub(lambda mark: f"${mark[1]}", text)


class Environment:
    """The environment variables of a container, as Kubernetes sets them.

    `values` maps each variable of `env` to its value, which is marked if it comes from the downward API, a
    Secret or a ConfigMap. `references` contains the values by which the kubelet replaces `$(VAR)`. In a
    container's own command the kubelet knows all variables. In exec probes and lifecycle hooks (`static`) it
    knows only literal values, and replaces a variable with `valueFrom` by nothing
    (`ExpandContainerCommandOnlyStatic` in the kubelet's `container/helpers.go`).
    """

    def __init__(
        self,
        env: Sequence[Any] = (),
        env_from: Sequence[Any] = (),
        *,
        budget: StepBudget,
        static: bool = True,
        host_network: bool = False,
    ) -> None:
        self.budget = budget
        self.has_env_from = bool(env_from)
        """Whether variables may be set that `env` does not list."""
        self._env, self._static, self._host_network = env, static, host_network
        budget.spend(len(env) // 4)

    @property
    def values(self) -> dict[str, str]:
        return self._read[0]

    @property
    def emptied(self) -> Collection[str]:
        """Variables that the kubelet replaces by nothing in `$(VAR)`."""
        return self._read[1]

    @cached_property
    def references(self) -> Mapping[str, str]:
        values, emptied = self._read
        return {**values, **dict.fromkeys(emptied, "")} if emptied else values

    @cached_property
    def _read(self) -> tuple[dict[str, str], set[str]]:
        """The values and the emptied variables. Most commands use none, and there may be hundreds."""
        values: dict[str, str] = {}
        emptied: set[str] = set()
        plain = 0  # steps for plain values: most are plain
        for entry in self._env:
            if type(entry) is not dict or type(name := entry.get("name")) is not str:
                continue
            source = entry.get("valueFrom")
            if type(source) is dict:
                self.budget.scan(len(name))
                values[name] = _from_source(name, source, host_network=self._host_network)
                if self._static:
                    emptied.add(name)
                continue
            text = entry.get("value")
            if type(text) is not str:
                text = ""
            if "$" not in text and text.isascii():
                plain += 2 + len(name) // CHARACTERS + len(text) // CHARACTERS
                values[name] = text
            else:
                self.budget.scan(len(name))
                values[name] = self._expanded(clean(text), values, known_only=False)
            if emptied:
                emptied.discard(name)
        self.budget.spend(plain)
        return values, emptied

    def expand(self, text: str) -> str:
        """`text` of a command with Kubernetes' `$(VAR)` replaced; `$$(VAR)` becomes `$(VAR)`."""
        if "$" not in text and text.isascii():  # most words
            self.budget.scan(len(text))
            return text
        return self._expanded(clean(text), self.references, known_only=True)

    def emptied_in(self, text: str) -> Collection[str]:
        """The variables that `$(VAR)` in `text` would replace by nothing."""
        if "$" not in text or not self.emptied:
            return ()
        self.budget.spend(text.count("$"))
        return sorted({name for name in _REFERENCE.findall(text) if name in self.emptied})

    def _expanded(self, text: str, values: Mapping[str, str], *, known_only: bool) -> str:
        self.budget.scan(len(text))
        if "$" not in text:
            return text
        self.budget.spend(text.count("$"))
        room = MAX_VALUE if not known_only else max(MAX_VALUE, 4 * len(text))

        def replace(found: re.Match[str]) -> str:
            nonlocal room
            name = found[1]
            if name is None:
                return "$"
            value = values.get(name)
            if value is None:
                return unknown(name) if self.has_env_from and not known_only else found[0]
            room -= len(value)
            return value if room > 0 else unknown(name)

        expanded = _REFERENCE.sub(replace, text)
        self.budget.scan(len(expanded))
        return expanded if known_only or len(expanded) <= MAX_VALUE else unknown("value")


def _from_source(name: str, source: Mapping[str, Any], *, host_network: bool) -> str:
    reference = source.get("fieldRef")
    path = str(reference.get("fieldPath")) if isinstance(reference, Mapping) else None
    if path in _OWN_FIELDS or (path in _NODE_FIELDS and host_network):
        return own(name)
    return other(name) if path in _NODE_FIELDS else unknown(name)
