"""Tests of the client over real connections to a fake platform."""

from __future__ import annotations

import importlib.metadata
import itertools
import pathlib
import subprocess
import sys
import time
import unittest
import unittest.mock
from collections.abc import Iterator

import grpc
from fake import SYNCED, ClientTest, changed, group, removed

import lockstep
from lockstep import Changed, Client, Event, Removed, Synced
from lockstep.platform.v1 import platform_pb2 as pb

# Ends a stream: later steps are for the next one.
LOSS = grpc.StatusCode.UNAVAILABLE
EXAMPLE = pathlib.Path(__file__).parent.parent / "examples/react_to_restart.py"


def seen(events: Iterator[Event], count: int) -> list[str]:
    """The next events in short."""
    short = []
    for event in itertools.islice(events, count):
        match event:
            case Changed(group):
                short.append(f"{group.name}={group.generation}")
            case Removed(_, name, uid):
                short.append(f"{name} removed ({uid})")
            case Synced():
                short.append("synced")
    return short


class Calls(ClientTest):
    def test_groups_are_listed_over_all_pages(self) -> None:
        self.platform.groups = [group(f"js-{i}") for i in range(5)]
        listed = self.client.list_groups("team", omit_workers=True, page_size=2)
        self.assertEqual([g.name for g in listed], ["js-0", "js-1", "js-2", "js-3", "js-4"])
        first = self.platform.requests[0]
        self.assertEqual(first, pb.ListGroupsRequest(namespace="team", omit_workers=True, page_size=2))
        self.assertEqual(len(self.platform.requests), 3)

    def test_a_page_may_be_large(self) -> None:
        self.platform.groups = [group("js", last_cause=pb.Cause(message="long" * 2_000_000))]
        self.assertEqual(list(self.client.list_groups()), self.platform.groups)

    def test_a_restart_names_its_token(self) -> None:
        answer = self.client.restart_group("team", "js", token="t-1")
        self.assertEqual((answer.token, answer.generation, answer.handled), ("t-1", 3, False))
        self.assertEqual(self.platform.requests, [pb.RestartGroupRequest(namespace="team", name="js", token="t-1")])

    def test_a_dry_run_lists_the_workers_that_would_be_stopped(self) -> None:
        tried = self.client.dry_run_restart("team", "js", token="t-1")
        self.assertEqual((tried.effect, tried.generation), (lockstep.RestartEffect.RESTART_EFFECT_IN_PLACE, 4))
        self.assertEqual([worker.pod for worker in tried.stopped], ["js-0"])
        self.assertEqual(
            [(left.worker.pod, left.reason) for left in tried.left_alone],
            [("js-1", lockstep.LeftAloneReason.LEFT_ALONE_REASON_DONE)],
        )
        asked = pb.DryRunRestartRequest(namespace="team", name="js", token="t-1")
        self.assertEqual(self.platform.requests, [asked])
        with self.assertRaises(lockstep.NotFound):
            self.client.dry_run_restart("team", "other")

    def test_some_workers_are_restarted(self) -> None:
        self.platform.following = 1
        named: list[tuple[lockstep.Target, pb.Target]] = [
            (lockstep.ReplicatedJob("ps"), pb.Target(replicated_job="ps")),
            (lockstep.Job("js-ps-0"), pb.Target(job="js-ps-0")),
            (lockstep.OneWorker("js-ps-0", 1), pb.Target(worker=pb.WorkerIdentity(job="js-ps-0", completion_index=1))),
            (
                lockstep.OneWorker("js-ps-0", 1, "main"),
                pb.Target(worker=pb.WorkerIdentity(job="js-ps-0", completion_index=1, container="main")),
            ),
        ]
        for only, sent in named:
            asked = self.client.restart_workers("team", "js", only, token="t-1")
            self.assertEqual((asked.token, asked.uid, asked.handled), ("t-1", "uid-js", False))
            last = pb.RestartWorkersRequest(namespace="team", name="js", token="t-1", only=sent)
            self.assertEqual(self.platform.requests[-1], last)
        with self.assertRaisesRegex(lockstep.FailedPrecondition, "in step"):
            self.client.restart_workers("team", "js", lockstep.ReplicatedJob("driver"))
        tried = self.client.dry_run_restart_workers("team", "js", lockstep.Job("js-ps-0"))
        self.assertEqual([worker.pod for worker in tried.stopped], ["js-0"])
        self.assertEqual(tried.left_alone[0].reason, lockstep.LeftAloneReason.LEFT_ALONE_REASON_NOT_NAMED)

    def test_a_group_is_suspended_and_resumed(self) -> None:
        self.platform.following = 1
        done = [self.client.suspend_group("team", "js"), self.client.suspend_group("team", "js")]
        done += [self.client.resume_group("team", "js")]
        self.assertEqual([one.changed for one in done], [True, False, True])
        self.assertFalse(self.platform.suspended)
        asked = pb.SetSuspendedRequest(namespace="team", name="js", suspended=True)
        self.assertEqual(self.platform.requests[0], asked)
        self.token.write_text("reader", encoding="ascii")
        with self.assertRaises(lockstep.PermissionDenied):
            self.client.suspend_group("team", "js")

    def test_the_last_restarts_are_listed(self) -> None:
        self.platform.following = 1
        listed = self.client.list_restarts("team", "js")
        self.assertEqual((listed.uid, listed.since_unix_nanos), ("uid-js", 7))
        self.assertEqual([(one.generation, one.level) for one in listed.restarts], [(4, ""), (3, "Process")])
        self.assertEqual([(phase.name, phase.duration_ms) for phase in listed.restarts[1].phases], [("stop", 2.5)])
        self.assertEqual(self.platform.requests, [pb.ListRestartsRequest(namespace="team", name="js")] * 2)

    def test_nodes_are_listed_page_by_page(self) -> None:
        nodes = list(self.client.list_nodes(page_size=1))
        self.assertEqual([(node.name, node.level) for node in nodes], [("n1", "Process"), ("n2", "Container")])
        self.assertEqual(nodes[1].nri.state, lockstep.RuntimeAccessState.RUNTIME_ACCESS_STATE_AWAY)
        asked = [pb.ListNodesRequest(page_size=1), pb.ListNodesRequest(page_size=1, page_token="n1")]
        self.assertEqual(self.platform.requests, asked)

    def test_one_restart_is_found_by_its_generation_or_is_the_last_one(self) -> None:
        self.assertEqual([one.generation for one in self.client.history("team", "js")], [4, 3])
        last, third = self.client.timeline("team", "js"), self.client.timeline("team", "js", generation=3)
        assert last and third
        # A restart under way has no phases yet.
        self.assertEqual((last.generation, last.phases[0].name), (3, "stop"))
        self.assertEqual(third, last)
        under_way = self.client.timeline("team", "js", generation=4)
        assert under_way
        self.assertEqual(under_way.outcome, lockstep.RestartOutcome.RESTART_OUTCOME_UNDER_WAY)
        self.assertIsNone(self.client.timeline("team", "js", generation=9))

    def test_calls_are_repeated_until_a_replica_leads(self) -> None:
        self.platform.groups = [group("a"), group("b")]
        self.platform.following = 2
        with self.assertLogs("lockstep", "INFO") as logged:
            self.assertEqual([g.name for g in self.client.list_groups("team", page_size=1)], ["a", "b"])
        self.assertEqual(len(logged.output), 2)
        self.assertIn("does not lead", logged.output[0])
        self.assertEqual(len(self.platform.requests), 4)
        # Both attempts are the same request.
        self.platform.requests.clear()
        self.platform.following = 1
        answer = self.client.restart_group("team", "js")
        self.assertTrue(answer.token)
        expected = pb.RestartGroupRequest(namespace="team", name="js", token=answer.token)
        self.assertEqual(self.platform.requests, [expected, expected])
        self.assertNotEqual(self.client.restart_group("team", "js").token, answer.token)

    def test_the_error_says_that_no_replica_leads(self) -> None:
        self.platform.following = 1000
        with self.assertRaisesRegex(lockstep.Unavailable, "does not lead") as raised:
            self.client.restart_group("team", "js", timeout=0.5)
        self.assertEqual((raised.exception.reason, raised.exception.details.retry_after), ("NOT_LEADING", 0.0))

    def test_a_retry_waits_for_the_delay_of_the_server(self) -> None:
        self.platform.following, self.platform.retry_after_ms = 1, 800
        began = time.monotonic()
        self.client.restart_group("team", "js")
        self.assertGreaterEqual(time.monotonic() - began, 0.8)
        self.platform.following, self.platform.retry_after_ms = 1, 60_000
        with self.assertRaises(lockstep.Unavailable) as raised:
            self.client.restart_group("team", "js")
        self.assertEqual(raised.exception.details.retry_after, 60.0)

    def test_failures_have_details_for_programs(self) -> None:
        with self.assertRaises(lockstep.FailedPrecondition) as failed:
            self.client.restart_workers("team", "js", lockstep.ReplicatedJob("driver"))
        details = failed.exception.details
        self.assertEqual((failed.exception.reason, details.metadata["jobset"]), ("NOT_WORKER_SCOPE", "js"))
        [against] = details.preconditions
        self.assertEqual((against.type, against.subject), ("NOT_WORKER_SCOPE", "jobsets.jobset.x-k8s.io/team/js"))
        with self.assertRaises(lockstep.InvalidArgument) as invalid:
            self.client.restart_workers("team", "js", lockstep.Job("No"))
        self.assertEqual(
            invalid.exception.details.fields, (lockstep.FieldViolation("only.job", "must be a name"),)
        )
        # Details of other domains, and unreadable ones, are ignored.
        self.token.write_text("stranger", encoding="ascii")
        with self.assertRaises(lockstep.Unauthenticated) as stranger:
            self.client.restart_group("team", "js")
        self.assertEqual(stranger.exception.details, lockstep.Details())

    def test_errors_are_escaped_for_terminals(self) -> None:
        forged = "js\x1b[2J\x9b31m\u202e\r\nNOT_FOUND: all is well"
        failed = lockstep.LockstepError(grpc.StatusCode.NOT_FOUND, forged)
        self.assertEqual(str(failed), r"NOT_FOUND: js\x1b[2J\x9b31m\u202e\r\nNOT_FOUND: all is well")
        self.assertEqual(failed.message, forged)

    def test_the_token_is_read_at_each_call(self) -> None:
        self.token.write_text("stranger", encoding="ascii")
        with self.assertRaises(lockstep.Unauthenticated) as raised:
            list(self.client.list_groups())
        self.assertEqual(str(raised.exception), "UNAUTHENTICATED: the token is not known")
        self.token.write_text("reader", encoding="ascii")
        self.assertEqual(list(self.client.list_groups()), [])
        with self.assertRaisesRegex(lockstep.PermissionDenied, "reader may not patch jobsets js in namespace team"):
            self.client.restart_group("team", "js")
        self.token.unlink()
        with self.assertRaises(FileNotFoundError):
            list(self.client.list_groups())

    def test_a_missing_jobset_is_not_found(self) -> None:
        with self.assertRaisesRegex(lockstep.NotFound, "there is no JobSet other") as raised:
            self.client.restart_group("team", "other")
        self.assertEqual(raised.exception.code, grpc.StatusCode.NOT_FOUND)
        self.assertIsInstance(raised.exception, lockstep.LockstepError)

    def test_calls_have_deadlines(self) -> None:
        self.platform.silent.set()
        with self.assertRaises(lockstep.DeadlineExceeded):
            list(self.client.list_groups(timeout=0.2))
        with self.assertRaises(lockstep.DeadlineExceeded):
            list(self.client.watch_groups(timeout=0.2))
        with self.assertRaises(lockstep.DeadlineExceeded):
            list(self.client.follow_groups(timeout=0.2))

    def test_a_server_with_another_authority_or_name_is_not_trusted(self) -> None:
        trusted = self.ca.read_bytes()
        self.stop.close()
        self.stop = self.serve()
        renewed, _ = self.ca.read_bytes(), self.ca.write_bytes(trusted)
        with self.assertRaises(lockstep.Unavailable):
            list(self.client.list_groups(timeout=0.5))
        self.assertEqual(self.platform.requests, [])
        # The CA is read at each call, like the token.
        self.ca.write_bytes(renewed)
        self.assertEqual(list(self.client.list_groups()), [])
        self.stop.close()
        self.serve("another-server")
        with self.assertRaises(lockstep.Unavailable):
            list(self.client.list_groups(timeout=0.5))
        other = Client(self.target, ca_file=self.ca, token_file=self.token, server_name="another-server")
        self.assertEqual(list(other.list_groups()), [])


