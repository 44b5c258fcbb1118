"""The rule that guards the webhook's own policy."""

from __future__ import annotations

from collections.abc import Iterable

from policies.core.contracts import Family, Rule
from policies.core.facts import Facts
from policies.core.finding import Finding
from policies.core.mode import Mode
from policies.core.target import Target
from policies.kube.group_kinds import CONFIG_MAP
from policies.kube.json import mapping
from policies.kube.metadata import labels_of


def policy_config_invalid(target: Target, facts: Facts) -> Iterable[Finding]:
    """Whatever keeps a labelled policy ConfigMap from loading."""
    if labels_of(target.obj).get("mlchassis.dev/policy") != "true":
        return
    files = {key: value for key, value in mapping(target.obj, "data").items() if isinstance(value, str)}
    for path, problem in facts.policy_problems(files):
        yield Finding(
            path,
            f"The policy does not load: {problem}.",
            "Mend the key; the last good policy stays in force. `chassis policy check DIR` shows the same.",
        )


RULES = (
    Rule(
        id="policy-config-invalid",
        family=Family.DEADLOCK,
        check=policy_config_invalid,
        standard=Mode.ENFORCE,
        strict=Mode.ENFORCE,
        kinds=(CONFIG_MAP,),
        exemptable=False,
        what="The webhook's own ConfigMap does not load.",
        why="The webhook keeps its last good policy, so a bad edit would silently change nothing; and a "
        "replica that starts afterwards would have no good policy to keep.",
        mend="Correct what the message names; `chassis policy check DIR` says the same before you apply.",
        source="docs/configuration.md",
        bad="""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: mlchassis-policy
  labels: {mlchassis.dev/policy: "true"}
data:
  rules.yaml: |
    profile: stern
""",
        good="""\
apiVersion: v1
kind: ConfigMap
metadata:
  name: mlchassis-policy
  labels: {mlchassis.dev/policy: "true"}
data:
  rules.yaml: |
    profile: strict
""",
    ),
)
