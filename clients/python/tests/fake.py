"""A fake platform API for tests: TLS, bearer tokens, and scripted answers."""

from __future__ import annotations

import contextlib
import pathlib
import tempfile
import threading
import unittest
from collections import deque
from collections.abc import Iterator
from concurrent import futures
from typing import NoReturn

import grpc
import trustme
from google.protobuf import any_pb2, message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from lockstep import Client
from lockstep.platform.v1 import platform_pb2 as pb
from lockstep.platform.v1 import platform_pb2_grpc

Request = (
    pb.ListGroupsRequest
    | pb.WatchGroupsRequest
    | pb.RestartGroupRequest
    | pb.DryRunRestartRequest
    | pb.RestartWorkersRequest
    | pb.DryRunRestartWorkersRequest
    | pb.SetSuspendedRequest
    | pb.ListRestartsRequest
    | pb.ListNodesRequest
)
# A step of a watch: send an event, or end with a code.
Step = pb.WatchGroupsResponse | grpc.StatusCode


def group(name: str, generation: int = 0, **fields: object) -> pb.Group:
    """A group with two running workers."""
    made = pb.Group(namespace="team", name=name, uid=f"uid-{name}", generation=generation, released=generation)
    made.MergeFrom(pb.Group(phase=pb.GROUP_PHASE_IN_SYNC, workers_expected=2, workers_up=2))
    made.MergeFrom(pb.Group(**fields))  # type: ignore[arg-type]
    return made


def changed(of: pb.Group) -> pb.WatchGroupsResponse:
    return pb.WatchGroupsResponse(changed=of)


def removed(name: str, uid: str = "") -> pb.WatchGroupsResponse:
    return pb.WatchGroupsResponse(removed=pb.GroupKey(namespace="team", name=name, uid=uid or f"uid-{name}"))


SYNCED = pb.WatchGroupsResponse(synced=pb.Synced())


def refuse(
    context: grpc.ServicerContext, code: grpc.StatusCode, text: str, reason: str, *more: message.Message
) -> NoReturn:
    """Ends a call with the details that the control plane sends."""
    info = error_details_pb2.ErrorInfo(domain="lockstep.dev", reason=reason)
    info.metadata.update({"namespace": "team", "jobset": "js"})
    number, _ = code.value
    status = status_pb2.Status(code=number, message=text)
    for detail in (info, *more):
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
    context.abort(code, text)


