"""What can go wrong, by gRPC's status codes as platform.proto explains them."""

from __future__ import annotations

import grpc


class LockstepError(Exception):
    """A call failed. Codes that have no class of their own come as this one."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message


class Unauthenticated(LockstepError):
    """No token, or one that the cluster does not know."""


class PermissionDenied(LockstepError):
    """The caller may not; the message names verb, namespace and name."""


class InvalidArgument(LockstepError):
    """The message begins with the name of the field."""


class NotFound(LockstepError):
    """There is no such JobSet."""


class FailedPrecondition(LockstepError):
    """The JobSet is none that Lockstep restarts in place, or it has ended."""


class Aborted(LockstepError):
    """The JobSet was changed or deleted meanwhile: look again."""


class Unavailable(LockstepError):
    """Nobody is there, the certificate is not trusted, or this replica does not lead: try again."""


class ResourceExhausted(LockstepError):
    """Too many watches at once."""


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


def make(code: grpc.StatusCode, message: str) -> LockstepError:
    """The exception of a status."""
    return _CLASSES.get(code, LockstepError)(code, message)


def of(error: grpc.RpcError) -> LockstepError:
    """The exception of a call that failed."""
    if isinstance(error, grpc.Call):
        return make(error.code(), error.details() or "")
    return LockstepError(grpc.StatusCode.UNKNOWN, str(error))
