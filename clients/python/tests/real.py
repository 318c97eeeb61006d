"""Uses this package against a real control plane: lists, watches, restarts, and reads refusals.

    python real.py HOST:PORT --ca FILE --token FILE --reader FILE --namespace NAME

The namespace has one group, `js`, whose workers run. The token may list, watch and restart it, and
the reader's token may only list and watch it.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import queue
import threading

import lockstep
from lockstep import Changed, Client, Event, Group, GroupPhase, Synced


def is_steady(group: Group) -> bool:
    in_sync = group.phase == GroupPhase.GROUP_PHASE_IN_SYNC and group.released == group.generation
    return in_sync and group.workers_up == group.workers_expected > 0


class Watch:
    """The events of a watch, which runs in its own thread."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._seen: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._events = client.follow_groups(namespace)
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for event in self._events:
            self._seen.put(event)

    def next(self) -> Event:
        return self._seen.get(timeout=60)


def refusals(client: Client, namespace: str, args: argparse.Namespace) -> None:
    """Each refusal has a reason for programs."""

    def refused(kind: type[lockstep.LockstepError], reason: str, by: Client, name: str) -> lockstep.LockstepError:
        try:
            by.restart_group(namespace, name)
        except kind as error:
            assert error.reason == reason, (error, error.reason)
            return error
        raise AssertionError(f"not refused: {reason}")

    missing = refused(lockstep.NotFound, "JOBSET_NOT_FOUND", client, "missing")
    assert missing.details.metadata["jobset"] == "missing", missing.details
    bad = refused(lockstep.InvalidArgument, "INVALID_FIELD", client, "No Name")
    assert [one.field for one in bad.details.fields] == ["name"], bad.details
    reader = Client(args.target, ca_file=args.ca, token_file=args.reader)
    denied = refused(lockstep.PermissionDenied, "ACCESS_DENIED", reader, "js")
    assert denied.details.metadata["verb"] == "patch", denied.details
    guessed = pathlib.Path(args.reader).with_name("guessed")
    guessed.write_text("guessed", encoding="ascii")
    unknown = Client(args.target, ca_file=args.ca, token_file=guessed)
    refused(lockstep.Unauthenticated, "TOKEN_UNKNOWN", unknown, "js")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    for name in ("--ca", "--token", "--reader", "--namespace"):
        parser.add_argument(name, required=True)
    args = parser.parse_args()
    client = Client(args.target, ca_file=args.ca, token_file=args.token)
    namespace: str = args.namespace

    (listed,) = client.list_groups(namespace)
    assert (listed.namespace, listed.name) == (namespace, "js") and is_steady(listed), listed
    watch = Watch(client, namespace)
    before = list(itertools.takewhile(lambda event: not isinstance(event, Synced), iter(watch.next, None)))
    assert [event.group.uid for event in before if isinstance(event, Changed)] == [listed.uid], before

    tried = client.dry_run_restart(namespace, "js")
    assert len(tried.stopped) == listed.workers_expected, tried
    after = client.restart_and_wait(namespace, "js", timeout=60)
    # All workers run again, but the list may be slightly older.
    assert after.generation == listed.generation + 1, after
    assert after.last_cause.reason == "ManualRequest" and after.restarts == listed.restarts, after
    # The watch from before the restart reaches the same state and never goes back.
    seen = listed.generation
    while True:
        event = watch.next()
        assert isinstance(event, Changed) and event.group.uid == listed.uid, event
        assert event.group.generation >= seen, event
        seen = event.group.generation
        if seen == after.generation and is_steady(event.group):
            up = event.group.workers_up
            break
    last = client.timeline(namespace, "js")
    assert last and last.generation == after.generation and last.level == "Process", last
    assert {phase.name for phase in last.phases} >= {"stop", "run"}, last

    refusals(client, namespace, args)
    print(f"restarted {up} workers at generation {after.generation}")


if __name__ == "__main__":
    main()
