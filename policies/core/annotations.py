"""Every annotation and label of `mlchassis.dev`. The puller uses none of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from policies.kube.names import closest

DOMAIN: Final = "mlchassis.dev"
PREFIX: Final = f"{DOMAIN}/"

# On every reviewed object, or on its pod template.
EXEMPT: Final = f"{DOMAIN}/exempt"

# On pod templates: the health endpoint and start of a container; with `.<container>` at the end, of that one.
HEALTH_PATH: Final = f"{DOMAIN}/health-path"
HEALTH_PORT: Final = f"{DOMAIN}/health-port"
LIVE_PATH: Final = f"{DOMAIN}/live-path"
READY_PATH: Final = f"{DOMAIN}/ready-path"
MODEL_SIZE: Final = f"{DOMAIN}/model-size"
EXPECTED_START: Final = f"{DOMAIN}/expected-start"
LIVENESS: Final = f"{DOMAIN}/liveness"
CANARY: Final = f"{DOMAIN}/canary"
CANARY_BODY: Final = f"{DOMAIN}/canary-body"
CANARY_TIME: Final = f"{DOMAIN}/canary-time"

# On pod templates: the models that the sidecar fetches.
MODEL_CONFIG: Final = f"{DOMAIN}/model-config"
"""An annotation of pods, with a ConfigMap's name; and the label of such ConfigMaps, with the value `true`."""
MODEL_DIR: Final = f"{DOMAIN}/model-dir"
MODEL_CLAIM: Final = f"{DOMAIN}/model-claim"
MODEL_CACHE: Final = f"{DOMAIN}/model-cache"
MODEL_CONTAINERS: Final = f"{DOMAIN}/model-containers"
MODEL_SERVER: Final = f"{DOMAIN}/model-server"
MODEL_SERVER_PORT: Final = f"{DOMAIN}/model-server-port"
MODEL_CREDENTIALS: Final = f"{DOMAIN}/model-credentials"

# On pod templates: the requested accelerators, and the topology.
GPU_PRODUCT: Final = f"{DOMAIN}/gpu-product"
GPU_MEMORY: Final = f"{DOMAIN}/gpu-memory"
TOPOLOGY: Final = f"{DOMAIN}/topology"

# On Jobs and their pod templates.
RETRYABLE_EXIT_CODES: Final = f"{DOMAIN}/retryable-exit-codes"
CHECKPOINT: Final = f"{DOMAIN}/checkpoint"
TERMINATION_MESSAGE: Final = f"{DOMAIN}/termination-message"
"""With the value `file`: its containers keep the API server's terminationMessagePolicy."""
TRAINING_PROGRESS: Final = f"{DOMAIN}/progress"
"""What a training writes, and the longest time between two writes."""
TRAINING: Final = f"{DOMAIN}/training"
"""A label of pods, with the value `true`."""

# On pods, written by the webhook.
CHANGED: Final = f"{DOMAIN}/changed"

# On the Lease that the webhook renews while it answers.
OUTAGES: Final = f"{DOMAIN}/outages"
"""Outages without a ready replica: pairs of times in seconds since the epoch, as JSON."""

# On the webhook's own configurations.
CA_BUNDLE_CHANGED: Final = f"{DOMAIN}/ca-bundle-changed"
"""When a CA was last added to the caBundle (RFC 3339, UTC)."""

# On the ConfigMap of observed starts and ends.
OBSERVED_UNTIL: Final = f"{DOMAIN}/observed-until"
"""The time until which all pods were observed, in seconds since the epoch."""

# Labels of pods, and of objects of the webhook itself.
WORKER_GROUP: Final = f"{DOMAIN}/worker-group"
WORKER_NAMES: Final = f"{DOMAIN}/worker-names"
"""The annotation and label of the Leases that record worker names."""
WORKER_NAMES_OWNER: Final = f"{DOMAIN}/worker-names-owner"
"""The owner of such a Lease: apiVersion, kind, namespace, name and uid as JSON."""
POLICY_LABEL: Final = f"{DOMAIN}/policy"
"""The label of the webhook's own ConfigMap, with the value `true`."""
OVERRIDE: Final = "override"
"""The value of that label on the ConfigMap whose keys replace those of the policy."""
ADMISSION: Final = f"{DOMAIN}/admission"
"""The label that excludes a namespace or an object, with the value `disabled`."""

OF_HEALTH: Final = (
    HEALTH_PATH,
    HEALTH_PORT,
    LIVE_PATH,
    READY_PATH,
    MODEL_SIZE,
    EXPECTED_START,
    LIVENESS,
    CANARY,
    CANARY_BODY,
    CANARY_TIME,
    TRAINING_PROGRESS,
)
"""Annotations that may end with `.<container>`; standard-probes reports misspelt ones."""
OTHERS: Final = (
    EXEMPT,
    MODEL_CONFIG,
    MODEL_DIR,
    MODEL_CLAIM,
    MODEL_CACHE,
    MODEL_CONTAINERS,
    MODEL_SERVER,
    MODEL_SERVER_PORT,
    MODEL_CREDENTIALS,
    GPU_PRODUCT,
    GPU_MEMORY,
    TOPOLOGY,
    RETRYABLE_EXIT_CODES,
    CHECKPOINT,
    TERMINATION_MESSAGE,
)
"""The other annotations that users write."""

_NAMES: Final = tuple(known.removeprefix(PREFIX) for known in (*OF_HEALTH, *OTHERS))
_KNOWN: Final = frozenset((*OF_HEALTH, *OTHERS, CHANGED))
_SIMILARITY: Final = 0.78
"""From 0 to 1. A name at least this similar to a known one is taken for a misspelling."""
_MAX_COMPARED: Final = 8


def misspelt_annotations(annotations: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each unknown annotation that is similar to a known one.

    standard-probes itself reports misspelt annotations about health.
    """
    unknown = [key for key in annotations if key.startswith(PREFIX) and key not in _KNOWN]
    for key in unknown[:_MAX_COMPARED]:
        if (close := resembled(key)) in OTHERS:
            yield f"annotation {key} is unknown and has no effect; did you mean {close}?"


def resembled(key: str) -> str:
    """The annotation for users that a key of our own is most similar to, maybe none."""
    return PREFIX + closest(key.removeprefix(PREFIX).lower(), _NAMES, _SIMILARITY)
