"""Devices of dynamic resource allocation (DRA)."""

from __future__ import annotations

from policies.kube.objects.metadata import Object, Part


class CELSelector(Part):
    expression: str = ""


class DeviceSelector(Part):
    cel: CELSelector | None = None


class DeviceClassSpec(Part):
    extended_resource_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceClass(Object):
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceSubRequest(Part):
    """What is asked for: `exactly`, one of `firstAvailable`, or in v1beta1 the request itself."""

    device_class_name: str = ""
    count: int = 1
    allocation_mode: str = ""
    admin_access: bool = False
    selectors: tuple[DeviceSelector, ...] = ()


class DeviceRequest(DeviceSubRequest):
    name: str = ""
    exactly: DeviceSubRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceClaim(Part):
    requests: tuple[DeviceRequest, ...] = ()


class ResourceClaimSpec(Part):
    devices: DeviceClaim = DeviceClaim()


class ResourceClaim(Object):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplateSpec(Part):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Object):
    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DevicePool(Part):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Part):
    driver: str = ""
    node_name: str = ""
    pool: DevicePool = DevicePool()


class ResourceSlice(Object):
    """Without the devices, which `policies.relations.devices` counts once."""

    spec: ResourceSliceSpec = ResourceSliceSpec()
