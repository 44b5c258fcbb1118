"""Slices of accelerators, such as NVIDIA's MIG and time-slicing, told from whole ones."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Final

_CUDA: Final = re.compile(r"nvidia\.com/(?:gpu|gpu\.shared|mig-\d+g\.\d+gb)")
_MIG: Final = re.compile(r"mig-\d+g\.(\d+)gb", re.IGNORECASE)
"""The memory of a slice in its name: `nvidia.com/mig-3g.40gb` is a resource of the mixed strategy, and
`NVIDIA-A100-SXM4-40GB-MIG-3g.20gb` a product of the single one."""


def is_cuda_device(resource: str) -> bool:
    """Whether a resource counts CUDA devices, whole ones or slices; other vendors have other units."""
    return _CUDA.fullmatch(resource) is not None


def slice_memory(name: str) -> int | None:
    """Bytes of the slice that a resource or a product is named after; None if it is named after none."""
    found = _MIG.search(name)
    return None if found is None else int(found[1]) * 10**9


def matching_products(products: Iterable[str], globs: Sequence[str], marks: Sequence[str]) -> frozenset[str]:
    """The products that match a glob. `marks`: what names of slices contain (`slices` in `vendors.yaml`). A
    slice is left out unless a glob contains its mark or no whole accelerator matches."""
    found = {
        product for product in products if any(fnmatchcase(product.lower(), glob.lower()) for glob in globs)
    }
    unmentioned = [mark for mark in marks if not any(mark.strip("-").lower() in g.lower() for g in globs)]
    whole = {product for product in found if not any(mark in product for mark in unmentioned)}
    return frozenset(whole or found)
