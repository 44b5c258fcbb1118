"""`chassis why`: who set each field of a pod or a workload, why, and how to change it.

No object is changed. The fields that were added to a running pod are in its annotation; the engine of
admission computes the fields that the present policy adds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from policies.core import registry
from policies.core.facts import Cluster
from policies.core.finding import Mode
from policies.core.pod_templates import pod_templates
from policies.core.settings import fields_as_json
from policies.core.target import PodTemplate
from policies.jobs.jobs import jobs_in
from policies.kube.field_paths import named_path, value_at, without
from policies.kube.group_kinds import JOB, POD, kind_of
from policies.kube.json import Json, mapping, text
from policies.kube.metadata import labels_of, last_applied
from webhook.admission.bounds import allowance, bounded
from webhook.admission.changed_annotation import Changed
from webhook.admission.configuration import Config
from webhook.admission.engine import decide
from webhook.admission.printable import printable
from webhook.admission.review import Context, Review
from webhook.cli import flags
from webhook.cli.cluster_facts import read_facts
from webhook.cli.connection import connected
from webhook.cli.flags import OK
from webhook.cli.kubectl import Kubectl, PodMetadata, PolicyText, annotate, configure, exempt
from webhook.cli.named_policy import policy_files
from webhook.cli.owners import Owners
from webhook.cli.provenance import OF_JOB, By, Field, fields_of, relevant_fields
from webhook.cli.terminal import as_json, width
from webhook.config.config_maps import OVERRIDE_NAME
from webhook.config.load import load
from webhook.config.location import CONFIG_MAP, config_map, read_files
from webhook.errors import UserError
from webhook.kube import paths
from webhook.kube.api import ApiServer
from webhook.kube.calls import ApiError
from webhook.kube.discovery import Collection, served
from webhook.manifests.cluster import ManifestCluster
from webhook.manifests.files import Document, read

_SHORT_NAMES: Final = {
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show who set each field of a pod or a workload (probes, lifecycle, affinity, tolerations, "
        "sidecars, how a Job fails): its author, ML Chassis, Kubernetes by default, or another client. "
        "Also show why, and the commands that change it. The command itself changes no object."
    )
    parser.add_argument("object", nargs="*", metavar="KIND/NAME", help="such as pod/llm-0 or deployment/llm")
    parser.add_argument("-n", "--namespace", metavar="NS", help="default: the namespace of the context")
    parser.add_argument(
        "-f",
        "--filename",
        action="append",
        default=[],
        metavar="PATH",
        help="read manifests instead of a cluster",
    )
    flags.add_policy(parser)
    flags.add_output(parser, "text", "json")
    flags.add_cluster(parser)
    parser.set_defaults(run=run)


class WhyAnswer(Struct, frozen=True):
    obj: Json
    place: PodMetadata
    fields: Sequence[Field]
    config: Config
    settings: Context
    digest: str = ""
    """The digest of the policy when the pod was created, if its annotation has one."""


def run(args: argparse.Namespace) -> int:
    if args.filename:
        policy = PolicyText(args.policy or "", read_files(args.policy) if args.policy else {})
        answers = list(_of_files(args.filename, args.object, load(policy.files)))
    else:
        if not args.object:
            raise UserError("why: specify an object, such as pod/llm-0, or a file with -f")
        with connected(args.kubeconfig, args.context) as (api, wait):
            where, files = wait(policy_files(api, args.policy))
            policy = PolicyText(where, files, wait(_override(api, where)))
            answers = wait(_of_cluster(api, args.namespace or api.namespace, args.object, load(policy.files)))
    chosen = [("--kubeconfig", args.kubeconfig), ("--context", args.context)]
    kubectl = Kubectl(tuple(f"{flag}={value}" for flag, value in chosen if value))
    records = [_record(answer, policy, kubectl) for answer in answers]
    if args.output == "json":
        sys.stdout.write(as_json(records))
    else:
        print("\n\n".join("\n".join(map(printable, _lines(each))) for each in records))
    return OK


# --- the objects ------------------------------------------------------------------------------------


def _of_files(files: Sequence[str], names: Sequence[str], config: Config) -> Iterator[WhyAnswer]:
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
        wanted = " or ".join(names) or "object with pods"
        raise UserError(f"the files contain no {wanted}: {', '.join(files)}")


async def _override(api: ApiServer, where: str) -> Mapping[str, str]:
    """The data of the ConfigMap mlchassis-override next to the policy, as far as the user may read it."""
    if not where.startswith(CONFIG_MAP):
        return {}
    namespace, _ = config_map(where)
    try:
        return mapping(await api.get(paths.one("v1", "configmaps", OVERRIDE_NAME, namespace)), "data")
    except ApiError as error:
        if error.status not in (401, 403):
            raise
        return {}


async def _of_cluster(
    api: ApiServer, namespace: str, names: Sequence[str], config: Config
) -> list[WhyAnswer]:
    known = await served(api, (POD, *config.workloads))
    cluster, _ = await read_facts(api, namespace)
    found = await asyncio.gather(*(_get(api, known, namespace, each) for each in names))
    return [await _running(api, obj, known, config, cluster) for obj in found]


async def _get(api: ApiServer, known: Sequence[Collection], namespace: str, named: str) -> Json:
    kind, slash, name = named.partition("/")
    plural = _SHORT_NAMES.get(kind.lower(), kind.lower()).partition(".")[0]
    if not slash or not name:
        raise UserError(f"{named!r}: use KIND/NAME, such as pod/{named}")
    for each in known:
        if plural in (each.plural, each.kind.kind.lower()):
            obj = await api.get(paths.one(each.api_version, each.plural, name, namespace))
            if obj is None:
                raise UserError(f"there is no {each.kind.kind} {name} in namespace {namespace}")
            return {"apiVersion": each.api_version, "kind": each.kind.kind, **obj}
    raise UserError(f"{kind!r} isn't a kind of this cluster with pods")


# --- the fields -------------------------------------------------------------------------------------


async def _running(
    api: ApiServer, obj: Json, known: Sequence[Collection], config: Config, cluster: Cluster
) -> WhyAnswer:
    document = Document(api.context or "cluster", None, obj)
    if kind_of(obj) != POD:
        template = next(iter(pod_templates(obj, config.workloads)), None)
        if template is None:
            raise UserError(f"{_title(obj)} has no pods")
        return _workload(document, config, cluster, template)
    owners = await Owners(api, known).above(obj)
    return _pod(obj, owners, config, cluster)


def _pod(pod: Json, owners: Sequence[Json], config: Config, cluster: Cluster) -> WhyAnswer:
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
    decision = decide(Review(Document("", None, written).request(), config, cluster))
    derived = [(change.mode, reason) for change in decision.changes for reason in change.reasons]
    top = owners[-1] if owners else pod
    above = next(iter(pod_templates(top, config.workloads)), None) if owners else None
    return WhyAnswer(
        pod,
        PodMetadata(top, above),
        fields_of(
            pod,
            written,
            derived,
            list(relevant_fields(pod)),
            changed,
            _manifest_of(pod, top, config),
            recorded=template is not None or manifest is not None,
        ),
        config,
        Context.of(pod, namespace, config, cluster),
        changed.digest if changed else "",
    )


def _template_of(pod: Json, owner: Json, config: Config) -> PodTemplate | None:
    """The template of a pod: of several templates, the one with the most of its labels."""
    templates = pod_templates(owner, config.workloads)
    labels = labels_of(pod).items()
    return max(templates, key=lambda each: len(labels_of(each.pod).items() & labels), default=None)


def _manifest_of(pod: Json, top: Json, config: Config) -> Json:
    """The pod as `kubectl apply` sent it, in its own manifest or that of its workload; empty if unknown."""
    manifest = last_applied(top)
    if manifest is None or top is pod:
        return manifest or {}
    template = _template_of(pod, {**manifest, "apiVersion": top["apiVersion"], "kind": top["kind"]}, config)
    return {} if template is None else template.pod


def _workload(document: Document, config: Config, cluster: Cluster, template: PodTemplate) -> WhyAnswer:
    obj = document.obj
    bounds = bounded(obj, config.workloads, allowance())
    if not bounds.any_read:
        raise UserError(f"{document.source}: {bounds.left_out[0]}")
    written = obj
    if document.runs and kind_of(obj) == JOB:
        written = _as_written(obj)
    namespace = document.namespace or "default"
    decision = decide(Review(replace(document, obj=written).request(), config, cluster))
    derived = [(change.mode, reason) for change in decision.changes for reason in change.reasons]
    final = decision.object if decision.projected is None else decision.projected
    if document.runs:  # a running object keeps its own values of these fields
        kept = {name: value for name, value in mapping(obj, "spec").items() if name in OF_JOB}
        final = {**final, "metadata": obj["metadata"], "spec": {**mapping(final, "spec"), **kept}}
    templates = pod_templates(obj, config.workloads)
    relevant = [each.path_in_object(path) for each in templates for path in relevant_fields(each.pod)]
    relevant += [
        f"{named_path(obj, job.steps)}.{name}"
        for job in jobs_in(obj)
        for name in OF_JOB
        if job.spec.get(name) is not None
    ]
    source = "" if document.runs else document.source
    return WhyAnswer(
        obj,
        PodMetadata(obj, template if kind_of(obj) != POD else None, source),
        fields_of(
            final, written, derived, relevant, manifest=(last_applied(obj) or {}) if document.runs else None
        ),
        config,
        Context.of(template.pod, namespace, config, cluster),
    )


def _as_written(job: Json) -> Json:
    """A Job without the fields that ML Chassis adds, unless its manifest has them."""
    manifest = last_applied(job) or {}
    ours = [f"spec.{name}" for name in ("podFailurePolicy", "podReplacementPolicy")]
    bare = without(job, [path for path in ours if value_at(manifest, path) is None])
    return without(bare, ["metadata.uid", "status"])


# --- output -----------------------------------------------------------------------------------------


def _title(obj: Json) -> str:
    metadata = mapping(obj, "metadata")
    name = text(metadata, "name") or text(metadata, "generateName")
    namespace = text(metadata, "namespace")
    return f"{text(obj, 'kind')} {namespace}/{name}" if namespace else f"{text(obj, 'kind')} {name}"


def _record(answer: WhyAnswer, policy: PolicyText, kubectl: Kubectl) -> Json:
    """The element of `-o json`; the text output has the same content."""
    policies = dict.fromkeys(each.reason.policy for each in answer.fields if each.reason)
    return {
        "kind": text(answer.obj, "kind"),
        "namespace": text(answer.obj, "metadata", "namespace"),
        "name": text(answer.obj, "metadata", "name"),
        "title": _title(answer.obj),
        "writtenIn": _title(answer.place.obj),
        "policy": {
            "where": policy.where or "built-in",
            "digest": answer.config.digest,
            "then": answer.digest or None,
            "changed": answer.digest not in ("", answer.config.digest),
        },
        "fields": [_field(answer, each, policy, kubectl) for each in answer.fields],
        "without": {each: exempt(answer.place, each, kubectl) for each in policies},
    }


def _field(answer: WhyAnswer, each: Field, policy: PolicyText, kubectl: Kubectl) -> Json:
    reason = each.reason
    record: Json = {"path": each.path, "by": each.by.value, "manager": each.manager or None}
    if reason is None:
        return record
    commands: dict[str, str] = {}
    if reason.annotation:
        key, _, value = reason.annotation.partition("=")
        commands["here"] = annotate(answer.place, key, value, kubectl)
    if reason.setting:
        settings = answer.settings.effective.settings(registry.mutators()[reason.policy].settings)
        current = fields_as_json(settings)[reason.setting]
        commands["everywhere"] = configure(policy, reason.policy, reason.setting, current, kubectl)
    return {
        **record,
        "policy": reason.policy,
        "mode": each.mode.value,
        "why": reason.why,
        "setting": reason.setting or None,
        "annotation": reason.annotation or None,
        "today": each.today,
        "commands": commands,
    }


_BY: Final = {
    By.DEFAULT: "Kubernetes, by default",
    By.OTHER: "another client, such as a webhook or a controller",
}


def _lines(record: Json) -> Iterator[str]:
    title, author, policy = record["title"], record["writtenIn"], record["policy"]
    yield title if title == author else f"{title}, created for {author}"
    place = "built in" if policy["where"] == "built-in" else policy["where"]
    if policy["changed"]:
        digests = f"{policy['then']} then, {policy['digest']} now"
        yield f"policy: {place}, changed since this pod was created ({digests})"
    else:
        yield f"policy: {place} ({policy['digest']})"
    for each in record["fields"]:
        yield ""
        yield each["path"]
        yield from _entry("by", _by(author, each))
        if "why" in each:
            yield from _entry("why", each["why"])
            if each["today"] is not None:
                yield from _entry("today", each["today"] or "the policy no longer adds this field")
            for name, command in each["commands"].items():
                yield f"  {'change' if name == 'here' else 'for all':8}{command}"
    if record["without"]:
        yield ""
        yield "Without a policy:"
        yield from (f"  {command}" for command in record["without"].values())
    if not record["fields"]:
        yield "No relevant field is set."


def _by(author: str, each: Json) -> str:
    manager = f" (field manager {each['manager']})" if each["manager"] else ""
    if "policy" in each:
        if each["by"] == By.MISSING:
            return (
                f"nobody: {each['policy']} of ML Chassis would add it now, but this pod was created "
                "without it"
            )
        if each["mode"] == Mode.ENFORCE:
            return f"{each['policy']} of ML Chassis"
        return f"nobody: {each['policy']} of ML Chassis would set it, but its mode is {each['mode']}"
    if each["by"] == By.UNRECORDED:
        return f"the author of {author}, or a webhook (its manifest is not recorded){manager}"
    if each["by"] == By.USER:
        return f"the author of {author}{manager}"
    return f"{_BY[By(each['by'])]}{manager}"


def _entry(name: str, value: str) -> list[str]:
    return textwrap.wrap(
        value, width(), initial_indent=f"  {name:8}", subsequent_indent=" " * 10, break_on_hyphens=False
    )
