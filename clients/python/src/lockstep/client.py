"""The client. It has no state: each call opens its own connection and reads the CA and the token."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import grpc

from lockstep import errors
from lockstep.platform.v1 import platform_pb2 as pb
from lockstep.platform.v1.platform_pb2_grpc import PlatformStub

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
# The first and the longest delay between attempts, in seconds.
_DELAYS = (0.1, 5.0)
_LOG = logging.getLogger("lockstep")
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
# A dead connection is detected within 40 s. Connections are not shared, since the next one may reach
# another replica.
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # Time limit for a connection, TLS included (default: 20 s). It leaves a call that reached a dead
    # node time for another attempt.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # No limit, since the server limits the size of a page (default: 4 MiB).
    ("grpc.max_receive_message_length", -1),
]


@dataclass(frozen=True)
class Changed:
    """The group as it is now."""

    group: pb.Group


@dataclass(frozen=True)
class Removed:
    """The group is gone, or Lockstep no longer manages it."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Synced:
    """Every existing group has been reported."""


Event = Changed | Removed | Synced


@dataclass(frozen=True)
class ReplicatedJob:
    """All workers of a replicatedJob."""

    name: str


@dataclass(frozen=True)
class Job:
    """All workers of a child Job."""

    name: str


@dataclass(frozen=True)
class OneWorker:
    """The worker of a Job with this completion index. Without `container`, all workers of its pod."""

    job: str
    completion_index: int
    container: str = ""


Target = ReplicatedJob | Job | OneWorker


