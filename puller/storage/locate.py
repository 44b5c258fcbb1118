"""A storage URI -> the object store that serves it and the key within."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, HTTPStore, S3Store

from puller.reasons import Reason
from puller.storage import s3
from puller.storage.base import Limits, StorageError

Store = S3Store | GCSStore | AzureStore | HTTPStore

_AZURE_HOST = re.compile(r"([a-z0-9-]+)\.blob\.core\.windows\.net")
_STATUS = re.compile(r"status code: ([0-9]{3})")
_QUERY = re.compile(r"\?\S*")
_ELAPSED = re.compile(r" in [0-9.]+(s|ms|µs|ns)\b")
_CAUSE = re.compile(r'(?:message|error): "([^"]{1,200})"|InvalidCertificate\(\s*(?:\w+\(\s*){0,8}(\w+)')
_AZURE_NAMES = {
    "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
    "AZURE_STORAGE_ENDPOINT": "endpoint",
    "AZ_CLIENT_ID": "client_id",
    "AZ_CLIENT_SECRET": "client_secret",
    "AZ_TENANT_ID": "tenant_id",
    "AZURE_STORAGE_ACCESS_KEY": "account_key",
}
"""The account, an emulator, and KServe's names for credentials; obstore finds Azure's own by itself."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where a model is: a store, and a key that names an object or a prefix. With `listable` False (plain
    HTTP) the key is the one object, and `name` is its file name."""

    store: Store = field(repr=False)
    key: str
    name: str
    listable: bool = True


def locate(uri: str, env: Mapping[str, str], limits: Limits) -> Location:
    """The Location of an s3, gs, az or http(s) URI. Raises StorageError."""
    parts = urlsplit(uri)
    bucket, _, key = uri.partition("://")[2].partition("/")
    if parts.scheme in ("http", "https"):  # in the others `?`, `#` and `%` are characters of a key
        key = unquote(parts.path)
    key = key.strip("/")
    name = key.rsplit("/", 1)[-1]
    try:
        azure = _AZURE_HOST.fullmatch(parts.hostname or "") if parts.scheme == "https" else None
        if parts.scheme == "s3":
            return Location(_s3(bucket, s3.settings(env), _client(limits)), key, name)
        if parts.scheme == "gs":
            return Location(_gcs(bucket, env.get("STORAGE_EMULATOR_HOST", ""), _client(limits)), key, name)
        if azure is not None:
            container, _, key = key.partition("/")
            return Location(
                _azure(container, azure[1], parts.query, _azure_env(env), _client(limits)), key, name
            )
        if parts.scheme == "az":
            return Location(_azure(bucket, "", "", _azure_env(env), _client(limits)), key, name)
        if _plain_path(parts):  # one store, and so one connection pool, for all that a host serves
            base = parts._replace(path="")
            return Location(web(base, (), limits), key, name, listable=False)
        return Location(web(parts, (), limits), "", name or "model", listable=False)
    except (BaseError, ValueError) as error:
        raise StorageError(
            Reason.BAD_SETTINGS, f"{parts.scheme}:// cannot be set up: {plain(error)}"
        ) from None


def _plain_path(parts: SplitResult) -> bool:
    """Whether the path survives being taken apart and put together again."""
    segments = parts.path.split("/")[1:]
    return not parts.query and "%" not in parts.path and not {"", "."} & {*segments} and len(segments) > 0


def web(parts: SplitResult, headers: tuple[tuple[str, str], ...], limits: Limits) -> HTTPStore:
    """A store for one http(s) address, its query kept (signed URLs live there)."""
    return _http(urlunsplit(parts._replace(fragment="")), headers, _client(limits))


def explain(error: Exception) -> StorageError:
    """What obstore raised, as the sentence a person needs."""
    text = plain(error)
    said = _STATUS.search(text)
    status = int(said[1]) if said else 0  # a refused listing is a mere GenericError
    if isinstance(error, NotFoundError | FileNotFoundError) or status == 404:
        return StorageError(Reason.NOT_FOUND, f"there is nothing there: {text}")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        return StorageError(Reason.ACCESS_DENIED, f"the storage refuses our credentials: {text}")
    if isinstance(error, PreconditionError):
        return StorageError(Reason.SOURCE_CHANGED, "an object was replaced while it was being read.")
    if isinstance(error, TimeoutError):
        return StorageError(Reason.STORAGE_TIMEOUT, "the storage gave no answer in time.", passing=True)
    if isinstance(error, ValueError) or "invalid path" in text:
        return StorageError(Reason.HOSTILE_PATH, text)
    return StorageError(Reason.STORAGE_UNAVAILABLE, text, passing=True)


def plain(error: Exception) -> str:
    """The first line of a message, without the query strings that may hold signatures, and with the cause
    that obstore keeps for the lines of debug below."""
    first, _, debug = str(error).strip().partition("\n")
    text = _QUERY.sub("?…", _ELAPSED.sub("", first))[:500] or type(error).__name__
    cause = _CAUSE.search(debug)
    return f"{text} ({cause[1] or f'certificate: {cause[2]}'})" if cause else text


def _client(limits: Limits) -> tuple[tuple[str, Any], ...]:
    # The whole-request timeout only backs up our own stall timeout, which allows any rate above zero.
    return (("connect_timeout", f"{limits.connect_timeout:g}s"), ("timeout", "6h"))


_RETRY: Any = {"max_retries": 0}
"""We retry ourselves: without end, resuming, and in view of the status."""


@lru_cache(maxsize=64)
def _s3(bucket: str, found: s3.S3Settings, client: tuple[tuple[str, Any], ...]) -> S3Store:
    config: dict[str, Any] = {"region": found.region, "virtual_hosted_style_request": found.virtual_host}
    if found.endpoint:
        scheme, _, host = found.endpoint.partition("://")
        config["endpoint"] = f"{scheme}://{bucket}.{host}" if found.virtual_host else found.endpoint
    if found.access_key:
        config |= {"access_key_id": found.access_key, "secret_access_key": found.secret_key}
        if found.session_token:
            config["session_token"] = found.session_token
    if found.anonymous:
        config["skip_signature"] = True
    options: Any = dict(client) | {
        "allow_http": found.endpoint.startswith("http://"),
        "allow_invalid_certificates": not found.verify_tls,
    }
    return S3Store(bucket, config=config, client_options=options, retry_config=_RETRY)  # type: ignore[arg-type]


@lru_cache(maxsize=64)
def _gcs(bucket: str, emulator: str, client: tuple[tuple[str, Any], ...]) -> GCSStore:
    config: dict[str, Any] = {}
    if emulator:
        base = emulator if "://" in emulator else f"http://{emulator}"
        account = {
            "gcs_base_url": base,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        config = {"service_account_key": json.dumps(account)}
    options: Any = dict(client) | {"allow_http": emulator != ""}
    return GCSStore(bucket, config=config, client_options=options, retry_config=_RETRY)  # type: ignore[arg-type]


def _azure_env(env: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((option, env[name]) for name, option in _AZURE_NAMES.items() if env.get(name))


@lru_cache(maxsize=64)
def _azure(
    container: str,
    account: str,
    sas: str,
    found: tuple[tuple[str, str], ...],
    client: tuple[tuple[str, Any], ...],
) -> AzureStore:
    config: dict[str, Any] = dict(found)
    if account:
        config["account_name"] = account
    if sas:
        config["sas_key"] = sas
    options: Any = dict(client) | {"allow_http": str(config.get("endpoint", "")).startswith("http://")}
    return AzureStore(container, config=config, client_options=options, retry_config=_RETRY)  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _http(url: str, headers: tuple[tuple[str, str], ...], client: tuple[tuple[str, Any], ...]) -> HTTPStore:
    options: Any = dict(client) | {"allow_http": url.startswith("http://"), "default_headers": dict(headers)}
    return HTTPStore.from_url(url, client_options=options, retry_config=_RETRY)
