"""field-misplaced: settings of retries, ends and starts where the controller does not read them."""

from __future__ import annotations

from policies.core.contracts import Facts, Finding, Findings, Target, rule
from policies.core.lives import known_lives, runs_in
from policies.kube.field_paths import every_value_at, field_path


def check(target: Target, facts: Facts) -> Findings:
    for run in runs_in(target.obj):
        for wrong, right in run.life.misplaced.items():
            for steps, value in every_value_at(run.spec, wrong):
                if value is None:
                    continue
                above = field_path(run.steps)
                place = right if " " in right else f"{above}.{right}"
                yield Finding(
                    field_path((*run.steps, *steps)),
                    f"{run.life.kind} has no field {wrong.rpartition('.')[2]} here. The API server drops "
                    "it or the controller ignores it, without an error.",
                    f"Set it where it takes effect: {place}.",
                )


RULE = rule(__name__, check, tuple(kind for kind, lives in known_lives().items()))
