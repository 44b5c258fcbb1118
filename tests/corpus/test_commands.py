"""Probe commands that only look as if they asked another host, and those that do."""

from __future__ import annotations

from typing import Any

import pytest

from policies.kube.json import Json
from webhook.admission import engine
from webhook.config.load import load
from webhook.kube import offline

POD_IP: Json = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
SECRET: Json = {"name": "URL", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def answered(command: list[str], *env: Json) -> set[tuple[str, str]]:
    """(rule, mode) of the findings about a livenessProbe that runs the command."""
    probe: Json = {
        "exec": {"command": command},
        "timeoutSeconds": 5,
        "periodSeconds": 20,
        "failureThreshold": 6,
    }
    container: Json = {"name": "server", "image": "registry.example/server:1", "env": list(env)}
    container |= {"ports": [{"containerPort": 8080}], "livenessProbe": probe}
    spec: Any = {"containers": [container]}
    deployment: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "server"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "server"}},
            "template": {"metadata": {"labels": {"app": "server"}}, "spec": spec},
        },
    }
    request = offline.Document("test", 0, deployment).request()
    decision = engine.decide(request, load({}), offline.ManifestCluster([deployment]))
    assert decision.crashes == ()
    return {(result.rule, str(result.mode)) for result in decision.results}


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["curl", "-sf", "http://localhost:8080/health"], []),
        (["curl", "-g", "http://[::1]:8080/health"], []),
        (sh("curl -sf http://$POD_IP:8080/health"), [POD_IP]),
        (sh("curl -sf http://${HOSTNAME}:8080/health"), []),
        (sh("curl -sf --unix-socket /run/server.sock http://server/health"), []),
        (sh('curl -sf -H "Host: models.example.com" http://127.0.0.1:8080/health'), []),
        (sh("""wget -qO- 127.0.0.1:8080/health | grep -q '"status":"ok"'"""), []),
        (sh('echo "see http://docs.example.com/health"; test -f /tmp/ready'), []),
        (sh("test -f /tmp/ready # curl http://payments/health"), []),
        (sh("pg_isready -U postgres"), []),
        (sh("nc -z 0.0.0.0 8080"), []),
        (["grpc_health_probe", "-addr=:50051"], []),
        (["redis-cli", "ping"], []),
        (["test", "-x", "/opt/redis-cli/ready"], []),
    ],
    ids=lambda value: value[-1] if value and isinstance(value[-1], str) else "",
)
def test_asking_oneself_is_let_in_without_a_word(command: list[str], env: list[Json]) -> None:
    assert answered(command, *env) == set()


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["curl", "http://payments/health"], []),
        (sh("exec 3<>/dev/tcp/db/5432"), []),
        (
            sh('curl -f "$MODEL_REGISTRY/health"'),
            [{"name": "MODEL_REGISTRY", "value": "http://registry:5000"}],
        ),
        (["curl", "-f", "http://$(REGISTRY)/health"], [{"name": "REGISTRY", "value": "registry.ml.svc"}]),
        (["bash", "-c", "wget -qO- http://other-svc"], []),
        (["bash", "-c", "timeout 4 bash -c 'curl -f http://db:80'"], []),
        (sh("curl -sf localhost:8080 && curl -sf payments"), []),
        (sh("env LANG=C curl -s payments/health"), []),
        (sh("cat <<< PING | nc -w 2 queue 5672"), []),
        (sh("""python -c "import requests; requests.get('http://api/health')" """.strip()), []),
        (["mysqladmin", "ping", "-h", "mysql.prod"], []),
        (["aws", "s3", "ls", "s3://models"], []),
        (["kubectl", "get", "pods"], []),
    ],
    ids=lambda value: value[-1] if value and isinstance(value[-1], str) else "",
)
def test_asking_another_is_refused(command: list[str], env: list[Json]) -> None:
    assert ("liveness-external-dependency", "enforce") in answered(command, *env)


@pytest.mark.parametrize("script", ['curl -f "$URL/health"', 'curl -f "http://$(cat /etc/target)/"'])
def test_what_cannot_be_decided_is_warned_about(script: str) -> None:
    assert ("liveness-external-dependency", "warn") in answered(sh(script), SECRET)