class Client:
    """A client of the platform API at `target`.

    Within the cluster, `target` is lockstep-control-plane.lockstep-system.svc:9445. `ca_file` is
    ca.crt of the ConfigMap lockstep-hub-ca. `timeout` is the default deadline of a call in seconds.
    Within its deadline, a call is repeated if no replica answers or the replica does not lead: each
    attempt may reach another one. Calls raise `LockstepError` or a subclass, and `OSError` if a file
    cannot be read. Threads may share a client.
    """

    def __init__(
        self,
        target: str,
        *,
        ca_file: str | os.PathLike[str],
        token_file: str | os.PathLike[str] = TOKEN,
        server_name: str = "lockstep-control-plane",
        timeout: float = 10.0,
    ) -> None:
        self._target = target
        self._ca_file = Path(ca_file)
        self._token_file = Path(token_file)
        self._options = [*_OPTIONS, ("grpc.ssl_target_name_override", server_name)]
        self._timeout = timeout

    def list_groups(
        self, namespace: str = "", *, omit_workers: bool = False, page_size: int = 0, timeout: float | None = None
    ) -> Iterator[pb.Group]:
        """Yields all groups, or those of a namespace, sorted by namespace and name.

        Pages are fetched when they are needed, each within `timeout`.
        """
        request = pb.ListGroupsRequest(namespace=namespace, omit_workers=omit_workers, page_size=page_size)
        while True:
            page = self._call(lambda stub: stub.ListGroups, request, timeout)
            yield from page.groups
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def watch_groups(
        self, namespace: str = "", name: str = "", *, omit_workers: bool = False, timeout: float | None = None
    ) -> Iterator[Event]:
        """Yields every group once, then `Synced`, then changes.

        It ends with the stream, usually by `Unavailable`. Without `timeout` it has no deadline.
        """
        request = pb.WatchGroupsRequest(namespace=namespace, name=name, omit_workers=omit_workers)
        with self._platform() as (stub, metadata):
            for response in stub.WatchGroups(request, timeout=timeout, metadata=metadata):
                match response.WhichOneof("event"):
                    case "changed":
                        yield Changed(response.changed)
                    case "removed":
                        gone = response.removed
                        yield Removed(gone.namespace, gone.name, gone.uid)
                    case "synced":
                        yield Synced()
                    case _:
                        pass  # An event of a later version.

    def follow_groups(
        self, namespace: str = "", name: str = "", *, omit_workers: bool = False, timeout: float | None = None
    ) -> Iterator[Event]:
        """Like `watch_groups`, but opens a new stream after a loss.

        The new stream yields every group again, and before `Synced` a `Removed` for each group that
        has gone meanwhile. If a JobSet was replaced by another one of its name, the `Removed` of the
        old one comes first. Each loss is logged. It raises `Unavailable` only if there is no first
        stream within the client's `timeout`.
        """
        now = time.monotonic()
        end = None if timeout is None else now + timeout
        yield from self._follow(namespace, name, omit_workers, end, now + self._timeout)

    def _follow(
        self, namespace: str, name: str, omit_workers: bool, end: float | None, first_by: float | None
    ) -> Iterator[Event]:
        """Follows until `end`, with a first stream by `first_by`."""
        known: dict[tuple[str, str], Removed] = {}
        delay = _DELAYS[0]
        while True:
            unseen = set(known)
            served = False
            least = 0.0
            try:
                for event in self.watch_groups(namespace, name, omit_workers=omit_workers, timeout=_until(end)):
                    served, first_by, delay = True, None, _DELAYS[0]
                    match event:
                        case Changed(group):
                            place = (group.namespace, group.name)
                            before = known.get(place)
                            known[place] = Removed(group.namespace, group.name, group.uid)
                            unseen.discard(place)
                            if before and before != known[place]:
                                yield before
                        case Removed(namespace=space, name=one):
                            # Reported once, and only if the group was reported before.
                            if known.get((space, one)) != event:
                                continue
                            del known[space, one]
                            unseen.discard((space, one))
                        case Synced():
                            for place in sorted(unseen):
                                yield known.pop(place)
                            unseen.clear()
                    yield event
            except errors.Unavailable as loss:
                least = loss.details.retry_after or 0.0
                if first_by is not None and time.monotonic() + max(delay, least) >= first_by:
                    raise
                _LOG.warning("no watch of %s, trying again: %s", self._target, loss)
            except errors.Unauthenticated as loss:
                # The token was valid when the stream began and has expired since. Its file has the
                # next one.
                if not served:
                    raise
                _LOG.info("the token of a watch of %s has expired, reading it again: %s", self._target, loss)
            _until(end)
            delay = _pause(delay, end, least)

    def restart_group(
        self, namespace: str, name: str, *, token: str = "", timeout: float | None = None
    ) -> pb.RestartGroupResponse:
        """Restarts all workers in place. Returns when the request is durable.

        The restart does not count towards maxRestarts. A call with the token of the latest request
        is the same restart. Without `token`, every call is another restart.
        """
        # The token lets an attempt whose answer was lost be repeated.
        request = pb.RestartGroupRequest(namespace=namespace, name=name, token=token or str(uuid.uuid4()))
        return self._call(lambda stub: stub.RestartGroup, request, timeout)

    def dry_run_restart(
        self, namespace: str, name: str, *, token: str = "", timeout: float | None = None
    ) -> pb.DryRun:
        """What `restart_group` would do now: which workers it would stop, and which not and why.

        It writes nothing, and needs the same right.
        """
        request = pb.DryRunRestartRequest(namespace=namespace, name=name, token=token or str(uuid.uuid4()))
        return self._call(lambda stub: stub.DryRunRestart, request, timeout).dry_run

    def restart_workers(
        self, namespace: str, name: str, only: Target, *, token: str = "", timeout: float | None = None
    ) -> pb.RestartWorkersResponse:
        """Restarts some workers and no others. Returns when the request is durable.

        The restart does not count towards maxRestarts. The workers need lockstep.dev/restart-scope:
        worker, otherwise this raises `FailedPrecondition`. `Group.handled_worker_restart` is the
        token once the request is handled.
        """
        request = pb.RestartWorkersRequest(
            namespace=namespace, name=name, token=token or str(uuid.uuid4()), only=_target(only)
        )
        return self._call(lambda stub: stub.RestartWorkers, request, timeout)

    def dry_run_restart_workers(
        self, namespace: str, name: str, only: Target, *, token: str = "", timeout: float | None = None
    ) -> pb.DryRun:
        """What `restart_workers` would do now. It writes nothing, and needs the same right."""
        request = pb.DryRunRestartWorkersRequest(
            namespace=namespace, name=name, token=token or str(uuid.uuid4()), only=_target(only)
        )
        return self._call(lambda stub: stub.DryRunRestartWorkers, request, timeout).dry_run

    def suspend_group(self, namespace: str, name: str, *, timeout: float | None = None) -> pb.SetSuspendedResponse:
        """Suspends the JobSet, which deletes its pods. Returns when that is durable.

        A suspended JobSet is left as it is.
        """
        return self._set_suspended(namespace, name, True, timeout)

    def resume_group(self, namespace: str, name: str, *, timeout: float | None = None) -> pb.SetSuspendedResponse:
        """Resumes the JobSet. Returns when that is durable.

        A JobSet that is not suspended is left as it is.
        """
        return self._set_suspended(namespace, name, False, timeout)

    def _set_suspended(
        self, namespace: str, name: str, suspended: bool, timeout: float | None
    ) -> pb.SetSuspendedResponse:
        request = pb.SetSuspendedRequest(namespace=namespace, name=name, suspended=suspended)
        return self._call(lambda stub: stub.SetSuspended, request, timeout)

    def list_restarts(self, namespace: str, name: str, *, timeout: float | None = None) -> pb.ListRestartsResponse:
        """The last restarts of a group, at most 32, the newest first.

        They begin when the leader took over the group, at `since_unix_nanos`.
        """
        request = pb.ListRestartsRequest(namespace=namespace, name=name)
        return self._call(lambda stub: stub.ListRestarts, request, timeout)

    def list_nodes(self, *, page_size: int = 0, timeout: float | None = None) -> Iterator[pb.Node]:
        """Yields the nodes whose daemons are connected, sorted by name, with their restart levels.

        It needs the right to list JobSets in all namespaces. Pages are fetched when they are needed,
        each within `timeout`.
        """
        request = pb.ListNodesRequest(page_size=page_size)
        while True:
            page = self._call(lambda stub: stub.ListNodes, request, timeout)
            yield from page.nodes
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def history(self, namespace: str, name: str, *, timeout: float | None = None) -> list[pb.Restart]:
        """The restarts of `list_restarts` as a list, the newest first."""
        return list(self.list_restarts(namespace, name, timeout=timeout).restarts)

    def timeline(
        self, namespace: str, name: str, *, generation: int = 0, timeout: float | None = None
    ) -> pb.Restart | None:
        """The restart that led to `generation`, by default the last one that is done.

        Returns `None` if this leader has seen none.
        """
        for restart in self.history(namespace, name, timeout=timeout):
            if restart.generation == generation or not generation and restart.outcome == pb.RESTART_OUTCOME_DONE:
                return restart
        return None

    def restart_and_wait(self, namespace: str, name: str, *, token: str = "", timeout: float = 60.0) -> pb.Group:
        """Restarts all workers in place, and returns the group when all of them run again.

        It also returns when they have run again and are being restarted for another reason.
        `timeout` covers everything, repetitions included.
        """
        end = time.monotonic() + timeout
        current = self._current(namespace, name, end)
        asked = self.restart_group(namespace, name, token=token, timeout=_until(end))
        # The request that was handled last before this one. It is unknown if a new leader does not
        # list the group yet.
        before = current.handled_request if current and current.uid == asked.uid else None
        shown: list[pb.Group] = []
        try:
            return self._wait(asked, before, namespace, name, end, shown)
        except errors.DeadlineExceeded as late:
            raise errors.make(late.code, _not_yet(namespace, name, timeout, shown[-1] if shown else None)) from late

    def _wait(
        self,
        asked: pb.RestartGroupResponse,
        before: str | None,
        namespace: str,
        name: str,
        end: float,
        shown: list[pb.Group],
    ) -> pb.Group:
        """Waits for the restart that `asked` has requested.

        `before` is the request that was handled last before it. `shown` receives the last state of
        the group.
        """
        first = True
        # The restart attempt at which `_has_ended` was last asked.
        checked_at = -1
        # A leader that has just taken over may not list the group yet. If a second watch does not
        # find it either, it is gone.
        for delay in (1.0, 0.0):
            here = False
            for event in self._follow(namespace, name, False, end, first_by=end):
                match event:
                    case Changed(group) if group.uid == asked.uid:
                        shown[:] = [group]
                        # There was no restart since, so the handled request is an earlier one.
                        if first and (before is None or group.generation <= asked.generation):
                            before = group.handled_request
                        here, first = True, False
                        # A later request replaces this one, which may then never be seen as handled.
                        acted = asked.handled or group.handled_request == asked.token or group.handled_request != before
                        if acted and _is_steady(group):
                            return group
                        # The restart may have ended between two events, and another one have begun.
                        # A group that fails repeatedly would never be seen steady.
                        if acted and group.generation > checked_at:
                            checked_at = group.generation
                            if self._has_ended(asked, namespace, name, end):
                                return group
                    case Removed(uid=asked.uid):
                        break
                    case Synced() if not here:
                        break
            _pause(delay, end)
        raise errors.make(grpc.StatusCode.NOT_FOUND, f"{namespace}/{name} is gone or has ended")

    def _has_ended(self, asked: pb.RestartGroupResponse, namespace: str, name: str, end: float) -> bool:
        """True if all workers have run again since the leader handled `asked` or a later request."""
        try:
            listed = self.list_restarts(namespace, name, timeout=_until(end))
        except errors.DeadlineExceeded:
            raise
        except errors.LockstepError:
            # The caller may not list, or the control plane is older. The watch goes on without this.
            return False
        restarts = [restart for restart in listed.restarts if restart.scope == pb.RESTART_SCOPE_GROUP]
        wanted = [
            restart.generation
            for restart in restarts
            if restart.cause.reason == "ManualRequest" and restart.generation > asked.generation
        ]
        done = [restart.generation for restart in restarts if restart.outcome == pb.RESTART_OUTCOME_DONE]
        return listed.uid == asked.uid and bool(wanted and done) and max(done) >= min(wanted)

    def _current(self, namespace: str, name: str, end: float) -> pb.Group | None:
        """The group as it is now, or `None` if it is not listed."""
        for event in self._follow(namespace, name, True, end, first_by=end):
            match event:
                case Changed(group):
                    return group
                case Synced():
                    break
        return None

    def _call(
        self,
        method: Callable[[PlatformStub], grpc.UnaryUnaryMultiCallable[_Request, _Answer]],
        request: _Request,
        timeout: float | None,
    ) -> _Answer:
        """Makes a call, and repeats it within its deadline. It must be idempotent."""
        end = time.monotonic() + (timeout or self._timeout)
        delay = _DELAYS[0]
        loss: errors.Unavailable | None = None
        while True:
            try:
                with self._platform() as (stub, metadata):
                    return method(stub)(request, timeout=_until(end), metadata=metadata)
            except errors.Unavailable as again:
                loss = again
            except errors.DeadlineExceeded:
                # The reason for the repetition says more.
                if loss:
                    raise loss from None
                raise
            least = loss.details.retry_after or 0.0
            if time.monotonic() + max(delay, least) >= end:
                raise loss
            _LOG.info("no answer from %s, trying again: %s", self._target, loss)
            delay = _pause(delay, least=least)

    @contextlib.contextmanager
    def _platform(self) -> Iterator[tuple[PlatformStub, tuple[tuple[str, str | bytes], ...]]]:
        credentials = grpc.ssl_channel_credentials(self._ca_file.read_bytes())
        token = self._token_file.read_text(encoding="ascii").strip()
        with grpc.secure_channel(self._target, credentials, self._options) as channel:
            try:
                yield PlatformStub(channel), (("authorization", f"Bearer {token}"),)
            except grpc.RpcError as error:
                raise errors.of(error) from error


