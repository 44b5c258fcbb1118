"""The admission endpoints `mutate`, `validate` and `name`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from policies.core.facts import Cluster
from webhook.admission import engine
from webhook.admission.answer import Answer, Recalled, Response, allowed, denied
from webhook.admission.engine import Decide
from webhook.admission.envelope import Request
from webhook.admission.messages import respond
from webhook.admission.ratcheting import never_refused
from webhook.admission.review import Review
from webhook.config.source import LivePolicy
from webhook.server.reviews import Endpoint, OnError
from webhook.worker_names.endpoint import Namer

if TYPE_CHECKING:  # it may have been deleted
    from webhook.fast_path import Memo


def endpoints(
    policy: LivePolicy, cluster: Cluster, namer: Namer | None = None, memo: Memo | None = None
) -> dict[str, Endpoint]:
    """The admission endpoints by name.

    Without `namer`, because there is no API server, pods keep their names. Without `memo` the engine decides
    every request.
    """

    async def name(request: Request, deadline: float) -> Answer:
        return Answer(await namer.review(request, deadline) if namer else allowed())

    return {
        "mutate": Decider("mutate", policy, cluster, engine.mutate, memo),
        "validate": Decider("validate", policy, cluster, engine.validate, memo),
        "name": name,
    }


class Decider(Struct, frozen=True):
    """An endpoint that calls the engine."""

    name: str
    policy: LivePolicy
    cluster: Cluster
    decide: Decide
    memo: Memo | None

    def __call__(self, request: Request, _: float) -> Answer:
        config = self.policy.config
        if self.memo is not None and config.webhook.fast_path:
            return self.memo.answer(self.name, request, config, self.cluster, self.decide)
        decision = self.decide(Review(request, config, self.cluster))
        return Answer(respond(decision), decision)

    def recall(self, body: bytes) -> Recalled | None:
        """See `webhook.server.reviews.Recalling`."""
        config = self.policy.config
        if self.memo is None or not config.webhook.fast_path:
            return None
        return self.memo.recall(self.name, body, config, self.cluster)


def on_error(policy: LivePolicy) -> OnError:
    """The answer of an endpoint that raises an exception: a bug in the webhook."""

    def after_crash(name: str, request: Request) -> Response:
        sentence = f"ML Chassis failed to {name} this object (see its log). Please report it"
        denies = name == "validate" and policy.config.webhook.on_error == "deny"
        if denies and not never_refused(request, policy.config):
            return denied(f"{sentence}. The policy sets onError: deny.")
        return allowed([f"{sentence}. It was admitted unchanged."])

    return after_crash
