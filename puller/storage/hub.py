"""Models on the Hugging Face hub: a repository at one commit. Its files are fetched as from a web server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import orjson

from puller.reasons import StatusReason
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.objects import PAGES, RemoteObject, check_listing
from puller.storage.web import WebStore
from puller.storage.webclient import WebClient, check_status, read_body, web_url

MAX_RESPONSE = 32 << 20
"""Bytes of the hub's response about one repository."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


async def listing(uri: str, env: Mapping[str, str], limits: Limits, web: WebClient) -> list[RemoteObject]:
    """The files of a repository at one commit, with the hub's digests of large files."""
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    parts = urlsplit(uri)
    model, _, revision = parts.path.strip("/").partition(":")
    repository = quote(f"{parts.netloc}/{model}")
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    # The response is short: a slow one must not block a download slot for ever.
    async with asyncio.timeout(PAGES * limits.stall_timeout), web.get(web_url(url), headers) as response:
        if response.status in (401, 403):
            raise StorageError(StatusReason.ACCESS_DENIED, f"the hub refuses HF_TOKEN for {repository}.")
        check_status(response.status, "hub", f"{repository} at {revision or 'main'}")
        body = await read_body(response, MAX_RESPONSE, "hub", StatusReason.TOO_MANY_OBJECTS)
    commit, files = _files(body)
    check_listing(len(files), 0, limits)
    store = WebStore(web, web_url(f"{endpoint}/{repository}/resolve/{commit}"), headers)
    return [
        RemoteObject(store, path, safe_path(path), size, sha256=digest, revision="" if digest else commit)
        for path, size, digest in files
    ]


def _files(body: bytes) -> tuple[str, list[tuple[str, int, str]]]:
    """(commit, (path, size, SHA-256 of a large file) of each file) from the hub's response."""
    try:
        info = orjson.loads(body)
        files = [
            (item["rfilename"], item["size"], str((item.get("lfs") or {}).get("sha256", "")))
            for item in info["siblings"]
        ]
        commit = info["sha"]
        valid = _COMMIT.fullmatch(commit) and all(
            isinstance(path, str) and isinstance(size, int) and size >= 0 for path, size, _ in files
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        valid = False
    if not valid:
        raise StorageError(
            StatusReason.STORAGE_UNAVAILABLE, "the hub's response has no commit, or no files with sizes."
        )
    return commit, files
