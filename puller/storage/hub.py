"""Models on the Hugging Face hub: a repository at one commit, its files fetched as from any web server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import orjson

from puller.reasons import Reason
from puller.storage.base import Limits, StorageError, safe_path
from puller.storage.objects import PAGES, RemoteObject, check_listed
from puller.storage.web import WebStore
from puller.storage.webclient import WebClient, web_url, whole_body

MAX_ANSWER = 32 << 20
"""Bytes of the hub's answer about one repository."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


async def listing(uri: str, env: Mapping[str, str], limits: Limits, web: WebClient) -> list[RemoteObject]:
    """The files of a Hugging Face repository at one commit, with the digests the hub keeps of large ones."""
    endpoint = (env.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = env.get("HF_TOKEN") or env.get("HUGGING_FACE_HUB_TOKEN") or ""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    parts = urlsplit(uri)
    model, _, revision = parts.path.strip("/").partition(":")
    repository = quote(f"{parts.netloc}/{model}")
    url = f"{endpoint}/api/models/{repository}/revision/{quote(revision or 'main', safe='')}?blobs=true"
    # Answers to calls are short: one that trickles in must not hold a download's place for ever.
    async with asyncio.timeout(PAGES * limits.stall_timeout), web.get(web_url(url), headers) as response:
        if response.status in (401, 403):
            raise StorageError(Reason.ACCESS_DENIED, f"the hub refuses HF_TOKEN for {repository}.")
        if response.status == 404:
            raise StorageError(Reason.NOT_FOUND, f"the hub has no {repository} at {revision or 'main'}.")
        if response.status != 200:
            raise StorageError(
                Reason.STORAGE_UNAVAILABLE, f"the hub answers {response.status}.", passing=True
            )
        body = await whole_body(response, MAX_ANSWER, "hub", Reason.TOO_MANY_OBJECTS)
    commit, files = _files(body)
    check_listed(len(files), 0, limits)
    store = WebStore(web, web_url(f"{endpoint}/{repository}/resolve/{commit}"), headers)
    return [RemoteObject(store, path, safe_path(path), size, sha256=digest) for path, size, digest in files]


def _files(answer: bytes) -> tuple[str, list[tuple[str, int, str]]]:
    """The commit, and (path, bytes, SHA-256 if it is a large one) of each file, in the hub's answer."""
    try:
        info = orjson.loads(answer)
        files = [
            (item["rfilename"], item["size"], str((item.get("lfs") or {}).get("sha256", "")))
            for item in info["siblings"]
        ]
        commit = info["sha"]
        sound = _COMMIT.fullmatch(commit) and all(
            isinstance(path, str) and isinstance(size, int) and size >= 0 for path, size, _ in files
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        sound = None
    if not sound:
        raise StorageError(
            Reason.STORAGE_UNAVAILABLE, "the hub's answer names no commit, or no files with sizes."
        )
    return commit, files
