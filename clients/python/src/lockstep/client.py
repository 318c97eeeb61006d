"""The client. It keeps nothing between calls: each opens a connection of its own, and reads CA and token anew."""

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
# The first wait between attempts, and the longest, in seconds.
_DELAYS = (0.1, 5.0)
_LOG = logging.getLogger("lockstep")
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
# A dead connection is noticed within 40 s. No connection is shared: the next one may lead to another replica.
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    # How long a connection may take, TLS included; 20 s by default. A call that waits for a dead node's is tried again within its deadline.
    ("grpc.min_reconnect_backoff_ms", 2_000),
    # The server says how large a page may be; 4 MiB by default.
    ("grpc.max_receive_message_length", -1),
]


@dataclass(frozen=True)
class Changed:
    """The group as it is now."""

    group: pb.Group


@dataclass(frozen=True)
class Removed:
    """The group is gone, or Lockstep does not look after it any more."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True)
class Synced:
    """Every group that there is has been seen."""


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
    """The worker of a Job with this completion index. Without `container`: every worker of its pod."""

    job: str
    completion_index: int
    container: str = ""


Target = ReplicatedJob | Job | OneWorker


class Client:
    """The platform API of one Lockstep, at `target`: lockstep-control-plane.lockstep-system.svc:9445 within the cluster.

    `ca_file` holds what the ConfigMap lockstep-hub-ca has as ca.crt. `timeout` is the deadline of a call in seconds, where it names no other.
    Within it a call is tried again while nobody answers, or a replica that does not lead: each attempt may lead to another one.
    Calls raise `LockstepError` or a class of it, and `OSError` where a file cannot be read. Threads may share a client.
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
        """All groups, or those of a namespace, by namespace and name. Pages are fetched as they are needed, each within `timeout`."""
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
        """Every group once, then `Synced`, then what changes. Ends with the stream, most often by `Unavailable`; without `timeout` it has no deadline."""
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
                        pass  # Of a later version.

    def follow_groups(
        self, namespace: str = "", name: str = "", *, omit_workers: bool = False, timeout: float | None = None
    ) -> Iterator[Event]:
        """As `watch_groups`, and goes on after the loss of a stream: groups come once more, and those that went meanwhile as `Removed` before `Synced`.

        A JobSet that took the place of another one of its name comes after the `Removed` of that one. Each loss is logged.
        It goes on for ever, but for the first stream: without one within the client's `timeout` it raises `Unavailable`.
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
                            # Each is told of once, and those that were never seen not at all.
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
                # The token was good when the stream began. It has run out since, and its file has the next one.
                if not served:
                    raise
                _LOG.info("the token of a watch of %s has run out, reading it anew: %s", self._target, loss)
            _until(end)
            delay = _pause(delay, end, least)

    def restart_group(
        self, namespace: str, name: str, *, token: str = "", timeout: float | None = None
    ) -> pb.RestartGroupResponse:
        """Restarts all workers in place, uncounted. Returns when the request is durable.

        A repeated `token` is the same restart as long as no other request came in between. Without one every call is another restart.
        """
        # Named here, so that an attempt whose answer was lost may be repeated.
        request = pb.RestartGroupRequest(namespace=namespace, name=name, token=token or str(uuid.uuid4()))
        return self._call(lambda stub: stub.RestartGroup, request, timeout)

    def dry_run_restart(
        self, namespace: str, name: str, *, token: str = "", timeout: float | None = None
    ) -> pb.DryRun:
        """What `restart_group` would do now: whom it would stop, and whom it would leave alone and why. Nothing is written; it takes the same right."""
        request = pb.DryRunRestartRequest(namespace=namespace, name=name, token=token or str(uuid.uuid4()))
        return self._call(lambda stub: stub.DryRunRestart, request, timeout).dry_run

    def restart_workers(
        self, namespace: str, name: str, only: Target, *, token: str = "", timeout: float | None = None
    ) -> pb.RestartWorkersResponse:
        """Restarts some workers alone, uncounted, and touches nobody else. Returns when the request is durable.

        They must be such as are restarted alone when they fail (lockstep.dev/restart-scope: worker), else it raises `FailedPrecondition`.
        `Group.handled_worker_restart` is the token once it has been acted upon.
        """
        request = pb.RestartWorkersRequest(
            namespace=namespace, name=name, token=token or str(uuid.uuid4()), only=_target(only)
        )
        return self._call(lambda stub: stub.RestartWorkers, request, timeout)

    def dry_run_restart_workers(
        self, namespace: str, name: str, only: Target, *, token: str = "", timeout: float | None = None
    ) -> pb.DryRun:
        """What `restart_workers` would do now. Nothing is written; it takes the same right."""
        request = pb.DryRunRestartWorkersRequest(
            namespace=namespace, name=name, token=token or str(uuid.uuid4()), only=_target(only)
        )
        return self._call(lambda stub: stub.DryRunRestartWorkers, request, timeout).dry_run

    def suspend_group(self, namespace: str, name: str, *, timeout: float | None = None) -> pb.SetSuspendedResponse:
        """Suspends the JobSet, which takes its pods away. Returns when that is durable; one that is suspended already is left as it is."""
        return self._set_suspended(namespace, name, True, timeout)

    def resume_group(self, namespace: str, name: str, *, timeout: float | None = None) -> pb.SetSuspendedResponse:
        """Resumes the JobSet. Returns when that is durable; one that is not suspended is left as it is."""
        return self._set_suspended(namespace, name, False, timeout)

    def _set_suspended(
        self, namespace: str, name: str, suspended: bool, timeout: float | None
    ) -> pb.SetSuspendedResponse:
        request = pb.SetSuspendedRequest(namespace=namespace, name=name, suspended=suspended)
        return self._call(lambda stub: stub.SetSuspended, request, timeout)

    def list_restarts(self, namespace: str, name: str, *, timeout: float | None = None) -> pb.ListRestartsResponse:
        """The last restarts of a group, 32 at most, the newest first: those since the leader took the group over, at `since_unix_nanos`."""
        request = pb.ListRestartsRequest(namespace=namespace, name=name)
        return self._call(lambda stub: stub.ListRestarts, request, timeout)

    def list_nodes(self, *, page_size: int = 0, timeout: float | None = None) -> Iterator[pb.Node]:
        """The nodes whose daemon is connected, by name, and what restarts in place there; with the right to list JobSets in all namespaces.

        Pages are fetched as they are needed, each within `timeout`.
        """
        request = pb.ListNodesRequest(page_size=page_size)
        while True:
            page = self._call(lambda stub: stub.ListNodes, request, timeout)
            yield from page.nodes
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def history(self, namespace: str, name: str, *, timeout: float | None = None) -> list[pb.Restart]:
        """The last restarts of a group, the newest first, as `list_restarts` has them."""
        return list(self.list_restarts(namespace, name, timeout=timeout).restarts)

    def timeline(
        self, namespace: str, name: str, *, generation: int = 0, timeout: float | None = None
    ) -> pb.Restart | None:
        """The restart that led to `generation`, or the last one that is done, with its phases; `None` where this leader has seen none."""
        for restart in self.history(namespace, name, timeout=timeout):
            if restart.generation == generation or not generation and restart.outcome == pb.RESTART_OUTCOME_DONE:
                return restart
        return None

    def restart_and_wait(self, namespace: str, name: str, *, token: str = "", timeout: float = 60.0) -> pb.Group:
        """Restarts all workers in place, and returns the group when they all run again, or when they have and are being restarted for something else.

        `timeout` is for all of it, with its repetitions.
        """
        end = time.monotonic() + timeout
        looked = self._look(namespace, name, end)
        asked = self.restart_group(namespace, name, token=token, timeout=_until(end))
        # The request that was handled last before this one. Nobody knows where a new leader did not show the group yet.
        before = looked.handled_request if looked and looked.uid == asked.uid else None
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
        """Waits for the restart that was `asked` for, `before` which another was handled last. `shown` has the group as it was seen last."""
        first = True
        # The restart attempt at which it was asked whether the restart has ended already.
        looked_at = -1
        # A leader that has only just taken over may not show it yet: it is gone where a second look does not find it either.
        for delay in (1.0, 0.0):
            here = False
            for event in self._follow(namespace, name, False, end, first_by=end):
                match event:
                    case Changed(group) if group.uid == asked.uid:
                        shown[:] = [group]
                        # Without a restart since, what is handled by now was handled before.
                        if first and (before is None or group.generation <= asked.generation):
                            before = group.handled_request
                        here, first = True, False
                        # Another request that came later stands for this one, which may never be seen then.
                        acted = asked.handled or group.handled_request == asked.token or group.handled_request != before
                        if acted and _is_steady(group):
                            return group
                        # It may have ended between two looks, and the next one have begun: in a group that fails again and again nobody
                        # would ever see it steady.
                        if acted and group.generation > looked_at:
                            looked_at = group.generation
                            if self._has_ended(asked, namespace, name, end):
                                return group
                    case Removed(uid=asked.uid):
                        break
                    case Synced() if not here:
                        break
            _pause(delay, end)
        raise errors.make(grpc.StatusCode.NOT_FOUND, f"{namespace}/{name} is gone or has ended")

    def _has_ended(self, asked: pb.RestartGroupResponse, namespace: str, name: str, end: float) -> bool:
        """Whether the leader has seen all workers run again since it acted upon a request that came after `asked`, or was that one."""
        try:
            told = self.list_restarts(namespace, name, timeout=_until(end))
        except errors.DeadlineExceeded:
            raise
        except errors.LockstepError:
            return False  # Who may not list, or asks an older control plane: the watch goes on, and says the rest.
        restarts = [restart for restart in told.restarts if restart.scope == pb.RESTART_SCOPE_GROUP]
        wanted = [
            restart.generation
            for restart in restarts
            if restart.cause.reason == "ManualRequest" and restart.generation > asked.generation
        ]
        done = [restart.generation for restart in restarts if restart.outcome == pb.RESTART_OUTCOME_DONE]
        return told.uid == asked.uid and bool(wanted and done) and max(done) >= min(wanted)

    def _look(self, namespace: str, name: str, end: float) -> pb.Group | None:
        """The group as it is now, if it is shown."""
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
        """A call that may be repeated."""
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
                # Why it took so long says more.
                if loss:
                    raise loss from None
                raise
            least = loss.details.retry_after or 0.0
            if time.monotonic() + max(delay, least) >= end:
                raise loss
            _LOG.info("no answer of %s, trying again: %s", self._target, loss)
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
    """Why a restart that was asked for is not done: where the group stood last."""
    far = "nothing was seen of it"
    if group:
        phase = pb.GroupPhase.Name(group.phase).removeprefix("GROUP_PHASE_")
        far = f"{phase}, {group.workers_up} of {group.workers_expected} workers up at generation {group.generation}"
    return f"{namespace}/{name}: asked to restart, and not all workers run again within {timeout:g} s: {far}"


def _is_steady(group: pb.Group) -> bool:
    """Whether all workers run."""
    steady = group.phase == pb.GROUP_PHASE_IN_SYNC and group.released == group.generation
    return steady and group.workers_up == group.workers_expected


def _pause(delay: float, end: float | None = None, least: float = 0.0) -> float:
    """Waits for about `delay` seconds, but `least` at least, not past `end`, and returns how long the next one should be."""
    wait = max(least, delay * random.uniform(0.5, 1.0))
    time.sleep(wait if end is None else max(0.0, min(wait, end - time.monotonic())))
    return min(2 * delay, _DELAYS[1])


def _until(end: float | None) -> float | None:
    """Seconds until `end`."""
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise errors.make(grpc.StatusCode.DEADLINE_EXCEEDED, "the time is over")
    return left
