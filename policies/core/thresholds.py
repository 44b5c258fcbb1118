"""What the rules measure against: key `thresholds` of rules.yaml."""

from __future__ import annotations

from pydantic import Field

from policies.core.settings import Model


class Thresholds(Model):
    """Limits that the rules use."""

    endless_sidecars: tuple[str, ...] = Field(
        (),
        description="further images, by the end of their repository (`team/audit-proxy`), that run until "
        "they are asked to stop, for the rule job-sidecar-blocks-completion",
    )
