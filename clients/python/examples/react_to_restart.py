"""Follows groups and prints each restart with its cause. A platform would update its own state here.

    python react_to_restart.py lockstep-control-plane.lockstep-system.svc:9445 --ca ca.crt --namespace team
"""

import argparse

from lockstep import Changed, Client, Group, GroupPhase, Removed, Synced


def cause(group: Group) -> str:
    """The cause of the last restart."""
    why = group.last_cause
    where = f" ({why.pod} on {why.node})" if why.pod else ""
    ended = f" with exit code {why.exit.code}" if why.HasField("exit") else ""
    return f"{why.reason}{ended}{where}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", help="HOST:PORT of the platform API")
    parser.add_argument("--ca", required=True, help="file with the CA, as in the ConfigMap lockstep-hub-ca")
    parser.add_argument("--token", help="file with a token (default: the pod's own)")
    parser.add_argument("--namespace", default="", help="namespace of the groups (default: all)")
    args = parser.parse_args()
    client = Client(args.target, ca_file=args.ca, **({"token_file": args.token} if args.token else {}))

    begun: dict[str, int] = {}  # The last restart attempt of each group that was printed, by UID.
    ended: dict[str, int] = {}  # The last restart attempt that all workers of a group have run.
    # States in between may be missed, but never the last one: compare states, do not count events.
    for event in client.follow_groups(args.namespace, omit_workers=True):
        match event:
            case Changed(group):
                name, attempt = f"{group.namespace}/{group.name}", group.generation
                if attempt > begun.setdefault(group.uid, attempt):
                    print(f"{name}: restart {attempt} has begun: {cause(group)}", flush=True)
                    begun[group.uid] = attempt
                steady = group.phase == GroupPhase.GROUP_PHASE_IN_SYNC and group.released == attempt
                if steady and group.workers_up == group.workers_expected:
                    if attempt > ended.setdefault(group.uid, attempt):
                        print(f"{name}: all {group.workers_up} workers run again, by {group.last_level}", flush=True)
                    ended[group.uid] = attempt
            case Removed(namespace, name, uid):
                print(f"{namespace}/{name}: gone", flush=True)
                begun.pop(uid, None)
                ended.pop(uid, None)
            case Synced():
                print(f"{len(begun)} groups", flush=True)


if __name__ == "__main__":
    main()
