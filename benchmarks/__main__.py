"""`make bench`: run every benchmark of this package, or those named as arguments."""

from __future__ import annotations

import pkgutil
import runpy
import sys

import benchmarks


def main() -> None:
    wanted = sys.argv[1:]
    for info in sorted(pkgutil.iter_modules(benchmarks.__path__), key=lambda info: info.name):
        if info.name.startswith("_") or (wanted and info.name not in wanted):
            continue
        print(f"== {info.name}", flush=True)
        sys.argv[1:] = []
        runpy.run_module(f"{benchmarks.__name__}.{info.name}", run_name="__main__")


if __name__ == "__main__":
    main()
