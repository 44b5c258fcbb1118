"""Puts the wheel's backends where the command looks for them."""

from pathlib import Path

import pytriton

Path("backends").symlink_to(Path(pytriton.__file__).with_name("tritonserver") / "backends")
