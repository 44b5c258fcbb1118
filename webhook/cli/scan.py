"""`chassis scan`: the decision of admission about what already runs in a cluster.

Law: this module decides nothing. `engine.decide` judges each object as if it were created now, with the facts
of the cluster itself. Objects are read page by page and released. Only PolicyReports are written.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import orjson

from policies.core import registry
from policies.core.annotations import ADMISSION, EXEMPT, MODEL_CONFIG, POLICY_LABEL
from policies.core.completing import COMPLETING, named_by
from policies.core.facts import BY_NAME, Facts, WholeObjects
from policies.core.resources import KNOWN, Resource
from policies.core.workloads import Workload
from policies.kube.group_kinds import CLAIM, CONFIG_MAP, JOB, POD, SECRET, SERVICE, GroupKind, kind_of
from policies.kube.json import Json, maps, text
from policies.kube.metadata import controller
from webhook.admission.configuration import Config
from webhook.admission.engine import decide, in_scope
from webhook.cli import connection, decision_flags, pulled_models
from webhook.cli.ask import asked
from webhook.cli.connection import Wait
from webhook.cli.exit_status import DENIED, OK
from webhook.cli.named_policy import policy_files
from webhook.cli.output import policyreport as policy_reports
from webhook.cli.output import servers
from webhook.cli.output.review import Review, Subject
from webhook.cli.output.show import show
from webhook.cli.repair import scan_missed
from webhook.cli.tell import tell
from webhook.config.load import load, rules
from webhook.config.location import CONFIG_MAP as LOCATED
from webhook.errors import UserError
from webhook.kube import crds, paths
from webhook.kube.api import TOO_LARGE, ApiServer
from webhook.kube.caches import ClusterCache, ObservedStarts, Store
from webhook.kube.discovery import Collection as Served
from webhook.kube.discovery import may_list, served
from webhook.kube.errors import ApiError
from webhook.kube.offline import Document

MOST_WHOLE: Final = 2_000
"""Objects that others name, which are kept from page to page."""
AT_ONCE: Final = 16
"""Such objects that are read at once."""

SELECTORS: Final[Mapping[GroupKind, Sequence[str]]] = {
    CONFIG_MAP: (f"{POLICY_LABEL}=true", f"{MODEL_CONFIG}=true"),
}
"""Kinds of which only the objects that one of the label selectors selects are read."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Review the objects of a cluster as if they were created now. No object is changed. Exit status: "
        "0 all would be admitted, 1 something would be denied, 2 bad input or the cluster can't be read."
    )
    connection.add_scope(parser)
    parser.add_argument(
        "--report",
        nargs="?",
        const="",
        choices=("", *(each.group for each in policy_reports.APIS)),
        metavar="GROUP",
        help="write the findings as PolicyReports into the namespaces; GROUP is "
        f"{' or '.join(each.group for each in policy_reports.APIS)}, by default the first that is served",
    )
    parser.add_argument(
        "--missed",
        action="store_true",
        help="list running pods that lack what the policy gives to new ones, or have another policy's "
        "result, and why; exit status 1 if there are any",
    )
    parser.add_argument(
        "--repair",
        action="store_true",
        help="with --missed: restart their Deployments, StatefulSets and DaemonSets one after the other, as "
        "kubectl rollout restart does; asks first",
    )
    parser.add_argument(
        "--view",
        choices=("servers", "models"),
        help="servers: each serving workload with its server, version, health paths, ports, models, what its "
        "probes notice, drain and budget for its start; as text, json or html. models: what the puller of "
        "each running pod reports, asked through the API server's proxy; as text or json",
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="with --view servers: ask a ready pod of each for its version, through the API server's proxy",
    )
    parser.add_argument("--yes", action="store_true", help="with --repair: do not ask")
    decision_flags.add_arguments(parser)
    parser.set_defaults(run=run)


