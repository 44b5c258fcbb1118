"""Models in OCI registries: ModelPack artifacts, files that ORAS pushed, and images with a model in /models.

Source: the OCI distribution and image specifications 1.1, ModelPack's model specification (layers
`application/vnd.cncf.model.*`, the annotation `org.cncf.model.filepath`) and KServe's Modelcars (images with
the model in the directory /models). Each attempt resolves the reference to a manifest, and fetches by digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import platform
import posixpath
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

import orjson
from aiohttp import ClientResponse, encode_basic_auth
from yarl import URL

from puller.model_config import OCI_REFERENCE
from puller.reasons import StatusReason
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.objects import PAGES, Layer, RemoteObject, StoredContent, check_listing
from puller.storage.registry_auth import DOCKER_HUB, Credentials, credentials
from puller.storage.web import RangeError, WebStore
from puller.storage.webclient import WebClient, check_status, read_body, web_url

MODELS = "models"
"""The directory of an image that holds the model."""

_MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_IMAGE_CONFIGS = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
_EMPTY = "application/vnd.oci.empty.v1+json"
_IMAGE_LAYERS = ("application/vnd.oci.image.layer.", "application/vnd.docker.image.rootfs.")
_ARCHIVES = (
    (re.compile(r"[.+]tar([.+]gzip|\.gz)$"), "tar.gz"),
    (re.compile(r"[.+]tar[.+]zstd$"), "tar.zst"),
    (re.compile(r"[.+]tar$"), "tar"),
)
_PATHS = ("org.cncf.model.filepath", "org.cnai.model.filepath", "org.opencontainers.image.title")
_UNPACK = "io.deis.oras.content.unpack"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_RESPONSE = 4 << 20
"""Bytes of a manifest, as registries allow, or of a token server's response."""
_CHALLENGE = re.compile(r'([a-z_]{1,32})="([^"]{0,2048})"')
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]{1,3}){3}|\[::1\])(:[0-9]+)?")
_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass
class Registry:
    """One repository of a registry; an ObjectStore of its blobs. Renews an expired token."""

    client: WebClient
    host: str
    repository: str
    limits: Limits
    credentials: Credentials | None
    _authorization: str = field(default="", repr=False)
    _challenge: str = field(default="", repr=False)
    _renewing: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def plain(self) -> bool:
        """Whether it is called over http: on this host, and if listed in `--plain-registries`."""
        return self.host in self.limits.plain_registries or _LOOPBACK.fullmatch(self.host) is not None

    def url(self, kind: str, reference: str) -> URL:
        host = "registry-1.docker.io" if self.host == DOCKER_HUB else self.host
        scheme = "http" if self.plain else "https"
        return web_url(f"{scheme}://{host}/v2/{self.repository}/{kind}/{reference}")

    async def manifest(self, reference: str) -> tuple[bytes, str, str]:
        """(content, media type, digest). Raises StorageError."""
        accepted = {"Accept": ", ".join((*_MANIFESTS, *_INDEXES))}
        for retry in (False, True):
            used = self._authorization
            async with asyncio.timeout(PAGES * self.limits.stall_timeout):
                url = self.url("manifests", reference)
                async with self.client.get(url, accepted | self._headers) as response:
                    body, status, headers = await _read(response), response.status, response.headers
            if status != 401 or retry:
                break
            self._challenge = headers.get("WWW-Authenticate", "")
            await self._renew(used)
        check_status(status, "registry", f"{self.repository} at {reference}")
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        if _DIGEST.fullmatch(reference) and digest != reference:
            raise StorageError(
                StatusReason.DIGEST_MISMATCH, f"the manifest's digest is {digest}, not {reference}."
            )
        return body, headers.get("Content-Type", "").partition(";")[0].strip(), digest

    async def read(
        self, item: RemoteObject, start: int, end: int, limits: Limits, min_chunk: int
    ) -> AsyncGenerator[bytes]:
        for retry in (False, True):
            used, received = self._authorization, False
            stream = self._blob(item).read(replace(item, key=""), start, end, limits, min_chunk)
            try:
                async with aclosing(stream):
                    async for chunk in stream:
                        received = True
                        yield chunk
            except StorageError as error:
                if retry or received or error.reason is not StatusReason.ACCESS_DENIED or not self._challenge:
                    raise
            else:
                return
            await self._renew(used)

    async def supports_ranges(self, blob: RemoteObject) -> bool:
        try:
            async with self._blob(blob).get("", (0, 1)) as response:
                return response.ranges
        except RangeError:
            return False

    def _blob(self, item: RemoteObject) -> WebStore:
        return WebStore(self.client, self.url("blobs", item.key), self._headers)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": self._authorization} if self._authorization else {}

    async def _renew(self, used: str) -> None:
        """Get a new token, unless another request did so meanwhile. Raises StorageError."""
        async with self._renewing:
            if self._authorization == used:
                self._authorization = await self._authorize()

    async def _authorize(self) -> str:
        kind, _, rest = self._challenge.partition(" ")
        if self.credentials is not None and self.credentials.token:
            return f"Bearer {self.credentials.token}"
        if kind.lower() == "basic" and self.credentials is not None:
            return encode_basic_auth(self.credentials.user, self.credentials.password)
        challenge = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or not challenge.get("realm"):
            raise StorageError(
                StatusReason.ACCESS_DENIED, f"the registry requires credentials for {self.host}."
            )
        return f"Bearer {await self._token(challenge)}"

    async def _token(self, challenge: Mapping[str, str]) -> str:
        """A token for pulls, from the server in the challenge. Raises StorageError."""
        try:
            realm = web_url(challenge["realm"])
            valid = bool(realm.host and realm.port)
        except ValueError:
            valid = False
        if not valid or not (realm.scheme == "https" or (self.plain and realm.scheme == "http")):
            raise StorageError(
                StatusReason.STORAGE_UNAVAILABLE, "the registry's token server is not at https://."
            )
        scope = challenge.get("scope") or f"repository:{self.repository}:pull"
        query = {"scope": scope} | ({"service": challenge["service"]} if challenge.get("service") else {})
        user = self.credentials
        headers = {"Authorization": encode_basic_auth(user.user, user.password)} if user is not None else {}
        async with asyncio.timeout(PAGES * self.limits.stall_timeout):
            async with self.client.get(realm.update_query(query), headers) as response:
                body, status = await _read(response), response.status
        if status in (400, 401, 403):
            raise StorageError(
                StatusReason.ACCESS_DENIED, f"the registry's token server refuses our credentials ({status})."
            )
        token = _object(body).get("token") or _object(body).get("access_token")
        if status != 200 or not isinstance(token, str) or not (token.isascii() and token.isprintable()):
            raise StorageError(
                StatusReason.STORAGE_UNAVAILABLE,
                f"the registry's token server answers {status}.",
                transient=True,
            )
        return token


