"""A client of Lockstep's platform API (`lockstep.platform.v1`): list, watch and restart groups of workers.

Messages are those of the .proto, in `lockstep.platform.v1.platform_pb2`; those that are met most are here as well.
"""

from lockstep.client import Changed, Client, Event, Removed, Synced
from lockstep.errors import (
    Aborted,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    LockstepError,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from lockstep.platform.v1.platform_pb2 import Cause, Group, GroupPhase, Kind, RestartGroupResponse, Worker, WorkerPhase

__all__ = [
    "Aborted",
    "Cause",
    "Changed",
    "Client",
    "DeadlineExceeded",
    "Event",
    "FailedPrecondition",
    "Group",
    "GroupPhase",
    "InvalidArgument",
    "Kind",
    "LockstepError",
    "NotFound",
    "PermissionDenied",
    "Removed",
    "ResourceExhausted",
    "RestartGroupResponse",
    "Synced",
    "Unauthenticated",
    "Unavailable",
    "Worker",
    "WorkerPhase",
]
