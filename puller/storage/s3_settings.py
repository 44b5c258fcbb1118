"""The S3 settings from the environment and the AWS files: AWS's own variables and KServe's.

obstore finds web identity, container and instance credentials by itself.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, slots=True)
class S3Settings:
    """The endpoint and the credentials. obstore determines those that are empty."""

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    anonymous: bool = False
    virtual_host: bool = False
    verify_tls: bool = True


def settings(env: Mapping[str, str]) -> S3Settings:
    """S3Settings from environment variables, then from the current profile in the shared AWS files."""
    profile = _profile(env)
    access, secret = env.get("AWS_ACCESS_KEY_ID", ""), env.get("AWS_SECRET_ACCESS_KEY", "")
    session = env.get("AWS_SESSION_TOKEN", "") if access else ""
    delegated = "AWS_WEB_IDENTITY_TOKEN_FILE" in env or any(
        name.startswith("AWS_CONTAINER_C") for name in env
    )
    if not access and not delegated:
        access = profile.get("aws_access_key_id", "")
        secret = profile.get("aws_secret_access_key", "")
        session = profile.get("aws_session_token", "")
    return S3Settings(
        endpoint=_endpoint(env) or profile.get("endpoint_url", ""),
        region=env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region") or "us-east-1",
        access_key=access,
        secret_key=secret,
        session_token=session,
        anonymous=_flag(env, "awsAnonymousCredential", "AWS_ANONYMOUS_CREDENTIAL", "AWS_SKIP_SIGNATURE"),
        virtual_host=_flag(
            env, "S3_USE_VIRTUAL_BUCKET", "S3_USER_VIRTUAL_BUCKET", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST"
        ),
        verify_tls=env.get("S3_VERIFY_SSL", "").lower() not in _FALSE,
    )


def address(found: S3Settings, bucket: str) -> str:
    """Where requests for a bucket go; empty for AWS itself."""
    if not found.endpoint or not found.virtual_host:
        return found.endpoint
    scheme, _, host = found.endpoint.partition("://")
    return f"{scheme}://{bucket}.{host}"


def _endpoint(env: Mapping[str, str]) -> str:
    """KServe names the host in S3_ENDPOINT and the scheme in S3_USE_HTTPS; AWS has both in one URL."""
    url = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or env.get("AWS_ENDPOINT", "")
    if url:
        return url.rstrip("/")
    host = env.get("S3_ENDPOINT", "").rstrip("/")
    if not host or "://" in host:
        return host
    return f"{'http' if env.get('S3_USE_HTTPS', '').lower() in _FALSE else 'https'}://{host}"


def _flag(env: Mapping[str, str], *names: str) -> bool:
    return any(env.get(name, "").lower() in _TRUE for name in names)


def _profile(env: Mapping[str, str]) -> dict[str, str]:
    """The current profile: the config file's section, then the credentials file's."""
    home = Path(env.get("HOME") or "/nonexistent")
    name = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    config = Path(env.get("AWS_CONFIG_FILE") or home / ".aws" / "config")
    credentials = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials")
    return _section(config, "default" if name == "default" else f"profile {name}") | _section(
        credentials, name
    )


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read(path)  # skips files that cannot be opened
    except (OSError, UnicodeDecodeError, configparser.Error):
        return {}
    return dict(parser[name]) if parser.has_section(name) else {}
