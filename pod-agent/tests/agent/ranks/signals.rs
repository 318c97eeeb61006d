//! Signals of the launcher to a rank, or to its process group.

use super::*;

#[test]
fn signals_of_the_launcher_reach_the_rank() {
    let handler = "
def on(number, frame):
    tell('got.' + NAME, number)
signal.signal(signal.SIGTERM, on)
signal.signal(signal.SIGUSR1, on)
";
    three_ways(2, false, |job, way| {
        for (number, signal) in [(15, "SIGTERM"), (10, "SIGUSR1")] {
            job.tell(0, handler);
            job.rig.await_file(&job.name("did.rank", 0));
            job.launcher(&format!("ranks[0].send_signal(signal.{signal})"));
            let name = job.name("got", 0);
            eventually(way, || {
                fs::read_to_string(job.rig.path(&name))
                    .is_ok_and(|text| text == number.to_string())
                    .then_some(())
            });
        }
        job.launcher("ranks[1].terminate()");
        assert_eq!(job.end(1), "-15", "{way}");
        job.launcher("ranks[0].kill()");
        assert_eq!(job.end(0), "-9", "{way}");
        job.await_gone(job.rank(0).0);
    });
}

#[test]
fn a_group_that_the_launcher_signals_is_the_ranks() {
    let fork = "
child = os.fork()
if child == 0:
    time.sleep(1000)
tell('child.' + NAME, child)
";
    three_ways(2, true, |job, way| {
        job.tell(0, fork);
        job.rig.await_file(&job.name("child", 0));
        let child: i32 = job.read("child", 0).parse().expect("a number");
        assert!(job.is_there(child));
        job.launcher("os.killpg(ranks[0].pid, signal.SIGTERM)");
        assert_eq!(job.end(0), "-15", "{way}");
        job.await_gone(child);
        job.await_gone(job.rank(0).0);
        assert!(job.is_there(job.rank(1).0));
    });
}

#[test]
fn a_signal_to_a_rank_alone_spares_its_children() {
    let fork = "
signal.signal(signal.SIGUSR1, lambda *_: tell('got.' + NAME, 'one'))
child = subprocess.Popen(['sleep', '1000'])
tell('child.' + NAME, child.pid)
";
    three_ways(1, true, |job, way| {
        job.tell(0, fork);
        job.rig.await_file(&job.name("child", 0));
        let child: i32 = job.read("child", 0).parse().expect("a number");
        job.launcher("ranks[0].send_signal(signal.SIGUSR1)");
        job.rig.await_file(&job.name("got", 0));
        // A group is signalled in one step.
        job.tell(0, "tell('code.' + NAME, child.poll())");
        job.rig.await_file(&job.name("code", 0));
        assert_eq!(job.read("code", 0), "None", "{way}");
        assert!(job.is_there(child), "{way}");
    });
}
