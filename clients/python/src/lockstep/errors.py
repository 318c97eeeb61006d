"""What can go wrong, by gRPC's status codes and the reasons beside them, as platform.proto explains both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

DOMAIN = "lockstep.dev"
_DETAILS = "grpc-status-details-bin"


@dataclass(frozen=True)
class FieldViolation:
    """An argument that is none: its path in the request, such as `only.worker.job`, and what is wrong with it."""

    field: str
    description: str


@dataclass(frozen=True)
class Precondition:
    """What speaks against a call: a reason, the object (`jobsets.jobset.x-k8s.io/NAMESPACE/NAME`), and the same for people."""

    type: str
    subject: str
    description: str


@dataclass(frozen=True)
class Details:
    """What a failure says to programs. All of it is empty where somebody else failed, such as the network."""

    # One of those in platform.proto, such as JOBSET_ENDED.
    reason: str = ""
    # What is known of namespace, jobset, verb, user, field, replicatedJob and limit.
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[FieldViolation, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    # Seconds to wait at least before the same call is made again, where that may be served.
    retry_after: float | None = None


def _visible(message: str) -> str:
    """What others wrote, for a terminal: what it would act upon is named in its place. `message` has it as it came."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


class LockstepError(Exception):
    """A call failed. Codes that have no class of their own come as this one."""

    def __init__(self, code: grpc.StatusCode, message: str, details: Details | None = None) -> None:
        super().__init__(f"{code.name}: {_visible(message)}")
        self.code = code
        self.message = message
        self.details = details or Details()

    @property
    def reason(self) -> str:
        """Why, for programs, such as JOBSET_ENDED; empty where it is not known."""
        return self.details.reason


class Unauthenticated(LockstepError):
    """No token, or one that the cluster does not know."""


class PermissionDenied(LockstepError):
    """The caller may not; the message names verb, namespace and name."""


class InvalidArgument(LockstepError):
    """The message begins with the name of the field, which is in `details.fields` too."""


class NotFound(LockstepError):
    """There is no such JobSet."""


class FailedPrecondition(LockstepError):
    """The JobSet is none that Lockstep restarts in place, or it has ended, ...: `reason` says which."""


class Aborted(LockstepError):
    """The JobSet was changed or deleted meanwhile: look again."""


class Unavailable(LockstepError):
    """Nobody is there, the certificate is not trusted, or this replica does not lead: try again."""


class ResourceExhausted(LockstepError):
    """Too many watches at once, ...: `reason` says of what, and `details.retry_after` when to come again."""


class DeadlineExceeded(LockstepError):
    """It took longer than the timeout."""


_CLASSES: dict[grpc.StatusCode, type[LockstepError]] = {
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDenied,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPrecondition,
    grpc.StatusCode.ABORTED: Aborted,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhausted,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
}


def make(code: grpc.StatusCode, message: str, details: Details | None = None) -> LockstepError:
    """The exception of a status."""
    return _CLASSES.get(code, LockstepError)(code, message, details)


def of(error: grpc.RpcError) -> LockstepError:
    """The exception of a call that failed."""
    if isinstance(error, grpc.Call):
        return make(error.code(), error.details() or "", _details(error))
    return LockstepError(grpc.StatusCode.UNKNOWN, str(error))


def _details(call: grpc.Call) -> Details:
    """What a status holds beside its message. What cannot be read is as if it were not there."""
    values = [value for key, value in call.trailing_metadata() or () if key == _DETAILS]
    status = status_pb2.Status()
    info, again = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    bad, against = error_details_pb2.BadRequest(), error_details_pb2.PreconditionFailure()
    retry_after = None
    try:
        for value in values:
            status.MergeFromString(value if isinstance(value, bytes) else value.encode())
        for detail in status.details:
            for message in (info, bad, against):
                detail.Unpack(message)
            if detail.Unpack(again):
                retry_after = again.retry_delay.ToTimedelta().total_seconds()
    except DecodeError:
        return Details()
    if info.domain != DOMAIN:
        return Details()
    return Details(
        reason=info.reason,
        metadata=dict(info.metadata),
        fields=tuple(FieldViolation(one.field, one.description) for one in bad.field_violations),
        preconditions=tuple(Precondition(one.type, one.subject, one.description) for one in against.violations),
        retry_after=retry_after,
    )
