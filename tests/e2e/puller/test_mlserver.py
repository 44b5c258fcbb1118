"""A real model server answers inferences from what the puller pulled, through an update and a crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.puller.mlserver import MLServer, sklearn_model
from tests.e2e.puller.sidecar import Sidecar

pytestmark = pytest.mark.e2e


@pytest.fixture
def server(tmp_path: Path) -> Iterator[MLServer]:
    made = MLServer(tmp_path / "server", tmp_path / "models")
    yield made
    made.kill()


@pytest.fixture
def sidecar(tmp_path: Path, server: MLServer) -> Iterator[Sidecar]:
    made = Sidecar(tmp_path, {}, server="v2", server_url=server.url)
    yield made
    made.kill()


def test_inferences_before_and_after_an_update_a_crash_and_a_removal(
    tmp_path: Path, server: MLServer, sidecar: Sidecar
) -> None:
    for version, slope in (("v1", 2.0), ("v2", 3.0)):
        sklearn_model(tmp_path / "registry" / version, "line", slope)
    sklearn_model(tmp_path / "registry" / "other", "other", 7.0)
    uri = f"file://{tmp_path}/registry/"
    sidecar.config.write({"line": uri + "v1", "other": uri + "other"})
    sidecar.start()  # the server is not there yet
    sidecar.wait(lambda: sidecar.states() == {"line": "Downloaded", "other": "Downloaded"}, 30)
    assert sidecar.get("/readyz")[0] == 503

    server.start()
    sidecar.wait(lambda: sidecar.get("/readyz")[0] == 200, 60)
    assert server.predict("line", 5) == pytest.approx(10)
    assert server.predict("other", 1) == pytest.approx(7)

    sidecar.config.write({"line": uri + "v2", "other": uri + "other"})
    sidecar.wait(lambda: server.predict("line", 5) == pytest.approx(15), 60)
    assert server.predict("other", 1) == pytest.approx(7)

    server.kill()
    sidecar.wait(lambda: sidecar.get("/readyz")[0] == 503, 30)
    server.start()
    sidecar.wait(lambda: sidecar.get("/readyz")[0] == 200, 60)
    assert server.predict("line", 5) == pytest.approx(15)
    assert server.predict("other", 1) == pytest.approx(7)

    sidecar.config.write({"line": uri + "v2"})
    sidecar.wait(lambda: sidecar.states() == {"line": "Loaded"}, 60)
    assert server.predict("other", 1) is None
    assert server.predict("line", 5) == pytest.approx(15)
    assert sidecar.stop() == 0


def test_a_model_that_does_not_load_is_reported_and_mended(
    tmp_path: Path, server: MLServer, sidecar: Sidecar
) -> None:
    good, bad = tmp_path / "registry" / "good", tmp_path / "registry" / "bad"
    sklearn_model(good, "line", 2.0)
    sklearn_model(bad, "line", 2.0)
    (bad / "model.joblib").write_bytes(b"not a pickle")
    sidecar.config.write({"line": f"file://{bad}"})
    sidecar.start()
    sidecar.wait(lambda: sidecar.states() == {"line": "Downloaded"}, 30)
    server.start()
    sidecar.wait(lambda: sidecar.states() == {"line": "Failed"}, 60)
    entry = sidecar.models()["line"]
    assert entry["reason"] == "LoadFailed"
    assert "500" in entry["message"] or "400" in entry["message"]
    sidecar.config.write({"line": f"file://{good}"})
    sidecar.wait(lambda: sidecar.states() == {"line": "Loaded"}, 60)
    assert server.predict("line", 5) == pytest.approx(10)
