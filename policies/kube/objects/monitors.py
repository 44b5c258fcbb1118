"""The Prometheus operator's objects that say which pods are scraped."""

from __future__ import annotations

from policies.kube.objects.metadata import IntOrString, LabelSelector, Object, Part


class MonitorEndpoint(Part):
    """A port that is asked for metrics."""

    port: IntOrString = ""
    """The name of a Service's port, or of a container's for a PodMonitor."""
    target_port: IntOrString | None = None
    """The name or number of a container's port."""
    port_number: int | None = None
    """The number of a container's port, in a PodMonitor."""


class NamespaceSelector(Part):
    any: bool = False
    match_names: tuple[str, ...] = ()


class MonitorSpec(Part):
    selector: LabelSelector | None = None
    namespace_selector: NamespaceSelector = NamespaceSelector()
    endpoints: tuple[MonitorEndpoint, ...] = ()
    pod_metrics_endpoints: tuple[MonitorEndpoint, ...] = ()


class Monitor(Object):
    """A ServiceMonitor or PodMonitor."""

    spec: MonitorSpec = MonitorSpec()

    def looks_only_in(self, namespace: str) -> bool:
        """Whether it looks in a namespace, and in no other one."""
        chosen = self.spec.namespace_selector
        own = self.metadata.namespace or "default"
        return not chosen.any and set(chosen.match_names or (own,)) == {namespace}
