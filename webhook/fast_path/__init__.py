"""The fast path: repeated requests are answered without aiohttp, JSON and the engine.

Law: it changes no answer. It can be switched off (`--fast-path=off`, `fastPath: false` in webhook.yaml) and
deleted: only `webhook.server.assembly` loads it, if it exists; others name its types. A test deletes it;
another compares its answers with the engine's (`tests.differential`).

| question | module |
|---|---|
| how a request is answered and remembered (`Memo.answer`, `Memo.recall`) | `memo` |
| how a body is recognised by its bytes | `replicas` |
| how plain requests are read from a connection and answered (`Reader`, `http_response`) | `plain` |
| how much memory an entry takes | `sizes` |

An answer takes this way: `Memo.answer` gives it a function `remember`; `webhook.server.reviews` calls it with
the body and the journal's note; `Memo.recall` finds both by the bytes of the next such body, and the note
records that answer.

Imports: `policies.core`, `policies.kube`, `webhook.admission`.
"""

from webhook.fast_path.memo import Memo
from webhook.fast_path.plain import Plain, Reader, http_response

__all__ = ["Memo", "Plain", "Reader", "http_response"]
