"""gpus-unused: containers that get accelerators which their options or their image do not use."""

from __future__ import annotations

from functools import cache

from policies.accelerators.catalogue import Catalogue
from policies.accelerators.gpu_affinity_settings import GpuAffinity
from policies.accelerators.parallelism import devices, on_this_node, runs_only, runs_ray
from policies.core.contracts import Facts, Finding, Findings, PodFeature, PodTemplate, Target, rule
from policies.core.data import entries
from policies.core.settings import Field, Model
from policies.kube.images import Globs, numbers_of_tag, repository_and_tag
from policies.kube.names import listed
from policies.kube.pods import Container, Role
from policies.probes.serving import recognised


class ImageVendors(Model):
    """An entry of the table image_vendors.yaml."""

    images: tuple[str, ...] = Field(description="globs of the images' paths, with or without their tags")
    unless: tuple[str, ...] = Field((), description="globs of those that use accelerators")
    vendors: tuple[str, ...] = Field((), description="the vendors whose accelerators they can use")
    before: str = Field(
        "", pattern=r"^([0-9]+(\.[0-9]+)*)?$", description="the first version that can use others"
    )
    instead: str = Field(description="an image that uses them: the end of a sentence")
    source: str = Field(description="the page of the image")


_image_vendors = entries(ImageVendors, "policies.accelerators", "image_vendors.yaml")


def check(target: Target, facts: Facts) -> Findings:
    for template in target.templates:
        if template.is_ray or template.rewritten or template.container_path:
            continue  # the operator may add the options
        for container in template.containers(Role.MAIN):
            yield from _of_others(template, container, facts)
            available = devices(container)
            server = recognised(container, facts) if available > 1 else None
            known = None if server is None else server.preset.parallelism
            if server is None or known is None or known.takes_all or server.has_env_from:
                continue
            if any(name.endswith(".shared") for name in container.typed.resources.limits):
                continue  # parts of one device
            used = on_this_node(server)
            if not 0 < used < available or not runs_only(container, server) or runs_ray(template):
                continue
            flag = next((factor.flags[0] for factor in known.spread if factor.flags), "")
            raise_it = f"Set {flag} so that all {available} are used, or request" if flag else "Request"
            yield Finding(
                template.at(container, "resources"),
                f"Container {container.name} gets {available} GPUs, but {server.name} uses {used} with its "
                "options. The others are idle, and no other pod can have them.",
                f"{raise_it} {used}.",
            )


def _of_others(template: PodTemplate, container: Container, facts: Facts) -> Findings:
    """A finding about accelerators of an image that has no code for them."""
    tag, known = repository_and_tag(container.image)[1], _known_of(container.image)
    if not tag or not known:
        return
    catalogue = facts.settings(GpuAffinity).catalogue
    requested = catalogue.requests_of(container.typed.resources)
    for each in known:
        if each.before and not () < numbers_of_tag(tag) < numbers_of_tag(each.before):
            continue
        unused = {name: count for name, count in requested.items() if not _can_use(each, catalogue, name)}
        if unused:
            made = f"can use those of {listed(map(str.upper, each.vendors[:1]))} only"
            yield Finding(
                template.at(container, "resources"),
                f"Container {container.name} gets {listed(f'{n} {name}' for name, n in unused.items())}, but "
                f"its image {made if each.vendors else 'computes on processors only'}. No other pod can have "
                "what it gets.",
                f"Remove the request, or use another image: {each.instead}.",
            )
            return


@cache
def _globs() -> Globs:
    return Globs(glob for each in _image_vendors() for glob in (*each.images, *each.unless))


def _known_of(image: str) -> list[ImageVendors]:
    found = _globs().matching(image)
    return [
        each
        for each in _image_vendors()
        if not found.isdisjoint(each.images) and found.isdisjoint(each.unless)
    ]


def _can_use(image: ImageVendors, catalogue: Catalogue, resource: str) -> bool:
    return catalogue.vendor_of(resource) in image.vendors


RULE = rule(__name__, check, requires=(PodFeature.EXTENDED,))