async def _read(response: ClientResponse) -> bytes:
    return await read_body(response, _MAX_RESPONSE, "registry", StatusReason.BAD_MANIFEST)


async def artifact(uri: str, env: Mapping[str, str], limits: Limits, web: WebClient) -> StoredContent:
    """The content of an `oci://` reference. Raises StorageError."""
    parts = urlsplit(uri)
    reference = OCI_REFERENCE.fullmatch(parts.path)
    if reference is None:
        raise StorageError(StatusReason.NOT_FOUND, "the reference is not one of a registry.")
    repository, tag, pinned = reference["repository"], reference["tag"], reference["digest"]
    host = parts.netloc
    if host == DOCKER_HUB and "/" not in repository:
        repository = f"library/{repository}"
    registry = Registry(web, host, repository, limits, credentials(host, repository, env))
    body, kind, digest = await registry.manifest(pinned or tag or "latest")
    manifest = _object(body)
    if (manifest.get("mediaType") or kind) in _INDEXES:
        body, kind, _ = await registry.manifest(_manifest_digest(manifest))
        manifest = _object(body)
    source = _source(manifest, registry, limits)
    largest = max(source.all_objects, key=lambda blob: blob.size, default=None)
    if largest and largest.size > limits.chunk_size and not await registry.supports_ranges(largest):
        source = replace(
            source,
            objects=tuple(replace(item, ranges=False) for item in source.objects),
            layers=tuple(replace(layer, item=replace(layer.item, ranges=False)) for layer in source.layers),
        )
    return replace(source, digest=digest.removeprefix("sha256:"))


