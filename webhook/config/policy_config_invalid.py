"""policy-config-invalid: the webhook's own policy does not load.

The rule is not in `policies` because it needs the loader of the webhook's configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from policies.core.annotations import OVERRIDE, POLICY_LABEL
from policies.core.contracts import Rule, rule
from policies.core.facts import Facts
from policies.core.finding import Certainty, Finding
from policies.core.target import Target
from policies.kube.group_kinds import CONFIG_MAP
from policies.kube.json import mapping
from policies.kube.metadata import labels_of
from webhook.admission.configuration import Problem
from webhook.config import config_maps
from webhook.config.config_maps import keys

ProblemsOf = Callable[[Mapping[str, str]], tuple[Iterable[Problem], Iterable[Problem]]]
"""Returns the problems of a policy, and the removed settings in it."""


def policy_config_invalid(problems_of: ProblemsOf, namespace: str = "") -> Rule:
    """`namespace`: that of the policy; empty: any, since files may be applied anywhere."""
    return rule(__name__, partial(check, problems_of, namespace), (CONFIG_MAP,))


def check(problems_of: ProblemsOf, namespace: str, target: Target, facts: Facts) -> Iterable[Finding]:
    """The problems of a labelled policy ConfigMap or of the override, and removed settings in them.

    Tenants may set the labels in their own namespaces: parsing a policy takes longer than a review may.
    """
    if namespace and facts.namespace != namespace:
        return
    label = labels_of(target.obj).get(POLICY_LABEL)
    if label not in ("true", OVERRIDE):
        return
    files = keys(target.obj)
    if label == OVERRIDE:
        for key, expected in config_maps.unknown_switches(files).items():
            yield Finding(
                f"data[{key}]", f"The switch {key} {expected}.", "Correct the value, or remove the key."
            )
        files = {key: text for key, text in files.items() if key not in config_maps.SWITCHES}
    binary = mapping(target.obj, "binaryData")
    problems, notes = problems_of(files)
    for problem in problems:
        what = f"{problem.path}: {problem.message}" if problem.path else problem.message
        field = "binaryData" if problem.file in binary else "data"
        yield Finding(
            f"{field}[{problem.file}]",
            f"The policy does not load: {what}{'' if what.endswith('?') else '.'}",
            "Correct the key. The last good policy stays in force. `chassis policy check DIR` checks a "
            "policy.",
        )
    for note in notes:
        field = "binaryData" if note.file in binary else "data"
        yield Finding(
            f"{field}[{note.file}]",
            f"{note.path}: {note.message}.",
            "The policy loads without it. The changelog names its replacement.",
            Certainty.UNDECIDED,
        )