_GOES_WITH: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "--missed": (("text", "json"), ("report", "statistics", "view", "ask", "split_by_namespace")),
    "--view models": (("text", "json"), ("report", "statistics", "ask", "split_by_namespace")),
    "--view servers": (("text", "json", "html"), ("report", "statistics", "split_by_namespace")),
}
"""By what `scan` prints instead of decisions: its output formats, and the flags that do not apply to it."""


def _check(args: argparse.Namespace) -> None:
    """UserError if flags do not go together."""
    chosen = "--missed" if args.missed else f"--view {args.view}"
    outputs, without = _GOES_WITH.get(chosen, ((args.output,), ()))
    if args.output not in outputs:
        raise UserError(f"{chosen} goes with -o {', '.join(outputs[:-1])} or {outputs[-1]}")
    for name in without:
        if getattr(args, name) not in (None, False):
            raise UserError(f"{chosen} does not go with --{name.replace('_', '-')}")
    if (args.repair or args.yes) and not args.missed:
        raise UserError("--repair and --yes go with --missed")
    if args.yes and not args.repair:
        raise UserError("--yes goes with --repair")
    if args.ask and args.view != "servers":
        raise UserError("--ask goes with --view servers")


def run(args: argparse.Namespace) -> int:
    decision_flags.check(args)
    _check(args)
    with connection.connected(args.kubeconfig, args.context) as (api, wait):
        namespace = connection.chosen_namespace(args, api)
        if args.view == "models":
            return _models(args, api, namespace, wait)
        served_reports = None if args.report is None else wait(policy_reports.served(api, args.report))
        policy, where = wait(policy_of(api, args.policy))
        config = policy.with_profile(args.profile) if args.profile else policy
        if args.missed:
            return _missed(args, api, namespace, config, wait)
        quiet = args.unknown_kinds == "ignore" or args.view is not None
        scan: Scan = replace(wait(Scan.prepare(api, namespace, config)), quiet=quiet)
        subject = Subject(scan.source, where, config, scan.cluster, api.now(), scan.not_read)
        reviews = (review for (review,) in scan.reviews(wait))
        if args.view:
            return _servers(args, api, reviews, subject, wait)
        results = None if served_reports is None else policy_reports.Results(api.now())
        tally = show(
            reviews if results is None else results.seeing(reviews),
            args.output,
            subject,
            args.split_by_namespace,
            figures_only=args.statistics,
        )
        if results is not None and served_reports is not None:
            tell(str(wait(policy_reports.write(api, namespace, results, served_reports))))
    return decision_flags.exit_status(tally, args)


def _missed(args: argparse.Namespace, api: ApiServer, namespace: str, config: Config, wait: Wait) -> int:
    cluster, unknown = wait(facts_of(api, namespace))
    if unknown:
        tell(f"not known to the policies, since you may not read them: {', '.join(unknown)}")
    left = scan_missed(
        api, wait, namespace, config, cluster, args.policy, args.output, repair=args.repair, yes=args.yes
    )
    return DENIED if left else OK


def _models(args: argparse.Namespace, api: ApiServer, namespace: str, wait: Wait) -> int:
    found = wait(pulled_models.pulled(api, namespace))
    sys.stdout.writelines((pulled_models.as_json if args.output == "json" else pulled_models.table)(found))
    return OK


def _servers(
    args: argparse.Namespace, api: ApiServer, reviews: Iterable[Review], subject: Subject, wait: Wait
) -> int:
    found = servers.servings(reviews, subject)
    if args.ask:
        found = asked(api, wait, found)
    if args.output == "html":
        sys.stdout.writelines(servers.html(found, subject))
    else:
        sys.stdout.writelines((servers.json if args.output == "json" else servers.text)(found))
    return OK


# --- the policy ------------------------------------------------------------------------------------


async def policy_of(api: ApiServer, where: str | None) -> tuple[Config, str]:
    """The policy that is asked for, or the one installed in the cluster, or the built-in one; and which of
    them it is."""
    found, files = await policy_files(api, where)
    if not found:
        return load({}), "the built-in one"
    spelled = _spelled(found)
    tell(f"the policy is {spelled}")
    return load(files), spelled


