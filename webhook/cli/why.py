"""`chassis why`: who set each field of a pod or a workload, why, and how to change it.

Law: no object is changed. The history of a running pod is read from the pod itself; the engine of admission
computes the answer of today's policy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from policies.core import registry
from policies.core.facts import Cluster
from policies.core.mode import Mode
from policies.core.reasons import Reason
from policies.core.target import PodTemplate, pod_templates
from policies.jobs.jobs import jobs_in
from policies.kube.field_paths import named_path, value_at, without
from policies.kube.group_kinds import JOB, POD, kind_of
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import labels_of
from policies.kube.printable import printable
from webhook.admission.changed import Changed
from webhook.admission.configuration import Config
from webhook.admission.context import Context
from webhook.admission.engine import decide
from webhook.cli import connection, remedies
from webhook.cli.cluster_facts import facts_of
from webhook.cli.exit_status import OK
from webhook.cli.named_policy import policy_files
from webhook.cli.output.plain import as_json
from webhook.cli.owners import Owners
from webhook.cli.provenance import OF_JOB, By, Field, fields_of, last_applied, of_note
from webhook.config.load import load
from webhook.config.location import read_files
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.discovery import Collection, served
from webhook.kube.offline import Document, ManifestCluster, read

_SHORT: Final = {
    "po": "pods",
    "deploy": "deployments",
    "sts": "statefulsets",
    "ds": "daemonsets",
    "rs": "replicasets",
    "rc": "replicationcontrollers",
    "cj": "cronjobs",
    "isvc": "inferenceservices",
    "lws": "leaderworkersets",
}
_WIDTH: Final = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show who set each field of a pod or a workload (probes, lifecycle, affinity, tolerations, "
        "sidecars, how a Job fails): its author, ML Chassis, Kubernetes by default, or another client; "
        "why; and the commands that change it. The command itself changes no object."
    )
    parser.add_argument("object", nargs="*", metavar="KIND/NAME", help="such as pod/llm-0 or deployment/llm")
    parser.add_argument("-n", "--namespace", metavar="NS", help="default: the namespace of the context")
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="PATH",
        help="manifests, not a cluster",
    )
    parser.add_argument(
        "--policy",
        metavar="WHERE",
        help="a directory, a file, - or configmap:NS/NAME (default: the policy installed in the cluster)",
    )
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    connection.add_arguments(parser)
    parser.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Answer:
    """The explanation of one object."""

    obj: Json
    place: remedies.Place
    fields: Sequence[Field]
    config: Config
    settings: Context
    made_under: str = ""
    """The digest of the policy under which a pod was made, if the pod carries it."""

    @property
    def title(self) -> str:
        return _title(self.obj)


def run(args: argparse.Namespace) -> int:
    if args.filename:
        policy = remedies.Policy(args.policy or "", read_files(args.policy) if args.policy else {})
        answers = list(_of_files(args.filename, args.object, load(policy.files)))
    else:
        if not args.object:
            raise UserError("why: name an object, such as pod/llm-0, or a file with -f")
        with connection.connected(args.kubeconfig, args.context) as (api, wait):
            policy = remedies.Policy(*wait(policy_files(api, args.policy)))
            answers = wait(_of_cluster(api, args.namespace or api.namespace, args.object, load(policy.files)))
    flags = [("--kubeconfig", args.kubeconfig), ("--context", args.context)]
    kubectl = remedies.Kubectl(tuple(f"{flag}={value}" for flag, value in flags if value))
    told = [_told(answer, policy, kubectl) for answer in answers]
    if args.output == "json":
        sys.stdout.write(as_json(told))
    else:
        print("\n\n".join("\n".join(map(printable, _lines(each))) for each in told))
    return OK


# --- the objects in question ------------------------------------------------------------------------


def _of_files(files: Sequence[str], names: Sequence[str], config: Config) -> Iterator[Answer]:
    documents = read(files)
    cluster = ManifestCluster([document.obj for document in documents])
    found = False
    for document in documents:
        kind = kind_of(document.obj).kind.lower()
        named = not names or any(
            name == document.name and wanted.lower() in (kind, f"{kind}s", "")
            for wanted, _, name in (each.rpartition("/") for each in names)
        )
        template = next(iter(pod_templates(document.obj, config.workloads)), None)
        if named and template is not None:
            found = True
            yield _workload(document, config, cluster, template)
    if not found:
        raise UserError(f"there is nothing that makes pods in {', '.join(files)}")


async def _of_cluster(api: ApiServer, namespace: str, names: Sequence[str], config: Config) -> list[Answer]:
    known = await served(api, (POD, *config.workloads))
    cluster, _ = await facts_of(api, namespace)
    found = await asyncio.gather(*(_named(api, known, namespace, each) for each in names))
    return [await _running(api, obj, known, config, cluster) for obj in found]


async def _named(api: ApiServer, known: Sequence[Collection], namespace: str, named: str) -> Json:
    kind, slash, name = named.partition("/")
    plural = _SHORT.get(kind.lower(), kind.lower()).partition(".")[0]
    if not slash or not name:
        raise UserError(f"{named!r}: write KIND/NAME, such as pod/{named}")
    for each in known:
        if plural in (each.plural, each.kind.kind.lower()):
            obj = await api.get(paths.one(each.api_version, each.plural, name, namespace))
            if obj is None:
                raise UserError(f"there is no {each.kind.kind} {name} in namespace {namespace}")
            return {"apiVersion": each.api_version, "kind": each.kind.kind, **obj}
    raise UserError(f"{kind!r} is no kind of this cluster that makes pods")


# --- who set what -----------------------------------------------------------------------------------


async def _running(
    api: ApiServer, obj: Json, known: Sequence[Collection], config: Config, cluster: Cluster
) -> Answer:
    document = Document(api.context or "cluster", None, obj)
    if kind_of(obj) != POD:
        template = next(iter(pod_templates(obj, config.workloads)), None)
        if template is None:
            raise UserError(f"{_title(obj)} makes no pods")
        return _workload(document, config, cluster, template)
    owners = await Owners(api, known).above(obj)
    return _pod(obj, owners, config, cluster)


def _pod(pod: Json, owners: Sequence[Json], config: Config, cluster: Cluster) -> Answer:
    changed = Changed.of(pod)
    template = _template_of(pod, owners[0], config) if owners else None
    manifest = None if template else last_applied(pod)
    namespace = text(pod, "metadata", "namespace")
    if template is not None:
        made = template.pod
    elif manifest is not None:
        made = manifest
    else:
        made = without(pod, [each.path for each in changed.entries] if changed else [])
    metadata = {
        **{key: value for key, value in mapping(made, "metadata").items() if key != "uid"},
        "namespace": namespace,
        "name": text(pod, "metadata", "name"),
    }
    written = {**made, "apiVersion": "v1", "kind": "Pod", "metadata": metadata}
    decision = decide(Document("", None, written).request(), config, cluster)
    derived = [(change.mode, reason) for change in decision.changes for reason in change.why]
    top = owners[-1] if owners else pod
    above = next(iter(pod_templates(top, config.workloads)), None) if owners else None
    return Answer(
        pod,
        remedies.Place(top, above),
        fields_of(pod, written, derived, list(of_note(pod)), changed),
        config,
        Context.of(pod, namespace, config, cluster),
        changed.digest if changed else "",
    )


def _template_of(pod: Json, owner: Json, config: Config) -> PodTemplate | None:
    """The template that a pod was made from: of several the one with the most of its labels."""
    templates = pod_templates(owner, config.workloads)
    labels = labels_of(pod).items()
    return max(templates, key=lambda each: len(labels_of(each.pod).items() & labels), default=None)


def _workload(document: Document, config: Config, cluster: Cluster, template: PodTemplate) -> Answer:
    obj = document.obj
    written = obj
    if document.runs and kind_of(obj) == JOB:
        written = _as_written(obj)
    namespace = document.namespace or "default"
    judged = replace(document, obj=written)
    decision = decide(judged.request(), config, cluster)
    derived = [(change.mode, reason) for change in decision.changes for reason in change.why]
    final = decision.object if decision.projected is None else decision.projected
    if document.runs:  # of a running object's own fields, the present ones count
        kept = {name: value for name, value in mapping(obj, "spec").items() if name in OF_JOB}
        final = {**final, "metadata": obj["metadata"], "spec": {**mapping(final, "spec"), **kept}}
    noted = [each.placed(path) for each in pod_templates(obj, config.workloads) for path in of_note(each.pod)]
    noted += [
        f"{named_path(obj, job.steps)}.{name}"
        for job in jobs_in(obj)
        for name in OF_JOB
        if job.spec.get(name) is not None
    ]
    source = "" if document.runs else document.source
    return Answer(
        obj,
        remedies.Place(obj, template if kind_of(obj) != POD else None, source),
        fields_of(final, written, derived, noted),
        config,
        Context.of(template.pod, namespace, config, cluster),
    )


def _as_written(job: Json) -> Json:
    """A Job without the fields that are added at its creation, unless its author is known to have written
    them."""
    manifest = last_applied(job) or {}
    ours = [f"spec.{name}" for name in ("podFailurePolicy", "podReplacementPolicy")]
    bare = without(job, [path for path in ours if value_at(manifest, path) is None])
    return without(bare, ["metadata.uid", "status"])


# --- in words ---------------------------------------------------------------------------------------


def _title(obj: Json) -> str:
    metadata = mapping(obj, "metadata")
    name = text(metadata, "name") or text(metadata, "generateName")
    namespace = text(metadata, "namespace")
    return f"{text(obj, 'kind')} {namespace}/{name}" if namespace else f"{text(obj, 'kind')} {name}"


def _told(answer: Answer, policy: remedies.Policy, kubectl: remedies.Kubectl) -> Json:
    """The explanation of one object for `-o json`."""
    under = answer.made_under
    policies = dict.fromkeys(each.reason.policy for each in answer.fields if each.reason)
    return {
        "kind": text(answer.obj, "kind"),
        "namespace": text(answer.obj, "metadata", "namespace"),
        "name": text(answer.obj, "metadata", "name"),
        "title": answer.title,
        "writtenIn": _title(answer.place.obj),
        "policy": {
            "where": policy.where or "built-in",
            "digest": answer.config.digest,
            "then": under or None,
            "changed": bool(under) and under != answer.config.digest,
        },
        "fields": [_field(answer, each, policy, kubectl) for each in answer.fields],
        "without": {each: remedies.exempt(answer.place, each, kubectl) for each in policies},
    }


def _field(answer: Answer, each: Field, policy: remedies.Policy, kubectl: remedies.Kubectl) -> Json:
    reason = each.reason
    told: Json = {"path": each.path, "by": each.by.value, "manager": each.manager or None}
    if reason is None:
        return told
    commands: dict[str, str] = {}
    if reason.annotation:
        key, _, value = reason.annotation.partition("=")
        commands["here"] = remedies.annotate(answer.place, key, value, kubectl)
    if reason.setting:
        current = _current(answer, reason)
        commands["everywhere"] = remedies.configure(policy, reason.policy, reason.setting, current, kubectl)
    return {
        **told,
        "policy": reason.policy,
        "mode": each.mode.value,
        "why": reason.why,
        "setting": reason.setting or None,
        "annotation": reason.annotation or None,
        "today": each.today,
        "commands": commands,
    }


def _current(answer: Answer, reason: Reason) -> Any:
    """The value of a setting that is in force."""
    settings = answer.settings.effective.settings(registry.mutators()[reason.policy].settings)
    return settings.model_dump(mode="json", by_alias=True)[reason.setting]


_BY: Final = {
    By.DEFAULT: "Kubernetes, by default",
    By.OTHER: "somebody else: another webhook, or a controller",
}


def _lines(told: Json) -> Iterator[str]:
    yield told["title"] + ("" if told["title"] == told["writtenIn"] else f", made for {told['writtenIn']}")
    yield from _about_policy(told["policy"])
    for each in told["fields"]:
        yield ""
        yield each["path"]
        yield from _entry("by", _by(told, each))
        if "why" in each:
            yield from _entry("why", each["why"])
            yield from _today(each)
            for name, command in each["commands"].items():
                yield f"  {'change' if name == 'here' else 'for all':8}{command}"
    if told["without"]:
        yield ""
        yield "Without a policy:"
        yield from (f"  {command}" for command in told["without"].values())
    if not told["fields"]:
        yield "No relevant field is set."


def _about_policy(policy: Json) -> Iterator[str]:
    place = "built in" if policy["where"] == "built-in" else policy["where"]
    if policy["changed"]:
        digests = f"{policy['then']} then, {policy['digest']} now"
        yield f"policy: {place}, changed since this pod was made ({digests})"
    else:
        yield f"policy: {place} ({policy['digest']})"


def _by(told: Json, each: Json) -> str:
    manager = f" (field manager {each['manager']})" if each["manager"] else ""
    if "policy" in each:
        if each["mode"] == Mode.ENFORCE:
            return f"{each['policy']} of ML Chassis"
        return f"nobody: {each['policy']} of ML Chassis would, its mode is {each['mode']}"
    if each["by"] == By.USER:
        return f"the author of {told['writtenIn']}{manager}"
    return f"{_BY[By(each['by'])]}{manager}"


def _today(each: Json) -> Iterator[str]:
    if each["today"] is None:
        return
    yield from _entry("today", each["today"] or "the policy adds nothing there any more")


def _entry(name: str, words: str) -> list[str]:
    return textwrap.wrap(
        words, _WIDTH, initial_indent=f"  {name:8}", subsequent_indent=" " * 10, break_on_hyphens=False
    )