class Platform(platform_pb2_grpc.PlatformServicer):
    """Accepts the tokens `reader`, which may read everything, and `writer`, which may restart too."""

    def __init__(self) -> None:
        self.groups: list[pb.Group] = []
        self._steps: deque[Step] = deque()
        self._turn = threading.Condition()
        self.requests: list[Request] = []
        self.suspended = False
        # The restarts that the leader has seen, if a test sets them.
        self.restarts: list[pb.Restart] | None = None
        # How many calls, watches aside, reach a replica that does not lead.
        self.following = 0
        # The delay that it asks for.
        self.retry_after_ms = 0
        # The tokens of the callers, in order.
        self.bearers: list[str | bytes | None] = []
        self.silent = threading.Event()
        self.ended = threading.Event()

    def play(self, *steps: Step) -> None:
        """Scripts the next steps of watches, in order."""
        with self._turn:
            self._steps.extend(steps)
            self._turn.notify_all()

    def _check(self, context: grpc.ServicerContext, writes: bool = False) -> None:
        token = dict(context.invocation_metadata()).get("authorization")
        self.bearers.append(token)
        if token not in ("Bearer reader", "Bearer writer"):
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not known")
        if writes and token != "Bearer writer":
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "reader may not patch jobsets js in namespace team")

    def _lead(self, context: grpc.ServicerContext) -> None:
        if self.following:
            self.following -= 1
            again = error_details_pb2.RetryInfo()
            again.retry_delay.FromMilliseconds(self.retry_after_ms)
            text = "this replica of the control plane does not lead"
            refuse(context, grpc.StatusCode.UNAVAILABLE, text, "NOT_LEADING", again)

    def ListGroups(self, request: pb.ListGroupsRequest, context: grpc.ServicerContext) -> pb.ListGroupsResponse:
        self._check(context)
        self.requests.append(request)
        self._lead(context)
        if self.silent.is_set():
            self._wait(context)
        first = int(request.page_token or 0)
        last = first + (request.page_size or 100)
        more = str(last) if last < len(self.groups) else ""
        return pb.ListGroupsResponse(groups=self.groups[first:last], next_page_token=more)

    def WatchGroups(
        self, request: pb.WatchGroupsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.WatchGroupsResponse]:
        self._check(context)
        self.requests.append(request)
        context.add_callback(self._leave)
        while (step := self._next(context)) is not None:
            if isinstance(step, grpc.StatusCode):
                context.abort(step, "this replica of the control plane is shutting down")
            yield step

    def RestartGroup(self, request: pb.RestartGroupRequest, context: grpc.ServicerContext) -> pb.RestartGroupResponse:
        self._check(context, writes=True)
        self.requests.append(request)
        self._lead(context)
        if request.name != "js":
            context.abort(grpc.StatusCode.NOT_FOUND, f"name: there is no JobSet {request.name} in namespace team")
        return pb.RestartGroupResponse(token=request.token, uid="uid-js", generation=3)

    def DryRunRestart(
        self, request: pb.DryRunRestartRequest, context: grpc.ServicerContext
    ) -> pb.DryRunRestartResponse:
        self._check(context, writes=True)
        self.requests.append(request)
        self._lead(context)
        if request.name != "js":
            context.abort(grpc.StatusCode.NOT_FOUND, f"name: there is no JobSet {request.name} in namespace team")
        stopped = pb.Worker(pod="js-0", phase=pb.WORKER_PHASE_RUNNING)
        left = pb.LeftAlone(worker=pb.Worker(pod="js-1"), reason=pb.LEFT_ALONE_REASON_DONE)
        tried = pb.DryRun(effect=pb.RESTART_EFFECT_IN_PLACE, generation=4, stopped=[stopped], left_alone=[left])
        return pb.DryRunRestartResponse(uid="uid-js", dry_run=tried)

    def RestartWorkers(
        self, request: pb.RestartWorkersRequest, context: grpc.ServicerContext
    ) -> pb.RestartWorkersResponse:
        self._check(context, writes=True)
        self.requests.append(request)
        self._lead(context)
        if request.only.replicated_job == "driver":
            text = "only: the workers of replicatedJob driver run in step"
            against = error_details_pb2.PreconditionFailure()
            against.violations.add(type="NOT_WORKER_SCOPE", subject="jobsets.jobset.x-k8s.io/team/js", description=text)
            refuse(context, grpc.StatusCode.FAILED_PRECONDITION, text, "NOT_WORKER_SCOPE", against)
        if request.only.job == "No":
            bad = error_details_pb2.BadRequest()
            bad.field_violations.add(field="only.job", description="must be a name")
            refuse(
                context, grpc.StatusCode.INVALID_ARGUMENT, "only.job: must be a name", "INVALID_FIELD", bad
            )
        return pb.RestartWorkersResponse(token=request.token, uid="uid-js")

    def DryRunRestartWorkers(
        self, request: pb.DryRunRestartWorkersRequest, context: grpc.ServicerContext
    ) -> pb.DryRunRestartWorkersResponse:
        self._check(context, writes=True)
        self.requests.append(request)
        self._lead(context)
        left = pb.LeftAlone(worker=pb.Worker(pod="js-1"), reason=pb.LEFT_ALONE_REASON_NOT_NAMED)
        tried = pb.DryRun(effect=pb.RESTART_EFFECT_IN_PLACE, stopped=[pb.Worker(pod="js-0")], left_alone=[left])
        return pb.DryRunRestartWorkersResponse(uid="uid-js", dry_run=tried)

    def SetSuspended(self, request: pb.SetSuspendedRequest, context: grpc.ServicerContext) -> pb.SetSuspendedResponse:
        self._check(context, writes=True)
        self.requests.append(request)
        self._lead(context)
        changed = self.suspended != request.suspended
        self.suspended = request.suspended
        return pb.SetSuspendedResponse(uid="uid-js", changed=changed)

    def ListRestarts(self, request: pb.ListRestartsRequest, context: grpc.ServicerContext) -> pb.ListRestartsResponse:
        self._check(context)
        self.requests.append(request)
        self._lead(context)
        if self.restarts is not None:
            return pb.ListRestartsResponse(uid="uid-js", restarts=self.restarts, since_unix_nanos=7)
        phase = pb.RestartPhase(name="stop", begin_ms=1.0, duration_ms=2.5)
        under_way = pb.Restart(generation=4, outcome=pb.RESTART_OUTCOME_UNDER_WAY)
        last = pb.Restart(generation=3, outcome=pb.RESTART_OUTCOME_DONE, level="Process", phases=[phase])
        return pb.ListRestartsResponse(uid="uid-js", restarts=[under_way, last], since_unix_nanos=7)

    def ListNodes(self, request: pb.ListNodesRequest, context: grpc.ServicerContext) -> pb.ListNodesResponse:
        self._check(context)
        self.requests.append(request)
        self._lead(context)
        well = pb.RuntimeAccess(state=pb.RUNTIME_ACCESS_STATE_WELL)
        away = pb.RuntimeAccess(state=pb.RUNTIME_ACCESS_STATE_AWAY, detail="no socket")
        first = pb.Node(name="n1", level="Process", cri=well, nri=well)
        second = pb.Node(name="n2", level="Container", cri=well, nri=away)
        if request.page_token == "n1":
            return pb.ListNodesResponse(nodes=[second])
        return pb.ListNodesResponse(nodes=[first], next_page_token="n1")

    def _next(self, context: grpc.ServicerContext) -> Step | None:
        """The next step, unless the client has left."""
        with self._turn:
            self._turn.wait_for(lambda: self._steps or not context.is_active())
            return self._steps.popleft() if context.is_active() else None

    def _leave(self) -> None:
        self.play()
        self.ended.set()

    def _wait(self, context: grpc.ServicerContext) -> NoReturn:
        over = threading.Event()
        context.add_callback(over.set)
        over.wait()
        raise futures.CancelledError


class ClientTest(unittest.TestCase):
    """Gives each test a platform and a client."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.ca, self.token = self.folder / "ca.crt", self.folder / "token"
        self.token.write_text("writer\n", encoding="ascii")
        self.platform = Platform()
        self.target = "127.0.0.1:0"
        self.stop = self.serve()
        self.client = Client(self.target, ca_file=self.ca, token_file=self.token, timeout=20)

    def serve(self, name: str = "lockstep-control-plane") -> contextlib.ExitStack:
        """Serves with a new CA at the same address."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        certificate = authority.issue_cert(name)
        key, chain = certificate.private_key_pem.bytes(), [pem.bytes() for pem in certificate.cert_chain_pems]
        server = grpc.server(futures.ThreadPoolExecutor(8))
        platform_pb2_grpc.add_PlatformServicer_to_server(self.platform, server)
        credentials = grpc.ssl_server_credentials([(key, b"".join(chain))])
        port = server.add_secure_port(self.target, credentials)
        self.target = f"127.0.0.1:{port}"
        server.start()
        stack = contextlib.ExitStack()
        stack.callback(lambda: server.stop(None).wait(20))
        self.addCleanup(stack.close)
        return stack
