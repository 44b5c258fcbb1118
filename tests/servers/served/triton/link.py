"""Puts the wheel's Python backend where the command looks for it, with the stub for this Python.

Links rather than copies: the stub finds its libraries from where it lies.
"""

import sys
from pathlib import Path

import pytriton

wheel = Path(pytriton.__file__).with_name("tritonserver")
version = f"{sys.version_info.major}.{sys.version_info.minor}"
place = Path("backends/python")
place.mkdir(parents=True)
for folder in (wheel / "backends" / "python", wheel / "python_backend_stubs" / version):
    for file in folder.iterdir():
        if not (place / file.name).exists():
            (place / file.name).symlink_to(file)
