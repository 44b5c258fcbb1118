"""The fast path: repeated requests are answered without aiohttp, without JSON and without the engine.

Law: it changes no answer. It can be switched off (`--fast-path=off`, `fastPath: false` in webhook.yaml) and
deleted: only `webhook.server.process` loads it, if it is there. A test deletes it; another compares its
answers with the engine's (`tests.differential`).

`Memo.answer` answers a request as the engine would, and remembers; `Memo.recall` answers a body that is known
by its bytes; `Reader` finds plain requests in the bytes of a connection, and `written` writes their answers.

Imports: `policies.containers`, `policies.core`, `policies.kube`, `policies.probes`, `webhook.admission`.
"""

from webhook.fast_path.memo import Memo
from webhook.fast_path.plain import Plain, Reader, written

__all__ = ["Memo", "Plain", "Reader", "written"]