def _target(only: Target) -> pb.Target:
    match only:
        case ReplicatedJob(name):
            return pb.Target(replicated_job=name)
        case Job(name):
            return pb.Target(job=name)
        case OneWorker(job, index, container):
            return pb.Target(worker=pb.WorkerIdentity(job=job, completion_index=index, container=container))


def _not_yet(namespace: str, name: str, timeout: float, group: pb.Group | None) -> str:
    """The message for a restart that is not done in time, with the last state of the group."""
    state = "the group was not seen"
    if group:
        phase = pb.GroupPhase.Name(group.phase).removeprefix("GROUP_PHASE_")
        state = f"{phase}, {group.workers_up} of {group.workers_expected} workers up at generation {group.generation}"
    return f"{namespace}/{name}: restart requested, but not all workers ran again within {timeout:g} s: {state}"


def _is_steady(group: pb.Group) -> bool:
    """True if all workers run."""
    steady = group.phase == pb.GROUP_PHASE_IN_SYNC and group.released == group.generation
    return steady and group.workers_up == group.workers_expected


def _pause(delay: float, end: float | None = None, least: float = 0.0) -> float:
    """Waits about `delay` seconds, at least `least`, but not past `end`. Returns the next delay."""
    wait = max(least, delay * random.uniform(0.5, 1.0))
    time.sleep(wait if end is None else max(0.0, min(wait, end - time.monotonic())))
    return min(2 * delay, _DELAYS[1])


def _until(end: float | None) -> float | None:
    """Seconds until `end`."""
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise errors.make(grpc.StatusCode.DEADLINE_EXCEEDED, "the time is up")
    return left
