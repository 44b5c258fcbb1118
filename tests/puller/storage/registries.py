"""OCI manifests, as ModelPack, ORAS and image builders write them, and a registry that asks for a token."""

from __future__ import annotations

import asyncio
import hashlib
import json
from base64 import b64encode
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from tests.puller.fakes import Listening

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
MODEL_CONFIG = "application/vnd.cncf.model.config.v1+json"
WEIGHT = "application/vnd.cncf.model.weight.v1"
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar"


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@dataclass
class Blobs:
    """Content by digest, and manifests made of it."""

    content: dict[str, bytes] = field(default_factory=dict)

    def add(self, content: bytes, kind: str, **annotations: str) -> dict[str, Any]:
        """The descriptor of a new blob. In the names of annotations, `_` stands for `.`."""
        digest = digest_of(content)
        self.content[digest] = content
        named = {key.replace("_", "."): value for key, value in annotations.items()}
        return {"mediaType": kind, "digest": digest, "size": len(content), "annotations": named}

    def manifest(self, layers: list[dict[str, Any]], config: str = MODEL_CONFIG) -> bytes:
        described = self.add(b"{}", config)
        return json.dumps(
            {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": layers}
        ).encode()

    def file(self, path: str, content: bytes) -> dict[str, Any]:
        """A raw layer of ModelPack."""
        return self.add(content, f"{WEIGHT}.raw", org_cncf_model_filepath=path)


@dataclass
class FakeRegistry(Listening):
    """Manifests by `repository:reference`, blobs by digest. With `password`, requests need a token,
    which lasts for `uses` requests, or with `basic` the password itself. `cuts`: so many GETs of
    blobs lose their connection after `cut_after` bytes."""

    blobs: Blobs = field(default_factory=Blobs)
    manifests: dict[str, bytes] = field(default_factory=dict)
    password: str = ""
    basic: bool = False
    uses: int = 1000
    ranges: bool = True
    cuts: int = 0
    challenge: str = ""
    """In place of the usual one, for all requests."""
    ranges_status: int = 206
    gate: asyncio.Event | None = None
    """Answers begin, and end after it."""
    cut_after: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    _token: int = 0
    _left: int = 0

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"

    def push(self, reference: str, manifest: bytes) -> str:
        """The URI by tag; the manifest is there by its digest, too."""
        repository, _, _ = reference.partition(":")
        self.manifests[reference] = manifest
        self.manifests[f"{repository}@{digest_of(manifest)}"] = manifest
        return f"oci://{self.name}/{reference}"

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked[request.path] += 1
        if self.challenge:
            return web.Response(status=401, headers={"WWW-Authenticate": self.challenge})
        if self.gate is not None:
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            with suppress(ConnectionError):
                while not self.gate.is_set():
                    await response.write(b" ")
                    await asyncio.sleep(0.01)
            return response
        if request.path == "/token":
            return self._give_token(request)
        if refused := self._refused(request):
            return refused
        parts = request.path.removeprefix("/v2/").split("/")
        repository, kind, reference = "/".join(parts[:-2]), parts[-2], parts[-1]
        if kind == "manifests":
            sign = "@" if reference.startswith("sha256:") else ":"
            body = self.manifests.get(f"{repository}{sign}{reference}")
            if body is None:
                return web.json_response({"errors": []}, status=404)
            said = json.loads(body).get("mediaType", MANIFEST) if body[:1] == b"{" else MANIFEST
            return web.Response(body=body, content_type=said)
        return await self._blob(request, reference)

    def _give_token(self, request: web.Request) -> web.Response:
        wanted = "Basic " + b64encode(f"user:{self.password}".encode()).decode()
        if request.headers.get("Authorization") != wanted:
            return web.json_response({}, status=401)
        assert request.query["scope"].endswith(":pull")
        self._token += 1
        self._left = self.uses
        return web.json_response({"token": f"token-{self._token}"})

    def _refused(self, request: web.Request) -> web.Response | None:
        if not self.password:
            return None
        said = request.headers.get("Authorization", "")
        if self.basic:
            if said == "Basic " + b64encode(f"user:{self.password}".encode()).decode():
                return None
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="registry"'})
        if said == f"Bearer token-{self._token}" and self._left > 0:
            self._left -= 1
            return None
        challenge = f'Bearer realm="{self.url}/token",service="registry",scope="repository:m:pull"'
        return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    async def _blob(self, request: web.Request, digest: str) -> web.StreamResponse:
        content = self.blobs.content.get(digest)
        if content is None:
            return web.Response(status=404)
        status, headers = 200, {}
        if self.ranges_status == 416 and "Range" in request.headers:
            return web.Response(status=416)
        if self.ranges and "Range" in request.headers:
            first, _, last = request.headers["Range"].removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(content))
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(content)}"
            content, status = content[start:end], 206
        response = web.StreamResponse(status=status, headers=headers | {"Content-Length": str(len(content))})
        await response.prepare(request)
        if self.cuts > 0 and len(content) > self.cut_after:
            self.cuts -= 1
            await response.write(content[: self.cut_after])
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(content)
        return response
