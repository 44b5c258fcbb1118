"""Real servers from PyPI, each in its own virtual environment.

python -m tests.e2e.puller.venvs [NAME...]     build missing ones, print the paths
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.venvs import built

REQUIREMENTS = {
    "swift": ("swift==2.38.3", "pyeclib==1.8.0", "setuptools==65.5.0"),
    # MLServer 1.7 calls what uvloop 0.22 took away.
    "mlserver": ("mlserver==1.7.1", "mlserver-sklearn==1.7.1", "uvloop==0.21.0"),
}


def venv(name: str) -> Path:
    """The `bin` directory of the environment. Raises CalledProcessError when it cannot be built."""
    return built("venvs", name, REQUIREMENTS[name])


if __name__ == "__main__":
    for each in sys.argv[1:] or REQUIREMENTS:
        print(each, venv(each))
