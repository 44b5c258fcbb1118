"""A small client of the Kubernetes REST API for tests: plain JSON, watches, and every header.

kubectl hides what tests must see (warnings, status codes, one request at a time), and typed client
models drop fields they don't know. One connection per request makes it safe to use from threads.
"""

from __future__ import annotations

import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

JSON = dict[str, Any]
DISCOVERY = ",".join(
    f"application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList"
    for version in ("v2", "v2beta1")  # the second before Kubernetes 1.30
)
MERGE_PATCH = "application/merge-patch+json"
TIMEOUT = 120
"""Seconds for an expected event, on a machine that does other things."""


class ApiError(RuntimeError):
    """The API server answered with a status of 400 or above."""

    def __init__(self, status: int, body: JSON) -> None:
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', body)}")
        self.status = status
        self.body = body

    @property
    def reason(self) -> str:
        """The machine-readable reason, e.g. "AlreadyExists"."""
        return str(self.body.get("reason", ""))

    @property
    def message(self) -> str:
        """What a person reads."""
        return str(self.body.get("message", ""))


class WaitTimeoutError(AssertionError):
    """What a test waited for did not happen; carries the last state seen."""


@dataclass(frozen=True)
class Answer:
    """One successful response."""

    status: int
    body: JSON
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Resource:
    """A served resource, as discovery names it."""

    group_version: str
    kind: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The REST path of one object, or of the collection when `name` is None."""
        root = "/api/v1" if self.group_version == "v1" else f"/apis/{self.group_version}"
        parts = [root, *(("namespaces", namespace) if self.namespaced and namespace else ()), self.plural]
        parts += [part for part in (name, subresource) if part]
        return "/".join(parts)


class Api:
    """The API server as one user sees it.

    Resources are named as kubectl names them ("pods", "deployments", "rayclusters.ray.io"). Objects
    go in and come out as plain JSON. Errors of the server are raised as `ApiError`.
    """

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, token: str | None = None) -> None:
        self._host, self._port, self._tls = host, port, tls
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.namespace: str | None = None
        """The namespace of requests that name none."""
        self._resources: dict[str, Resource] = {}

    def within(self, namespace: str) -> Api:
        """The same client, whose requests are about this namespace if they name none."""
        client = copy(self)
        client.namespace = namespace
        return client

    # One request

    def request(
        self,
        method: str,
        path: str,
        body: JSON | list[Any] | None = None,
        *,
        content_type: str = "application/json",
        accept: str = "application/json",
        timeout: float = 60,
    ) -> Answer:
        """Send one request; `path` may carry a query."""
        with self.connection(timeout) as connection:
            headers = {**self.headers, "Accept": accept, "Content-Type": content_type}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
            warnings = _unwrapped(map(_warning_text, response.msg.get_all("Warning", ())))
        try:
            answer: JSON = json.loads(text)
        except ValueError:
            answer = {"message": text.decode(errors="replace")}
        if response.status >= 400:
            raise ApiError(response.status, answer)
        return Answer(response.status, answer, warnings)

    def get(self, resource: str, name: str, namespace: str | None = None) -> JSON:
        """One object."""
        return self.request("GET", self._path(resource, namespace, name)).body

    def exists(self, resource: str, name: str, namespace: str | None = None) -> bool:
        """Whether the object is there."""
        try:
            self.get(resource, name, namespace)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def items(self, resource: str, namespace: str | None = None, labels: str = "") -> list[JSON]:
        """The objects of a namespace, or of all, that a label selector selects."""
        query = "?" + urlencode({"labelSelector": labels}) if labels else ""
        return list(self.request("GET", self._path(resource, namespace) + query).body["items"])

    def create(self, item: JSON, namespace: str | None = None, *, dry_run: bool = False) -> Answer:
        """Create the object; its kind decides where. The answer carries the warnings."""
        resource = self.resource(item["apiVersion"] + "/" + item["kind"])
        path = resource.path(namespace or item["metadata"].get("namespace") or self.namespace or "default")
        return self.request("POST", path + ("?dryRun=All" if dry_run else ""), item)

    def warnings(self, item: JSON) -> str:
        """The warnings about an object that is created by dry run."""
        return " ".join(self.create(item, dry_run=True).warnings)

    def replace(self, item: JSON, subresource: str | None = None) -> Answer:
        """PUT the object (or its status) with the resourceVersion that it carries."""
        resource, metadata = self.resource(item["apiVersion"] + "/" + item["kind"]), item["metadata"]
        path = resource.path(metadata.get("namespace") or self.namespace, metadata["name"], subresource)
        return self.request("PUT", path, item)

    def patch(
        self,
        resource: str,
        name: str,
        change: JSON,
        namespace: str | None = None,
        subresource: str | None = None,
    ) -> Answer:
        """Apply a JSON merge patch."""
        path = self._path(resource, namespace, name, subresource)
        return self.request("PATCH", path, change, content_type=MERGE_PATCH)

    def delete(
        self,
        resource: str,
        name: str,
        namespace: str | None = None,
        grace: int | None = None,
        uid: str | None = None,
    ) -> None:
        """Delete in the background; `grace` 0 removes a pod at once, and `uid` spares its successors."""
        body: JSON = {} if grace is None else {"gracePeriodSeconds": grace}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        self.request("DELETE", self._path(resource, namespace, name), body)

    # Watching

    def watch(
        self, resource: str, namespace: str | None, since: str, selectors: dict[str, str], timeout: float
    ) -> Iterator[JSON]:
        """The watch events after resourceVersion `since`; ends after `timeout` seconds."""
        query = {"watch": "1", "resourceVersion": since, "timeoutSeconds": str(max(1, round(timeout)))}
        path = self._path(resource, namespace) + "?" + urlencode(query | selectors)
        # A busy server may take longer than a short watch lasts until it begins to answer.
        with self.connection(timeout + 30) as connection:
            connection.request("GET", path, headers=self.headers)
            response = connection.getresponse()
            deadline = time.monotonic() + timeout
            if response.status >= 400:
                raise ApiError(response.status, json.loads(response.read()))
            while (left := deadline - time.monotonic()) > 0:
                if connection.sock is not None:
                    connection.sock.settimeout(left)
                try:
                    line = response.readline()
                except TimeoutError:
                    return
                if not line:
                    return
                yield json.loads(line)

    def wait_for(
        self,
        resource: str,
        until: Callable[[list[JSON]], object],
        *,
        namespace: str | None = None,
        name: str | None = None,
        labels: str = "",
        timeout: float = TIMEOUT,
    ) -> list[JSON]:
        """Watch the selected objects until `until` is true of the list of them; return that list.

        Raises:
            WaitTimeoutError: it was not true within `timeout` seconds.
        """
        selectors = {"labelSelector": labels} if labels else {}
        if name is not None:
            selectors["fieldSelector"] = f"metadata.name={name}"
        deadline = time.monotonic() + timeout
        query = "?" + urlencode(selectors) if selectors else ""
        current: dict[str, JSON] = {}
        while True:
            listing = self.request("GET", self._path(resource, namespace) + query).body
            current = {item["metadata"]["uid"]: item for item in listing["items"]}
            if until(list(current.values())):
                return list(current.values())
            if (left := deadline - time.monotonic()) <= 0:
                raise WaitTimeoutError(_not_seen(resource, name or labels, timeout, list(current.values())))
            for event in self.watch(
                resource, namespace, listing["metadata"]["resourceVersion"], selectors, left
            ):
                if event["type"] == "ERROR":  # e.g. the version has been compacted: list again
                    break
                item = event["object"]
                if event["type"] == "DELETED":
                    current.pop(item["metadata"]["uid"], None)
                else:
                    current[item["metadata"]["uid"]] = item
                if until(list(current.values())):
                    return list(current.values())

    def wait(
        self,
        resource: str,
        name: str,
        until: Callable[[JSON], object] = lambda _: True,
        *,
        namespace: str | None = None,
        timeout: float = TIMEOUT,
    ) -> JSON:
        """Watch one object until it exists and `until` is true of it; return it."""
        found = self.wait_for(
            resource, lambda items: any(map(until, items)), namespace=namespace, name=name, timeout=timeout
        )
        return found[0]

    # Discovery

    def _path(self, resource: str, namespace: str | None, *names: str | None) -> str:
        return self.resource(resource).path(namespace or self.namespace, *names)

    def resource(self, name: str) -> Resource:
        """Resolve "pods", "deployments.apps" or "apps/v1/Deployment"; asks again for new kinds."""
        if name not in self._resources:
            self._resources.update(self._discover())  # also for the clients of other namespaces
        try:
            return self._resources[name]
        except KeyError:
            raise LookupError(f"The API server serves no resource {name!r}.") from None

    def _discover(self) -> dict[str, Resource]:
        found: dict[str, Resource] = {}
        for root in ("/api", "/apis"):
            for group in self.request("GET", root, accept=DISCOVERY).body["items"]:
                group_name = group["metadata"].get("name", "")
                for version in group["versions"]:
                    group_version = f"{group_name}/{version['version']}".lstrip("/")
                    for served in version.get("resources", ()):
                        resource = Resource(
                            group_version,
                            served["responseKind"]["kind"],
                            served["resource"],
                            served["scope"] == "Namespaced",
                        )
                        # Core and preferred versions come first, and the first one keeps the short name.
                        found.setdefault(resource.plural, resource)
                        found.setdefault(f"{resource.plural}.{group_name}", resource)
                        found[f"{group_version}/{resource.kind}"] = resource
        return found

    @contextmanager
    def connection(self, timeout: float = 60) -> Iterator[http.client.HTTPSConnection]:
        """A connection that is kept, for many requests one after the other; each needs `headers`."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=self._tls)
        try:
            yield connection
        finally:
            connection.close()


def _warning_text(header: str) -> str:
    """The text of a Warning header, `299 - "text"`."""
    quoted = header.split(" ", 2)[2].removeprefix('"').removesuffix('"')
    return re.sub(r"\\(.)", r"\1", quoted)


def _unwrapped(lines: Iterable[str]) -> tuple[str, ...]:
    """The warnings, whose further lines are indented, each in one line."""
    whole: list[str] = []
    for line in lines:
        if whole and line.startswith("  "):
            whole[-1] += line[1:]
        else:
            whole.append(line)
    return tuple(whole)


def _not_seen(resource: str, which: str, timeout: float, current: Sequence[JSON]) -> str:
    state = json.dumps(
        [
            {key: item["metadata"].get(key) for key in ("name", "ownerReferences", "deletionTimestamp")}
            | {"status": item.get("status")}
            for item in current
        ],
        indent=1,
    )
    return f"Not seen within {timeout:g} s on {resource} {which}. The last state:\n{state[:4000]}"