def _spelled(where: str) -> str:
    if where.startswith(LOCATED):
        return f"the ConfigMap {where.removeprefix(LOCATED)}"
    return "the one on standard input" if where == "-" else f"the one in {where}"


# --- facts about the cluster -----------------------------------------------------------------------


class Surroundings(ClusterCache, WholeObjects):
    """What rules may ask of a cluster that is scanned, with the objects that the scanned ones name."""

    def __init__(self) -> None:
        super().__init__()
        self.whole: dict[tuple[GroupKind, str, str], Json | None] = {}
        """By kind, namespace and name; None where there is no such object, or it may not be read."""
        self.names: dict[GroupKind, frozenset[tuple[str, str]]] = {}
        """Namespace and name of every object of some kinds."""
        self.only = ""
        """The namespace that was read; empty: all."""

    def named(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        return self.whole.get((kind, namespace, name))

    def lacks(self, kind: GroupKind, namespace: str, name: str) -> bool:
        if self.only not in ("", namespace):
            return False
        if kind in self.names:
            return (namespace, name) not in self.names[kind]
        resource = {SERVICE: Resource.SERVICES, CLAIM: Resource.CLAIMS}.get(kind)
        listing = None if resource is None else self.listing(resource, namespace)
        return listing is not None and listing.by(BY_NAME).one(name) is None


async def facts_of(api: ApiServer, namespace: str) -> tuple[Surroundings, list[str]]:
    """What rules may ask of the cluster, or of one namespace, and the kinds that may not be read."""
    cache = Surroundings()
    forbidden: list[str] = []

    async def read(path: str, query: Mapping[str, str], store: Store | ObservedStarts) -> None:
        store.begin()
        try:
            async for item in _items(api, path, query, namespace):
                store.put(item)
        except ApiError as error:
            if error.status not in (403, 404) and error.reason != TOO_LARGE:
                raise
            store.lost(error)
            if error.status == 403:
                forbidden.append(store.kind)
        else:
            store.commit()

    await asyncio.gather(*(read(path, query, store) for path, query, store in cache.sources))
    cache.only = namespace
    return cache, sorted(forbidden)


async def names_of(api: ApiServer, kind: GroupKind, namespace: str) -> frozenset[tuple[str, str]] | None:
    """Namespace and name of every object of a core kind; None if they may not be listed. The API server
    sends their metadata only."""
    path = paths.collection("v1", kind.resource, namespace)
    found: set[tuple[str, str]] = set()
    try:
        async for page, _ in api.pages(path, {}, consistent=False, headers=_METADATA_ONLY):
            found |= {(text(item, "metadata", "namespace"), text(item, "metadata", "name")) for item in page}
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return frozenset(found)


_METADATA_ONLY: Final = {
    "Accept": "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
}


_OF_CLUSTER: Final = frozenset(known.plural for known in KNOWN if not known.namespaced)
"""Resources that are in no namespace."""


async def _items(api: ApiServer, path: str, query: Mapping[str, str], namespace: str) -> AsyncIterator[Json]:
    resource = path.rpartition("/")[2]
    if namespace and resource == Resource.NAMESPACES.value:
        # A person who may read only one namespace may get it, but not list it.
        one = await api.get(paths.one("v1", resource, namespace))
        if one is None:
            raise UserError(f"there is no namespace {namespace}")
        yield one
        return
    if namespace and resource not in _OF_CLUSTER and "/namespaces/" not in path:
        path = paths.within(path, namespace)
    async for item in api.objects(path, query):
        yield item


# --- the scan --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scan:
    """One pass over the objects of a cluster, or of one namespace, under one policy or several."""

    api: ApiServer
    source: str
    configs: Sequence[Config]
    workloads: Collection[GroupKind]
    cluster: Surroundings
    resources: Sequence[Served]
    naming: Mapping[GroupKind, Workload] = field(default_factory=dict)
    """The kinds whose pods another object completes."""
    completing: Mapping[GroupKind, Served] = field(default_factory=dict)
    """The kinds that complete the pods of others, as they are served."""
    not_read: Sequence[str] = ()
    """What may not be read, in one sentence each."""
    quiet: bool = False
    """Whether unknown kinds are counted only."""

    @classmethod
    async def prepare(cls, api: ApiServer, namespace: str, *configs: Config) -> Scan:
        """Find the readable collections. UserError if none may be read, or there is no such namespace."""
        workloads = dict.fromkeys(kind for config in configs for kind in config.workloads)
        cluster, unknown = await facts_of(api, namespace)
        not_read: list[str] = []
        for kind in (CONFIG_MAP, SECRET):
            names = await names_of(api, kind, namespace)
            if names is None:
                not_read.append(f"a missing {kind.kind} is not reported, since their names cannot be listed")
            else:
                cluster.names[kind] = names
        embedding = await crds.unread(api, {k: v for config in configs for k, v in config.workloads.items()})
        if embedding is None:
            not_read.append(
                "unknown kinds that hold pods are left out, since you may not list CustomResourceDefinitions"
            )
        further = [each.kind for each in embedding or ()]
        found = list(_selected(await served(api, [*kinds_of(workloads), *further]), namespace))
        readable = await asyncio.gather(*(may_list(api, collection) for collection in found))
        resources = [each for each, may in zip(found, readable, strict=True) if may]
        forbidden = {str(each.kind): None for each, may in zip(found, readable, strict=True) if not may}
        place = f"namespace {namespace}" if namespace else "all namespaces"
        if not resources:
            raise UserError(f"you may read nothing that is scanned in {place}")
        if forbidden:
            not_read.append(f"not scanned, since you may not list them in {place}: {', '.join(forbidden)}")
        if unknown:
            not_read.append(f"not known to the rules, since you may not read them: {', '.join(unknown)}")
        for sentence in not_read:
            tell(sentence)
        naming = {
            kind: each
            for config in configs
            for kind, each in config.workloads.items()
            if each.completed_by is not None
        }
        there = any(each.kind in naming for each in resources)
        completing = {each.kind: each for each in await served(api, COMPLETING)} if there else {}
        source = api.context or "cluster"
        scan = cls(api, source, configs, workloads, cluster, resources, naming, completing, not_read)
        if namespace and scan.leaves_alone(namespace):
            tell(f"the policy leaves namespace {namespace} alone")
        return scan

    def reviews(self, wait: Wait) -> Iterator[tuple[Review, ...]]:
        """The decision under each policy about each object that runs and that none of the others made."""
        for obj in self.objects(wait):
            reviews = self._reviews(obj)
            if reviews:
                yield reviews

    def objects(self, wait: Wait) -> Iterator[Json]:
        """Each object that runs, page by page."""
        pages = self._pages()
        while (page := wait(_next(pages))) is not None:
            yield from page

    def leaves_alone(self, namespace: str) -> bool:
        """Whether admission does not look at a namespace."""
        covered = any(config.webhook.namespaces.covers(namespace) for config in self.configs)
        return not covered or self._disabled(namespace)

    def _disabled(self, namespace: str) -> bool:
        labels = Facts(namespace, self.cluster).namespace_labels() or {}
        return labels.get(ADMISSION) == "disabled"

    async def _pages(self) -> AsyncIterator[list[Json]]:
        for listed in self.resources:
            async for items, _ in self.api.pages(listed.path, listed.query, consistent=False):
                # The items of a list need not carry their kind.
                page = [_with_kind(item, listed) for item in items]
                await self.fetch(page)
                yield page

    async def fetch(self, page: Iterable[Json]) -> None:
        """Read the objects that complete the pods of those on a page."""
        whole = self.cluster.whole
        if len(whole) > MOST_WHOLE:
            whole.clear()
        wanted = [
            (kind, text(obj, "metadata", "namespace") if namespaced else "", named.name)
            for obj in page
            if (workload := self.naming.get(kind_of(obj))) is not None
            if (named := named_by(obj, workload)) is not None
            for kind, namespaced in named.candidates
        ]
        missing = list(dict.fromkeys(key for key in wanted if key not in whole))
        for start in range(0, len(missing), AT_ONCE):
            batch = missing[start : start + AT_ONCE]
            found = await asyncio.gather(*(self._one(*key) for key in batch))
            whole.update(zip(batch, found, strict=True))

    async def _one(self, kind: GroupKind, namespace: str, name: str) -> Json | None:
        """An object, by a list of one: who may scan may list, and need not be able to get."""
        listed = self.completing.get(kind)
        if listed is None:
            return None
        collection = listed.inside(namespace) if namespace else listed
        try:
            answer = await self.api.get(collection.path, {"fieldSelector": f"metadata.name={name}"})
        except ApiError as error:
            if error.status in (400, 403):
                return None
            raise
        items = (each for each in maps(answer or {}, "items") if text(each, "metadata", "name") == name)
        return next((_with_kind(item, listed) for item in items), None)

    def _reviews(self, obj: Json) -> tuple[Review, ...]:
        exempted_at = _written_at(obj, EXEMPT)
        obj["metadata"].pop("managedFields", None)  # what kubectl hides, too
        document = Document(self.source, None, obj, exempted_at=exempted_at)
        # As in admission, an object that is in no namespace has an empty one.
        request = replace(document.request(), namespace=document.namespace)
        if self._disabled(document.namespace) or not any(in_scope(request, each) for each in self.configs):
            return ()
        if _finished(obj) or self._judged_at_owner(obj):
            return ()
        return tuple(
            Review(document, decide(request, each, self.cluster), request, self.quiet)
            for each in self.configs
        )

    def _judged_at_owner(self, obj: Json) -> bool:
        """Whether the object is made from a pod template that this scan judges where it is written."""
        owner = controller(obj)
        if owner is None or kind_of(obj) not in (POD, *self.workloads):
            return False
        kind = kind_of(owner)
        return all(
            kind in config.workloads and config.workloads[kind].whole for config in self.configs
        ) and any(each.kind == kind for each in self.resources)


def _with_kind(item: Json, listed: Served) -> Json:
    return {"apiVersion": listed.api_version, "kind": listed.kind.kind, **item}


def _written_at(obj: Json, annotation: str) -> str:
    """When a field manager of an annotation, of the object or its pod template, last changed its fields."""
    key = f'"f:{annotation}"'.encode()
    managed = maps(obj, "metadata", "managedFields")
    return max((text(each, "time") for each in managed if key in orjson.dumps(each)), default="")


async def _next(pages: AsyncIterator[list[Json]]) -> list[Json] | None:
    return await anext(pages, None)


def kinds_of(workloads: Iterable[GroupKind]) -> list[GroupKind]:
    """Every kind that a policy or a rule looks at."""
    by_policies = (kind for policy in registry.mutators().values() for kind in policy.kinds)
    by_rules = (kind for rule in rules().values() for kind in rule.kinds or ())
    return list(dict.fromkeys((*workloads, *by_policies, *by_rules)))


def _selected(collections: Sequence[Served], namespace: str) -> Iterator[Served]:
    """The collections to read: of the namespace, or of all, and of some kinds only labelled objects."""
    for collection in collections:
        if namespace and not collection.namespaced:
            continue
        inside = collection.inside(namespace) if namespace else collection
        selectors = SELECTORS.get(collection.kind)
        yield from [inside.labelled(each) for each in selectors] if selectors else [inside]


def _finished(obj: Json) -> bool:
    """Whether it is a Pod or Job that has ended for good."""
    if kind_of(obj) == POD:
        return text(obj, "status", "phase") in ("Succeeded", "Failed")
    return kind_of(obj) == JOB and any(
        each.get("type") in ("Complete", "Failed") and each.get("status") == "True"
        for each in maps(obj, "status", "conditions")
    )
