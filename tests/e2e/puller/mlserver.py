"""A real MLServer with scikit-learn models, on the loopback."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from urllib.error import URLError

from tests.e2e.processes import Process, free_port
from tests.e2e.puller.venvs import venv

_TRAIN = """
import sys, joblib
from sklearn.linear_model import LinearRegression
joblib.dump(LinearRegression().fit([[0], [1]], [0, float(sys.argv[1])]), sys.argv[2])
"""


class MLServer:
    """Loads no model by itself: it serves models that it was asked to load."""

    def __init__(self, where: Path, model_dir: Path) -> None:
        self.port = free_port()
        self.process: Process | None = None
        self._model_dir = model_dir
        self._log = where / "mlserver.log"
        where.mkdir(exist_ok=True)
        settings = {
            "HOST": "127.0.0.1",
            "HTTP_PORT": self.port,
            "GRPC_PORT": free_port(),
            "METRICS_PORT": free_port(),
            "PARALLEL_WORKERS": 0,
            "LOAD_MODELS_AT_STARTUP": "false",
        }
        self._env = os.environ | {f"MLSERVER_{name}": str(value) for name, value in settings.items()}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(venv("mlserver") / "mlserver"), "start", str(self._model_dir)]
        self.process = Process("mlserver", command, self._log, self._env)
        self.process.wait_until(self._lives, 90)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def predict(self, model: str, x: float) -> float | None:
        """The model's answer; None where it serves no such model."""
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP64", "data": [x]}
        request = urllib.request.Request(
            f"{self.url}/v2/models/{model}/infer",
            json.dumps({"inputs": [tensor]}).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return float(json.load(response)["outputs"][0]["data"][0])
        except (URLError, ConnectionError, TimeoutError):
            return None

    def _lives(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/v2/health/live", timeout=2).close()
        except (URLError, ConnectionError, TimeoutError):
            return False
        return True


def sklearn_model(directory: Path, name: str, slope: float) -> None:
    """A model repository entry that answers `slope * x`."""
    directory.mkdir(parents=True, exist_ok=True)
    python = venv("mlserver") / "python"
    subprocess.run([python, "-c", _TRAIN, str(slope), directory / "model.joblib"], check=True)
    settings = {
        "name": name,
        "implementation": "mlserver_sklearn.SKLearnModel",
        "parameters": {"uri": "./model.joblib"},
    }
    (directory / "model-settings.json").write_text(json.dumps(settings))
