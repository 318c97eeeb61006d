//! A task that panics takes the process with it, as it does in release builds, where panics abort:
//! what it owned would be looked after by nobody. Who is started next begins with what is durable.

use std::panic;
use std::process;

/// From now on a panic in any thread ends this process, after it was reported.
pub fn end_the_process() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::{env, future};

    use nix::sys::signal::Signal;

    use super::*;

    const NAME: &str = "telemetry::panics::tests::a_task_that_panics_ends_the_process";
    const CHILD: &str = "LOCKSTEP_TEST_PANICS";

    #[test]
    fn a_task_that_panics_ends_the_process() {
        if env::var_os(CHILD).is_some() {
            return panic_in_a_task();
        }
        let this = env::current_exe().unwrap();
        let child = Command::new(this)
            .args([NAME, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(Signal::SIGABRT as i32), "{said}");
        assert!(said.contains("a task of many"), "{said}");
    }

    fn panic_in_a_task() {
        end_the_process();
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        runtime.spawn(async { panic!("a task of many") });
        runtime.block_on(future::pending::<()>());
    }
}
