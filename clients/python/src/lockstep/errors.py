"""Exceptions, one for each status code of gRPC. platform.proto explains the codes and the reasons."""

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
    """An invalid field: its path in the request, such as `only.worker.job`, and what is wrong."""

    field: str
    description: str


@dataclass(frozen=True)
class Precondition:
    """A precondition that does not hold: a reason, the object, and a text for people.

    The object is `jobsets.jobset.x-k8s.io/NAMESPACE/NAME`.
    """

    type: str
    subject: str
    description: str


@dataclass(frozen=True)
class Details:
    """Details of a failure for programs. They are empty if Lockstep did not answer."""

    # One of the reasons in platform.proto, such as JOBSET_ENDED.
    reason: str = ""
    # Any of namespace, jobset, verb, user, field, replicatedJob and limit.
    metadata: Mapping[str, str] = field(default_factory=dict)
    fields: tuple[FieldViolation, ...] = ()
    preconditions: tuple[Precondition, ...] = ()
    # Seconds to wait at least before a retry, if a retry may succeed.
    retry_after: float | None = None


def _visible(message: str) -> str:
    """Escapes what a terminal would act upon. `LockstepError.message` has the original text."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in message)


class LockstepError(Exception):
    """A call failed. Status codes without a class of their own raise this one."""

    def __init__(self, code: grpc.StatusCode, message: str, details: Details | None = None) -> None:
        super().__init__(f"{code.name}: {_visible(message)}")
        self.code = code
        self.message = message
        self.details = details or Details()

    @property
    def reason(self) -> str:
        """The reason for programs, such as JOBSET_ENDED; empty if unknown."""
        return self.details.reason


class Unauthenticated(LockstepError):
    """There is no token, or the cluster does not accept it."""


class PermissionDenied(LockstepError):
    """The caller lacks a right. The message names verb, namespace and name."""


class InvalidArgument(LockstepError):
    """An argument is invalid. The message begins with its field, which is in `details.fields` too."""


class NotFound(LockstepError):
    """There is no such JobSet."""


class FailedPrecondition(LockstepError):
    """The JobSet does not restart in place, has ended, or similar: `reason` says which."""


class Aborted(LockstepError):
    """The JobSet was changed or deleted meanwhile: read it again."""


class Unavailable(LockstepError):
    """No server answers, its certificate is not trusted, or the replica does not lead: try again."""


class ResourceExhausted(LockstepError):
    """There are too many watches or similar: `reason` says what, `details.retry_after` when to retry."""


class DeadlineExceeded(LockstepError):
    """The call took longer than its timeout."""


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
    """The exception for a status."""
    return _CLASSES.get(code, LockstepError)(code, message, details)


def of(error: grpc.RpcError) -> LockstepError:
    """The exception for a failed call."""
    if isinstance(error, grpc.Call):
        return make(error.code(), error.details() or "", _details(error))
    return LockstepError(grpc.StatusCode.UNKNOWN, str(error))


def _details(call: grpc.Call) -> Details:
    """The details of a status. Unreadable ones are ignored."""
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
