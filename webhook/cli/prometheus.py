"""Query a Prometheus over its HTTP API (https://prometheus.io/docs/prometheus/latest/querying/api/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import aiohttp
from yarl import URL

from webhook.errors import UserError
from webhook.observed.history import ObservedHistory, history

_TIMEOUT: Final = aiohttp.ClientTimeout(total=120)


async def query_history(url: str, namespace: str) -> ObservedHistory:
    """The history of a namespace's workloads; of all namespaces if empty.

    Raises:
        UserError: the URL is invalid, or no Prometheus answers.
    """
    try:
        base = URL(url)
    except ValueError:
        base = URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise UserError("--prometheus must be an http or https URL, such as http://127.0.0.1:9090")
    where = base.with_user(None)  # keeps the password out of messages

    async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session:

        async def post(query: str) -> list[tuple[Mapping[str, str], float]]:
            try:
                async with session.post(base / "api/v1/query", data={"query": query}) as answer:
                    return _vector(await answer.json(content_type=None))
            except _QueryError as error:
                raise UserError(f"{where}: Prometheus refuses the query: {error}") from None
            except (TimeoutError, aiohttp.ClientError, OSError) as error:
                raise UserError(f"{where} doesn't answer: {error or type(error).__name__}") from None
            except (ValueError, LookupError, TypeError, AttributeError):
                raise UserError(f"{where} doesn't answer like Prometheus") from None

        return await history(post, namespace)


class _QueryError(Exception):
    pass


def _vector(answer: Any) -> list[tuple[Mapping[str, str], float]]:
    if answer["status"] != "success":
        raise _QueryError(answer["error"])
    return [(series["metric"], float(series["value"][1])) for series in answer["data"]["result"]]
