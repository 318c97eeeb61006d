"""The client. It keeps nothing between calls: each opens a connection of its own, and reads CA and token anew."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from lockstep import errors
from lockstep.platform.v1 import platform_pb2 as pb
from lockstep.platform.v1.platform_pb2_grpc import PlatformStub

TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
# Waits of `follow_groups` between attempts, in seconds.
_DELAYS = (0.1, 5.0)
# A dead connection is noticed within 40 s. No connection is shared: the next one may lead to another replica.
_OPTIONS: list[tuple[str, int | str]] = [
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
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


class Client:
    """The platform API of one Lockstep, at `target`: lockstep-control-plane.lockstep-system.svc:9445 within the cluster.

    `ca_file` holds what the ConfigMap lockstep-hub-ca has as ca.crt. `timeout` is the deadline of a call in seconds, where it names no other.
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
        with self._platform() as (stub, metadata):
            while True:
                page = stub.ListGroups(request, timeout=timeout or self._timeout, metadata=metadata)
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
        """As `watch_groups`, and goes on after the loss of a stream: groups come once more, and those that went meanwhile as `Removed` before `Synced`."""
        end = None if timeout is None else time.monotonic() + timeout
        known: dict[tuple[str, str], Removed] = {}
        delay = _DELAYS[0]
        while True:
            unseen = set(known)
            with contextlib.suppress(errors.Unavailable):
                for event in self.watch_groups(namespace, name, omit_workers=omit_workers, timeout=_until(end)):
                    delay = _DELAYS[0]
                    match event:
                        case Changed(group):
                            place = (group.namespace, group.name)
                            known[place] = Removed(group.namespace, group.name, group.uid)
                            unseen.discard(place)
                        case Removed(namespace=space, name=one):
                            known.pop((space, one), None)
                        case Synced():
                            for place in sorted(unseen):
                                yield known.pop(place)
                    yield event
            _until(end)
            time.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2 * delay, _DELAYS[1])

    def restart_group(
        self, namespace: str, name: str, *, token: str = "", timeout: float | None = None
    ) -> pb.RestartGroupResponse:
        """Restarts all workers in place, once per `token`, uncounted. Returns when the request is durable; without a token every call is another one."""
        request = pb.RestartGroupRequest(namespace=namespace, name=name, token=token)
        with self._platform() as (stub, metadata):
            return stub.RestartGroup(request, timeout=timeout or self._timeout, metadata=metadata)

    def restart_and_wait(self, namespace: str, name: str, *, token: str = "", timeout: float = 60.0) -> pb.Group:
        """Restarts all workers in place, and returns the group when they all run again."""
        end = time.monotonic() + timeout
        asked = self.restart_group(namespace, name, token=token, timeout=min(timeout, self._timeout))
        for event in self.follow_groups(namespace, name, timeout=_until(end)):
            match event:
                case Changed(group) if group.uid == asked.uid and _has_restarted(group, asked):
                    return group
                case Removed(uid=asked.uid):
                    break
        raise errors.make(grpc.StatusCode.NOT_FOUND, f"{namespace}/{name} is gone or has ended")

    @contextlib.contextmanager
    def _platform(self) -> Iterator[tuple[PlatformStub, tuple[tuple[str, str | bytes], ...]]]:
        credentials = grpc.ssl_channel_credentials(self._ca_file.read_bytes())
        token = self._token_file.read_text(encoding="ascii").strip()
        with grpc.secure_channel(self._target, credentials, self._options) as channel:
            try:
                yield PlatformStub(channel), (("authorization", f"Bearer {token}"),)
            except grpc.RpcError as error:
                raise errors.of(error) from error


def _has_restarted(group: pb.Group, asked: pb.RestartGroupResponse) -> bool:
    """Whether the request was acted upon, or a later restart came, and all workers run."""
    acted = group.handled_request == asked.token or group.generation > asked.generation
    steady = group.phase == pb.GROUP_PHASE_IN_SYNC and group.released == group.generation
    return acted and steady and group.workers_up == group.workers_expected


def _until(end: float | None) -> float | None:
    """Seconds until `end`."""
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise errors.make(grpc.StatusCode.DEADLINE_EXCEEDED, "the time is over")
    return left
