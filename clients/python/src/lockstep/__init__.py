"""A client of Lockstep's platform API: list, watch, restart and suspend groups of workers.

The messages of the .proto are in `lockstep.platform.v1.platform_pb2`. The most common ones are
exported here as well. What a worker's own program may call is in `lockstep.worker`.

The client is imported when it is first used, so that a worker needs no gRPC for `lockstep.worker`.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lockstep.client import Changed, Client, Event, Job, OneWorker, Removed, ReplicatedJob, Synced, Target
    from lockstep.errors import (
        Aborted,
        DeadlineExceeded,
        Details,
        FailedPrecondition,
        FieldViolation,
        InvalidArgument,
        LockstepError,
        NotFound,
        PermissionDenied,
        Precondition,
        ResourceExhausted,
        Unauthenticated,
        Unavailable,
    )
    from lockstep.platform.v1.platform_pb2 import (
        Cause,
        DryRun,
        Group,
        GroupPhase,
        Kind,
        LeftAlone,
        LeftAloneReason,
        ListRestartsResponse,
        Node,
        Restart,
        RestartEffect,
        RestartGroupResponse,
        RestartOutcome,
        RestartWorkersResponse,
        RuntimeAccess,
        RuntimeAccessState,
        SetSuspendedResponse,
        Stage,
        Standbys,
        Starts,
        Worker,
        WorkerPhase,
    )

__all__ = [
    "Aborted",
    "Cause",
    "Changed",
    "Client",
    "DeadlineExceeded",
    "Details",
    "DryRun",
    "Event",
    "FailedPrecondition",
    "FieldViolation",
    "Group",
    "GroupPhase",
    "InvalidArgument",
    "Job",
    "Kind",
    "LeftAlone",
    "LeftAloneReason",
    "ListRestartsResponse",
    "LockstepError",
    "Node",
    "NotFound",
    "OneWorker",
    "PermissionDenied",
    "Precondition",
    "Removed",
    "ReplicatedJob",
    "ResourceExhausted",
    "Restart",
    "RestartEffect",
    "RestartGroupResponse",
    "RestartOutcome",
    "RestartWorkersResponse",
    "RuntimeAccess",
    "RuntimeAccessState",
    "SetSuspendedResponse",
    "Stage",
    "Standbys",
    "Starts",
    "Synced",
    "Target",
    "Unauthenticated",
    "Unavailable",
    "Worker",
    "WorkerPhase",
]

# Where the names above are defined.
_MODULES = ("lockstep.client", "lockstep.errors", "lockstep.platform.v1.platform_pb2")

if not TYPE_CHECKING:

    def __getattr__(name):
        """Imports what is exported here, or a module of this package, when it is first asked for."""
        if name in __all__:
            for module in map(importlib.import_module, _MODULES):
                if hasattr(module, name):
                    globals()[name] = getattr(module, name)
                    return globals()[name]
        if f"lockstep.{name}" in (*_MODULES, "lockstep.platform"):
            return importlib.import_module(f"lockstep.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