class Watches(ClientTest):
    def test_a_watch_yields_all_groups_then_changes(self) -> None:
        self.platform.play(changed(group("a")), changed(group("b", 2)), SYNCED, changed(group("a", 1)), removed("b"))
        events = self.client.watch_groups("team", omit_workers=True)
        self.assertEqual(seen(events, 5), ["a=0", "b=2", "synced", "a=1", "b removed (uid-b)"])
        self.assertEqual(self.platform.requests, [pb.WatchGroupsRequest(namespace="team", omit_workers=True)])

    def test_a_closed_watch_ends_at_the_server_too(self) -> None:
        self.platform.play(SYNCED)
        events = self.client.watch_groups()
        self.assertEqual(seen(events, 1), ["synced"])
        del events
        self.assertTrue(self.platform.ended.wait(20))

    def test_the_end_of_a_watch_says_why(self) -> None:
        self.platform.play(SYNCED, grpc.StatusCode.UNAVAILABLE)
        with self.assertRaisesRegex(lockstep.Unavailable, "shutting down"):
            list(self.client.watch_groups())

    def test_an_event_of_a_later_version_is_ignored(self) -> None:
        self.platform.play(pb.WatchGroupsResponse(), SYNCED)
        self.assertEqual(seen(self.client.watch_groups(), 1), ["synced"])

    def test_following_goes_on_after_a_loss_and_names_removed_groups(self) -> None:
        self.platform.play(changed(group("a")), changed(group("b")), SYNCED, grpc.StatusCode.UNAVAILABLE)
        self.platform.play(changed(group("b", 1)), SYNCED)
        events = self.client.follow_groups("team")
        expected = ["a=0", "b=0", "synced", "b=1", "a removed (uid-a)", "synced"]
        self.assertEqual(seen(events, len(expected)), expected)

    def test_following_distinguishes_groups_of_the_same_name(self) -> None:
        self.platform.play(changed(group("a")), SYNCED, changed(group("a", uid="uid-2")), removed("a"))
        self.platform.play(changed(group("b")), removed("b"), changed(group("b", uid="uid-2")), LOSS)
        # A third group of the name was created between two streams.
        self.platform.play(changed(group("a", uid="uid-3")), changed(group("b", uid="uid-2")), SYNCED)
        expected = ["a=0", "synced", "a removed (uid-a)", "a=0", "b=0", "b removed (uid-b)", "b=0"]
        expected += ["a removed (uid-2)", "a=0", "b=0", "synced"]
        self.assertEqual(seen(self.client.follow_groups(timeout=20), len(expected)), expected)

    def test_following_ends_at_its_deadline(self) -> None:
        self.platform.play(SYNCED, LOSS)
        began = time.monotonic()
        with unittest.mock.patch("lockstep.client._DELAYS", (60.0, 60.0)), self.assertRaises(lockstep.DeadlineExceeded):
            list(self.client.follow_groups(timeout=0.5))
        self.assertLess(time.monotonic() - began, 20)

    def test_following_waits_for_a_server_and_gives_up_without_the_right(self) -> None:
        self.platform.play(SYNCED)
        events = self.client.follow_groups()
        self.assertEqual(seen(events, 1), ["synced"])
        self.stop.close()
        self.platform.play(changed(group("a")))
        self.stop = self.serve()
        self.assertEqual(seen(events, 1), ["a=0"])
        self.token.write_text("stranger", encoding="ascii")
        self.platform.play(grpc.StatusCode.UNAVAILABLE)
        with self.assertRaises(lockstep.Unauthenticated):
            list(events)

    def test_following_goes_on_with_the_next_token_after_one_has_expired(self) -> None:
        self.platform.play(SYNCED)
        events = self.client.follow_groups()
        self.assertEqual(seen(events, 1), ["synced"])
        self.token.write_text("reader", encoding="ascii")
        self.platform.play(grpc.StatusCode.UNAUTHENTICATED, changed(group("a")))
        self.assertEqual(seen(events, 1), ["a=0"])
        self.assertEqual(self.platform.bearers, ["Bearer writer", "Bearer reader"])
        # The next token is not accepted either.
        self.token.write_text("stranger", encoding="ascii")
        self.platform.play(grpc.StatusCode.UNAUTHENTICATED)
        with self.assertRaises(lockstep.Unauthenticated):
            list(events)
        self.assertEqual(self.platform.bearers[2:], ["Bearer stranger"])

    def test_following_gives_up_without_a_first_stream_and_says_why(self) -> None:
        trusted = self.ca.read_bytes()
        self.stop.close()
        self.serve()
        renewed, _ = self.ca.read_bytes(), self.ca.write_bytes(trusted)
        client = Client(self.target, ca_file=self.ca, token_file=self.token, timeout=0.5)
        with self.assertLogs("lockstep", "WARNING"), self.assertRaises(lockstep.Unavailable):
            list(client.follow_groups())
        # Once a stream has begun, it may take longer than that.
        self.ca.write_bytes(renewed)
        self.platform.play(SYNCED)
        events = client.follow_groups(timeout=2)
        self.assertEqual(seen(events, 1), ["synced"])
        self.ca.write_bytes(trusted)
        self.platform.play(grpc.StatusCode.UNAVAILABLE)
        with self.assertLogs("lockstep", "WARNING") as logged, self.assertRaises(lockstep.DeadlineExceeded):
            list(events)
        self.assertIn("shutting down", logged.output[0])
        self.assertGreater(len(logged.output), 1)

    def test_a_restart_is_followed_to_its_end(self) -> None:
        stopping = group("js", 4, handled_request="made", phase=pb.GROUP_PHASE_STOPPING)
        stopping.released, stopping.workers_up = 3, 0
        starting = group("js", 4, handled_request="made")
        starting.workers_up = 1
        self.platform.play(changed(group("js", 3)), LOSS)
        self.platform.play(changed(group("js", 3)), SYNCED, changed(stopping), changed(starting))
        self.platform.play(changed(group("js", 4, handled_request="made", last_level="Process")))
        done = self.client.restart_and_wait("team", "js", token="made", timeout=20)
        self.assertEqual((done.generation, done.last_level), (4, "Process"))

    def test_a_restart_for_another_reason_is_not_the_requested_one(self) -> None:
        before = group("js", 3, handled_request="before")
        crashed = group("js", 4, handled_request="before")
        self.platform.play(changed(before), LOSS, changed(before), SYNCED)
        self.platform.play(changed(crashed), changed(group("js", 5, handled_request="mine")), LOSS)
        self.assertEqual(self.client.restart_and_wait("team", "js", token="mine", timeout=20).generation, 5)
        # Nor is a restart for an earlier request.
        another = group("js", 3, handled_request="another")
        self.platform.play(changed(group("js", 2, handled_request="before")), LOSS)
        self.platform.play(changed(another), SYNCED, changed(group("js", 4, handled_request="mine")))
        self.assertEqual(self.client.restart_and_wait("team", "js", token="mine", timeout=20).generation, 4)

    def test_a_later_request_replaces_an_earlier_one(self) -> None:
        before, after = group("js", 3, handled_request="before"), group("js", 4, handled_request="another")
        self.platform.play(changed(before), LOSS, changed(before), SYNCED, changed(after), LOSS)
        self.assertEqual(self.client.restart_and_wait("team", "js", token="mine", timeout=20).generation, 4)
        # The restart was done before the next event.
        self.platform.play(changed(before), LOSS, changed(after), SYNCED)
        self.assertEqual(self.client.restart_and_wait("team", "js", token="mine", timeout=20).generation, 4)

    def test_a_restart_that_ended_between_two_events_is_seen(self) -> None:
        def restart(generation: int, reason: str, outcome: "pb.RestartOutcome.ValueType") -> pb.Restart:
            scope, cause = pb.RESTART_SCOPE_GROUP, pb.Cause(reason=reason)
            return pb.Restart(generation=generation, scope=scope, cause=cause, outcome=outcome)

        def stopping(generation: int) -> pb.WatchGroupsResponse:
            shown = group("js", generation, handled_request="mine", phase=pb.GROUP_PHASE_STOPPING)
            shown.released = generation - 1
            return changed(shown)

        before = changed(group("js", 3, handled_request="before"))
        asked = restart(4, "ManualRequest", pb.RESTART_OUTCOME_DONE)
        # One worker fails repeatedly, so the group is never seen steady.
        self.platform.restarts = [restart(5, "WorkerExited", pb.RESTART_OUTCOME_UNDER_WAY), asked]
        self.platform.play(before, LOSS, before, SYNCED, stopping(5))
        shown = self.client.restart_and_wait("team", "js", token="mine", timeout=20)
        self.assertEqual((shown.generation, shown.phase), (5, pb.GROUP_PHASE_STOPPING))
        # An earlier restart is not its end, nor is one with another cause.
        crashed = restart(4, "WorkerExited", pb.RESTART_OUTCOME_DONE)
        self.platform.restarts = [restart(5, "ManualRequest", pb.RESTART_OUTCOME_SUPERSEDED), crashed]
        self.platform.play(LOSS, before, LOSS, before, SYNCED, stopping(6))
        self.platform.play(changed(group("js", 6, handled_request="mine")))
        shown = self.client.restart_and_wait("team", "js", token="mine", timeout=20)
        self.assertEqual(shown.phase, pb.GROUP_PHASE_IN_SYNC)

    def test_a_restart_looks_for_the_leader_until_its_deadline(self) -> None:
        client = Client(self.target, ca_file=self.ca, token_file=self.token, timeout=0.2)
        self.platform.following = 3
        self.platform.play(LOSS, SYNCED, LOSS, LOSS, LOSS, LOSS)
        self.platform.play(changed(group("js", 4, handled_request="made")), SYNCED)
        self.assertEqual(client.restart_and_wait("team", "js", token="made", timeout=20).generation, 4)

    def test_a_restart_that_is_late_or_whose_group_is_deleted_fails(self) -> None:
        self.platform.play(changed(group("js", 3)), LOSS, changed(group("js", 3)), SYNCED)
        with self.assertRaisesRegex(lockstep.DeadlineExceeded, "team/js: .* within 3 s: .* workers up at generation 3"):
            self.client.restart_and_wait("team", "js", timeout=3)
        self.platform.play(LOSS, changed(group("js", 3)), LOSS, changed(group("js", 3)), removed("js"), LOSS, SYNCED)
        with self.assertRaisesRegex(lockstep.NotFound, "team/js is gone"):
            self.client.restart_and_wait("team", "js", timeout=20)

    def test_a_new_leader_that_does_not_show_the_group_yet_is_asked_again(self) -> None:
        self.platform.play(SYNCED, LOSS, changed(group("js", 3)), SYNCED, LOSS, SYNCED, LOSS)
        self.platform.play(changed(group("js", 4, handled_request="made")), SYNCED)
        self.assertEqual(self.client.restart_and_wait("team", "js", token="made", timeout=20).generation, 4)

    def test_a_group_that_has_ended_before_the_watch_is_not_waited_for(self) -> None:
        self.platform.play(SYNCED, LOSS, SYNCED, LOSS, SYNCED, LOSS)
        with self.assertRaisesRegex(lockstep.NotFound, "team/js is gone or has ended"):
            self.client.restart_and_wait("team", "js", timeout=20)
        # A group of the same name was created meanwhile.
        old, new = changed(group("js", 3)), changed(group("js", 9, uid="uid-new", handled_request="made"))
        self.platform.play(old, LOSS, old, SYNCED, new, LOSS, new, SYNCED)
        with self.assertRaisesRegex(lockstep.NotFound, "team/js is gone or has ended"):
            self.client.restart_and_wait("team", "js", token="made", timeout=20)

    def test_the_example_prints_each_restart_with_its_cause(self) -> None:
        why = pb.Cause(reason="WorkerExited", pod="js-0", node="n1", exit=pb.Exit(code=3))
        stopping = group("js", 1, last_cause=why, phase=pb.GROUP_PHASE_STOPPING)
        stopping.released = 0
        self.platform.play(changed(group("js")), SYNCED, changed(stopping))
        self.platform.play(changed(group("js", 1, last_cause=why, last_level="Process")))
        # A group of the same name: after the reconnection only that one is listed.
        new = changed(group("js", uid="uid-new"))
        self.platform.play(new, LOSS, new, SYNCED, removed("js", "uid-new"))
        command = [sys.executable, str(EXAMPLE), self.target, "--ca", str(self.ca), "--token", str(self.token)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as example:
            assert example.stdout
            printed = list(itertools.islice(example.stdout, 5))
            example.kill()
        self.assertEqual(
            "".join(printed),
            "1 groups\n"
            "team/js: restart 1 has begun: WorkerExited with exit code 3 (js-0 on n1)\n"
            "team/js: all 2 workers run again, by Process\n"
            "team/js: gone\n"
            "1 groups\n",
        )


class Wheel(unittest.TestCase):
    def test_it_has_types_and_messages_and_nothing_else(self) -> None:
        files = {str(file) for file in importlib.metadata.files("lockstep-client") or []}
        modules = {file for file in files if file.startswith("lockstep/") and "__pycache__" not in file}
        generated = {f"lockstep/platform/v1/platform_pb2{part}" for part in [".py", ".pyi", "_grpc.py", "_grpc.pyi"]}
        own = {f"lockstep/{name}" for name in ["__init__.py", "client.py", "errors.py", "py.typed", "worker.py"]}
        self.assertEqual(modules, own | generated)
        self.assertNotIn("clients/python/src", str(lockstep.__file__))


if __name__ == "__main__":
    unittest.main()
