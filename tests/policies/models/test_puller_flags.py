"""The flags that are injected are flags that the programs know: ours, and KServe's agent."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from policies.kube.pods import Container, Role, containers
from policies.models.model_puller_settings import ModelPuller, Scheme
from puller.cli import options_of, parser
from puller.model_config import SCHEMES
from tests.policies.test_golden import CASES, documents
from tests.tables import table

KSERVE_AGENT = {"--enable-puller", "--config-dir", "--model-dir", "--workers", "--component-port", "--port"}
"""Of kserve/cmd/agent/main.go; pflag refuses any other."""


def pullers(case: Path) -> list[Container]:
    [before], [after] = documents(case / "input.yaml"), documents(case / "expected.yaml")
    written = {container.name for container in containers(before)}
    return [item for item in containers(after) if item.name not in written]


INJECTED = [
    case
    for case in CASES
    if case.parent.name == "model-puller" and (case / "expected.yaml").exists() and pullers(case)
]


@table("case", INJECTED)
def test_the_programs_know_the_flags(case: Path) -> None:
    [container] = pullers(case)
    args = container.spec["args"]
    if container.spec.get("command") is None:
        assert {arg.partition("=")[0] for arg in args} <= KSERVE_AGENT
    options = options_of(parser({}).parse_args(args))
    known = {action.dest for action in parser({})._actions}
    env = {item["name"]: item.get("value", "uid") for item in container.spec.get("env", ())}
    assert {name.removeprefix("CHASSIS_PULLER_").lower() for name in env} <= known
    assert options_of(parser(env).parse_args(args)).pod_uid == env.get("CHASSIS_PULLER_POD_UID", "")
    mounts = {mount["mountPath"].rstrip("/"): mount for mount in container.spec["volumeMounts"]}
    assert mounts[str(options.config_dir)]["readOnly"] is True
    assert not mounts[str(options.model_dir)].get("readOnly"), "models are written there"
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container.spec:
            assert container.spec[name]["httpGet"]["port"] == options.port


class Ready(BaseHTTPRequestHandler):
    """A puller that answers with `status`."""

    status = 200

    def do_GET(self) -> None:
        assert self.path == "/readyz"
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.mark.parametrize(("status", "fails"), [(200, False), (503, True)])
def test_the_command_behind_istio_asks_the_puller(status: int, fails: bool) -> None:
    [case] = [case for case in CASES if case.name == "job-behind-istio"]
    [after] = documents(case / "expected.yaml")
    interpreter, flag, code = after["spec"]["initContainers"][0]["startupProbe"]["exec"]["command"]
    assert (interpreter, flag) == ("python", "-c")
    handler = type("Answer", (Ready,), {"status": status})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.handle_request, daemon=True).start()
        with pytest.raises(SystemExit) as end:
            exec(code.replace("9081", str(server.server_port)))
    assert bool(end.value.code) is fails


def test_the_schemes_are_the_pullers() -> None:
    assert tuple(Scheme) == SCHEMES
    assert set(SCHEMES) - set(ModelPuller().schemes) == {"file"}


def test_most_cases_inject() -> None:
    assert len(INJECTED) > 30
    assert {container.role for case in INJECTED for container in pullers(case)} == {Role.MAIN, Role.SIDECAR}
