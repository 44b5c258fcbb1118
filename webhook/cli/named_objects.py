"""Which other objects of the input a finding names, so that an output can point at them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from policies.kube.group_kinds import CLAIM
from webhook.manifests.files import Document

_NAMED: Final = re.compile(
    r"\b([Cc]laim|[A-Z][A-Za-z]{2,62}) ([a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)(?![-\w/])"
)
"""A kind and a name. Many sentences have such words by chance: only objects that exist count."""


def named_in(message: str) -> Iterator[tuple[str, str]]:
    """The kind and name of everything in a sentence that may be an object, in order, each once."""
    found = dict.fromkeys(_NAMED.findall(message))
    return ((CLAIM.kind if kind.lower() == "claim" else kind, name) for kind, name in found)


class NamedObjects:
    """The objects of an input by kind and name."""

    def __init__(self, documents: Iterable[Document]) -> None:
        self._documents: dict[tuple[str, str], list[Document]] = {}
        for document in documents:
            key = document.identity[0].kind, document.name
            self._documents.setdefault(key, []).append(document)

    def others(self, document: Document, message: str) -> list[Document]:
        """The other objects that a finding about a document names. Of several with the same name in a
        namespace, as for several environments, the one in the same file; none if there is no such one."""
        return [
            other
            for key in named_in(message)
            if (other := self._one(document, key)) is not None and other.obj is not document.obj
        ]

    def _one(self, document: Document, key: tuple[str, str]) -> Document | None:
        found = self._documents.get(key, [])
        if document.namespace:
            found = [each for each in found if each.namespace in ("", document.namespace)]
        near = [each for each in found if each.source == document.source]
        candidates = near or found
        return candidates[0] if len(candidates) == 1 else None
