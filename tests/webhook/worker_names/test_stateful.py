"""Random schedules, longer and wider than an exhaustive search allows.

Many requests at once, pods that linger as terminating, scaling up and down, names in `workersToDelete`,
requests that are lost, a clock that runs, multi-host replicas whose hosts come one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from policies.worker_names.worker_names import RefusalReason, Refused
from policies.worker_names.workers import HOST_INDEX, REPLICA_NAME
from tests.webhook.worker_names.world import LIFETIME, SETTINGS, WORKER, Request, World, create, real

PICK = st.integers(min_value=0, max_value=10**6)


@dataclass
class Create:
    """A request with the condition that must hold when it is answered."""

    request: Request
    replica: str = ""
    host: int = 0
    most_wanted: int = 0
    to_delete: frozenset[str] = frozenset()
    """Names that were in `workersToDelete` all the time since the request began."""
    siblings: set[str] = field(default_factory=set)
    """Live hosts of its replica that have lived all the time since the request began."""


class Schedules(RuleBasedStateMachine):
    """Pods that are replicas by themselves."""

    hosts = 1

    @initialize(
        replicas=st.integers(1, 3),
        remembers=st.booleans(),
    )
    def start(self, replicas: int, remembers: bool) -> None:
        hosts = self.hosts
        self.world = World(replicas * hosts, hosts, remembers=remembers)
        self.creates: list[Create] = []
        self.names: list[str] = []
        self.most_wanted: dict[str, int] = {}

    # --- the operator ------------------------------------------------------------------------------------

    @rule(steps=st.integers(0, 5))
    def ask(self, steps: int) -> None:
        """One more pod, or the first host of one more replica, needed or not; it gets so far at once."""
        self._begin(f"replica-{len(self.most_wanted)}" if self.hosts > 1 else "", 0)
        self.go_on(-1, steps)

    def _begin(self, replica: str, host: int) -> None:
        self.most_wanted.setdefault(replica, self.world.desired)
        labels = {REPLICA_NAME: replica, HOST_INDEX: str(host)} if replica else {}
        request = Request(self.world, real, replace(WORKER, replica=replica, host=host), SETTINGS, labels)
        most = self.most_wanted[replica] if host else self.world.desired
        alive = {
            pod.name
            for pod in self.world.pods.values()
            if replica and pod.labels[REPLICA_NAME] == replica and not pod.terminating
        }
        self.creates.append(Create(request, replica, host, most, self.world.to_delete, alive))

    # --- the API server ----------------------------------------------------------------------------------

    def _waiting(self) -> list[Create]:
        return [it for it in self.creates if not it.request.done]

    @precondition(lambda self: self._waiting())
    @rule(pick=PICK, steps=st.integers(1, 5))
    def go_on(self, pick: int, steps: int) -> None:
        it = self._waiting()[pick % len(self._waiting())]
        while steps and not it.request.done:
            self._advance(it)
            steps -= 1

    def _advance(self, it: Create) -> None:
        had = it.request.given
        it.request.advance()
        if it.request.given and not had:
            assert it.request.given not in it.to_delete, "a name in workersToDelete was given"
            if not it.host:
                self.names.append(it.request.given)
        if it.request.outcome == "landed":
            assert self.world.live <= it.most_wanted, "more live than are wanted"
        if it.request.outcome == "taken":
            assert it.host, "a name that exists was given"
        if it.request.outcome == "refused":
            assert not it.siblings, "a later host of a live replica was refused"

    @rule()
    def tick(self) -> None:
        """No request of the API server lives as long as a promise."""
        oldest = min((it.request.began for it in self._waiting()), default=self.world.clock)
        if self.world.clock + 1 - oldest < LIFETIME:
            self.world.clock += 1

    # --- everybody else ----------------------------------------------------------------------------------

    @rule(
        what=st.sampled_from(["delete", "delete", "linger", "lose", "more", "fewer", "order"]),
        pick=PICK,
    )
    def disturb(self, what: str, pick: int) -> None:
        match what:
            case "delete" | "linger":
                self._delete(pick, lingers=what == "linger")
            case "lose" if self._waiting():
                # The client or the API server goes away in the middle of a request.
                self._waiting()[pick % len(self._waiting())].request.drop()
            case "more" | "fewer":
                self._scale(1 if what == "more" else -1)
            case "order" if self.names:
                self._order(frozenset({self.names[pick % len(self.names)]}))

    def _delete(self, pick: int, *, lingers: bool) -> None:
        if not self.world.pods:
            return
        name = sorted(self.world.pods)[pick % len(self.world.pods)]
        if lingers and not self.world.pods[name].terminating:
            self.world.pods[name].terminating = True
            self.world.version += 1
        else:
            self.world.remove(name)
        for it in self.creates:
            it.siblings.discard(name)

    def _scale(self, more: int) -> None:
        self.world.desired = min(3, max(0, self.world.desired // self.hosts + more)) * self.hosts
        for it in self._waiting():
            it.most_wanted = max(it.most_wanted, self.world.desired)
        for replica in self.most_wanted:
            self.most_wanted[replica] = max(self.most_wanted[replica], self.world.desired)

    def _order(self, names: frozenset[str]) -> None:
        """`workersToDelete` has names that were given before."""
        self.world.to_delete = names
        for it in self._waiting():
            it.to_delete &= self.world.to_delete

    # --- the conditions that must hold -------------------------------------------------------------------

    @invariant()
    def no_name_is_given_twice(self) -> None:
        names = getattr(self, "names", [])
        assert len(set(names)) == len(names)

    def teardown(self) -> None:
        """When all is quiet, exactly the wanted pods are created at the latest one lifetime later."""
        if not hasattr(self, "world"):
            return
        for it in self._waiting():
            it.request.drop()
        for name in [name for name, pod in self.world.pods.items() if pod.terminating]:
            self.world.remove(name)
        self.world.to_delete = frozenset()
        self.world.clock += LIFETIME
        if self.hosts > 1:
            return
        for _ in range(self.world.desired - self.world.live):
            assert create(self.world, settings=SETTINGS).outcome == "landed"
        last = create(self.world, settings=SETTINGS)
        assert isinstance(last.answer, Refused)
        assert last.answer.reason is RefusalReason.EXISTS


class MultiHostSchedules(Schedules):
    """Replicas of several hosts, which KubeRay asks for one after the other."""

    hosts = 2

    @rule(pick=PICK, steps=st.integers(0, 5))
    def ask_for_the_next_host(self, pick: int, steps: int) -> None:
        """When the host before it has been created; sometimes twice."""
        there = [
            pod
            for pod in self.world.pods.values()
            if not pod.terminating and int(pod.labels[HOST_INDEX]) + 1 < self.hosts
        ]
        if there:
            pod = there[pick % len(there)]
            self._begin(pod.labels[REPLICA_NAME], int(pod.labels[HOST_INDEX]) + 1)
            self.go_on(-1, steps)


SETTINGS_OF_THE_SEARCH = hypothesis_settings(max_examples=100, stateful_step_count=50)
TestSchedules = Schedules.TestCase
TestSchedules.settings = SETTINGS_OF_THE_SEARCH
TestMultiHostSchedules = MultiHostSchedules.TestCase
TestMultiHostSchedules.settings = SETTINGS_OF_THE_SEARCH
