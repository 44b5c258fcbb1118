"""Who waits for what."""

from __future__ import annotations

from puller.reconcile import Timers, WorkQueue


def test_names_come_by_priority_then_by_name_and_once() -> None:
    queue = WorkQueue({"downloads": 10})
    for priority, name in ((0, "b"), (5, "c"), (0, "a"), (0, "b")):
        queue.push("downloads", priority, name)
    assert [name for _, name in queue.startable()] == ["c", "a", "b"]


def test_names_that_failed_repeatedly_come_last_and_in_turn() -> None:
    queue = WorkQueue({"downloads": 1})
    for name in "cab":
        queue.push("downloads", 9, name, last=True)
    queue.push("downloads", 0, "z")
    assert [name for _, name in queue.startable()] == ["z", "c", "a", "b"]


def test_no_more_than_there_are_slots() -> None:
    queue = WorkQueue({"downloads": 2, "loads": 1})
    for name in "abc":
        queue.push("downloads", 0, name)
    queue.push("loads", 0, "a")
    started = []
    for slot, name in queue.startable():
        queue.take(slot)
        started.append((slot, name))
    assert started == [("downloads", "a"), ("downloads", "b"), ("loads", "a")]
    queue.give_back("downloads")
    assert list(queue.startable()) == [("downloads", "c")]


def test_a_name_may_wait_again_once_it_was_given_out() -> None:
    queue = WorkQueue({"loads": 1})
    queue.push("loads", 0, "a")
    assert list(queue.startable()) == [("loads", "a")]
    queue.push("loads", 0, "a")
    assert list(queue.startable()) == [("loads", "a")]


def test_timers() -> None:
    timers = Timers()
    assert timers.pause(0) == float("inf")
    timers.arm("a", 5)
    timers.arm("a", 5)
    timers.arm("b", 3)
    assert timers.pause(1) == 2
    assert list(timers.due(4)) == ["b"]
    assert list(timers.due(9)) == ["a"]
    timers.arm("a", 5)
    assert list(timers.due(9)) == ["a"], "armed again for the same time, it is due again"


def test_a_timer_that_was_set_again_is_due_only_at_its_new_time() -> None:
    timers = Timers()
    timers.arm("a", 5)
    timers.arm("a", 8)
    assert list(timers.due(6)) == []
    assert list(timers.due(9)) == ["a"]
