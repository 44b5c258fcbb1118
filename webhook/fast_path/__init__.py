"""The fast path: repeated requests are answered without aiohttp, JSON and the engine.

Law: it changes no answer. It can be switched off (`--fast-path=off`, `fastPath: false` in webhook.yaml) and
deleted: only `webhook.server.assembly` imports it, if it exists. A test deletes it; another compares its
answers with the engine's (`tests.differential`).

`Memo.answer` answers a request and remembers the answer; `Memo.recall` finds the answer to a body by its
bytes; `Reader` finds plain requests in the bytes of a connection; `http_response` writes their answers.

Imports: `policies.core`, `policies.kube`, `webhook.admission`.
"""

from webhook.fast_path.memo import Memo
from webhook.fast_path.plain import Plain, Reader, http_response

__all__ = ["Memo", "Plain", "Reader", "http_response"]
