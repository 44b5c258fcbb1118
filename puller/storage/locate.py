"""A storage URI -> the object store of a cloud, and the key in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

from obstore.exceptions import (
    BaseError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from puller.log import logger
from puller.reasons import StatusReason
from puller.storage import s3_settings
from puller.storage.base import Limits, StorageError
from puller.storage.objects import azure_account

Store = S3Store | GCSStore | AzureStore

_STATUS = re.compile(r"status code: ([0-9]{3})")
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(?:\w+\(\s*){0,8}(\w+)")
_CAUSES = (
    "Connection refused",
    "Connection reset",
    "No route to host",
    "Network is unreachable",
    "failed to lookup address",
    "operation timed out",
)
"""Messages of the client library about failed connections."""
_AZURE_NAMES = {
    "AZURE_STORAGE_ACCOUNT_NAME": "account_name",
    "AZURE_STORAGE_ENDPOINT": "endpoint",
    "AZ_CLIENT_ID": "client_id",
    "AZ_CLIENT_SECRET": "client_secret",
    "AZ_TENANT_ID": "tenant_id",
    "AZURE_STORAGE_ACCESS_KEY": "account_key",
}
"""The account, an emulator, and KServe's names for credentials. obstore reads Azure's own names."""


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a model: a store, and the key of an object (with the file name `name`) or a prefix.
    `endpoint`: the address of the store, if the environment sets it."""

    store: Store = field(repr=False)
    key: str
    name: str
    endpoint: str = ""


def locate(uri: str, env: Mapping[str, str], limits: Limits) -> Location:
    """The Location of an s3, gs, az or Azure blob URI. Raises StorageError."""
    parts = urlsplit(uri)
    bucket, _, key = uri.partition("://")[2].partition("/")
    if parts.scheme == "https":  # in the others `?`, `#` and `%` are characters of a key
        bucket, _, key = unquote(parts.path).strip("/").partition("/")
    key = key.strip("/")
    name = key.rsplit("/", 1)[-1]
    config: dict[str, Any]
    kind: Any = S3Store
    verify_tls = True
    try:
        if parts.scheme == "s3":
            found = s3_settings.settings(env)
            verify_tls, endpoint = found.verify_tls, s3_settings.address(found, bucket)
            config = _s3_config(found, endpoint)
        elif parts.scheme == "gs":
            kind, endpoint = GCSStore, env.get("STORAGE_EMULATOR_HOST", "")
            config = _gcs_config(endpoint)
        else:
            kind, config = AzureStore, _azure_config(uri, env)
            endpoint = config.get("endpoint", "")
        plain = endpoint != "" and not endpoint.startswith("https://")
        store = _store(kind, bucket, tuple(config.items()), limits.connect_timeout, plain, verify_tls)
        return Location(store, key, name, endpoint)
    except (BaseError, ValueError) as error:
        why = str(error).strip().partition("\n")[0][:200]  # no server was asked: the text is the library's
        raise StorageError(StatusReason.BAD_SETTINGS, f"{parts.scheme}:// cannot be set up: {why}") from None


def storage_error(error: Exception) -> StorageError:
    """An error of obstore as one sentence. It contains only the status of the store's response: the body may
    be secret, and everybody may read the status of the puller."""
    text = str(error)[:20_000]
    match = _STATUS.search(text)
    status = int(match[1]) if match else 0  # obstore raises a GenericError for a refused listing
    logger.debug("storage error", kind=type(error).__name__, status=status)
    shown = f" ({status})" if status else ""
    if isinstance(error, NotFoundError | FileNotFoundError) or status == 404:
        return StorageError(StatusReason.NOT_FOUND, f"the storage has no such object{shown or ' (404)'}.")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in (401, 403):
        return StorageError(StatusReason.ACCESS_DENIED, f"the storage refuses our credentials{shown}.")
    if isinstance(error, PreconditionError):
        return StorageError(StatusReason.SOURCE_CHANGED, "an object was replaced while it was being read.")
    if isinstance(error, TimeoutError):
        return StorageError(StatusReason.STORAGE_TIMEOUT, "the storage sent no byte in time.", transient=True)
    if not status and (isinstance(error, ValueError) or "invalid path" in text):
        return StorageError(StatusReason.HOSTILE_PATH, "a key is not usable as a path.")
    if status:
        return StorageError(
            StatusReason.STORAGE_UNAVAILABLE, f"the storage answers {status}.", transient=True
        )
    cause = _CERTIFICATE.search(text)
    known = next((cause for cause in _CAUSES if cause in text), "")
    why = f" (certificate: {cause[1]})" if cause else f" ({known})" if known else ""
    return StorageError(
        StatusReason.STORAGE_UNAVAILABLE, f"the storage gives no valid response{why}", transient=True
    )


@lru_cache(maxsize=64)
def _store(
    kind: Any,
    bucket: str,
    config: tuple[tuple[str, Any], ...],
    connect_timeout: float,
    allow_http: bool,
    verify_tls: bool,
) -> Store:
    """The client of a store, which keeps its connections."""
    options = {
        "connect_timeout": f"{connect_timeout:g}s",
        # Only a fallback: transfers may be slow, as long as they do not stall.
        "timeout": "6h",
        "allow_http": allow_http,
        "allow_invalid_certificates": not verify_tls,
    }
    # resumable_download.py retries: without end, and it resumes.
    store: Store = kind(bucket, config=dict(config), client_options=options, retry_config={"max_retries": 0})
    return store


def _s3_config(found: s3_settings.S3Settings, endpoint: str) -> dict[str, Any]:
    config: dict[str, Any] = {"region": found.region, "virtual_hosted_style_request": found.virtual_host}
    if endpoint:
        config["endpoint"] = endpoint
    if found.access_key:
        config |= {"access_key_id": found.access_key, "secret_access_key": found.secret_key}
        if found.session_token:
            config["session_token"] = found.session_token
    if found.anonymous:
        config["skip_signature"] = True
    return config


def _gcs_config(emulator: str) -> dict[str, Any]:
    if not emulator:
        return {}
    account = {
        "gcs_base_url": emulator if "://" in emulator else f"http://{emulator}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return {"service_account_key": json.dumps(account)}


def _azure_config(uri: str, env: Mapping[str, str]) -> dict[str, str]:
    config = {option: env[variable] for variable, option in _AZURE_NAMES.items() if env.get(variable)}
    if account := azure_account(uri):
        config["account_name"] = account
        if query := urlsplit(uri).query:
            config["sas_key"] = query
    return config