def _manifest_digest(index: Mapping[str, Any]) -> str:
    """The digest of the manifest for this architecture, else of the first: a model is the same for all.
    Attestations (of the platform unknown) are skipped."""
    machine = _MACHINES.get(platform.machine(), platform.machine())
    listed = index.get("manifests")
    found = [
        (entry.get("platform") or {}, entry.get("digest"))
        for entry in (listed if isinstance(listed, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("platform") or {}, dict)
    ]
    usable = [(spec, digest) for spec, digest in found if spec.get("os") != "unknown"]
    native = [digest for spec, digest in usable if spec.get("architecture") == machine]
    digest = next(iter(native or [digest for _, digest in usable]), None)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _bad_manifest("the index lists no manifest by a SHA-256 digest.")
    return digest


def _source(manifest: Mapping[str, Any], registry: Registry, limits: Limits) -> StoredContent:
    """The files and archives that a manifest lists."""
    layers = manifest.get("layers")
    config = manifest.get("config")
    if not isinstance(layers, list):
        raise _bad_manifest("the manifest lists no layers.")
    check_listing(len(layers), 0, limits)
    image = isinstance(config, dict) and config.get("mediaType") in _IMAGE_CONFIGS
    objects: dict[str, RemoteObject] = {}
    archives: list[Layer] = []
    for number, layer in enumerate(layers):
        blob, kind, annotations = _blob(layer, number, registry)
        if kind == _EMPTY:
            continue
        packed = next((name for pattern, name in _ARCHIVES if pattern.search(kind)), "")
        path = next((annotations[key] for key in _PATHS if annotations.get(key)), "")
        if image or (packed and not _is_file(kind, path, annotations)):
            if not packed:
                raise _bad_manifest(f"layer {number} is not an archive of a known type.")
            archives.append(Layer(blob, packed, MODELS if image else ""))
            continue
        if not path:
            raise _bad_manifest(f"layer {number} is a file without a name: no annotation {_PATHS[0]}.")
        name = safe_path(posixpath.normpath(path) if path.startswith("./") else path)
        if name in objects:
            raise StorageError(StatusReason.HOSTILE_PATH, f"two layers have the path {name!r}.")
        objects[name] = replace(blob, path=name)
    return StoredContent(tuple(objects.values()), layers=tuple(archives))


def _is_file(kind: str, path: str, annotations: Mapping[str, str]) -> bool:
    """Whether a layer with the type of an image's layer is one file: ORAS pushes files with this type, and
    marks directories."""
    return kind.startswith(_IMAGE_LAYERS) and path != "" and annotations.get(_UNPACK) != "true"


def _blob(layer: Any, number: int, registry: Registry) -> tuple[RemoteObject, str, dict[str, str]]:
    """(blob, media type, annotations) of a descriptor."""
    found = layer if isinstance(layer, dict) else {}
    digest, size, kind = found.get("digest"), found.get("size"), found.get("mediaType")
    annotations = found.get("annotations") or {}
    if (
        not (isinstance(digest, str) and _DIGEST.fullmatch(digest))
        or not (isinstance(size, int) and size >= 0)
        or not isinstance(kind, str)
        or not isinstance(annotations, dict)
    ):
        raise _bad_manifest(f"layer {number} has no SHA-256 digest, no size or no media type.")
    item = RemoteObject(registry, digest, digest, size, sha256=digest.removeprefix("sha256:"))
    return item, kind, {key: value for key, value in annotations.items() if isinstance(value, str)}


def _bad_manifest(message: str) -> StorageError:
    return StorageError(StatusReason.BAD_MANIFEST, message)


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = orjson.loads(body)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise _bad_manifest("the registry's response is not a JSON object.")
    return value
