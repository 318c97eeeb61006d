//! `kubectl lockstep`: why, when and how fast a JobSet restarted, and whether the installation is
//! healthy.
//!
//! ```text
//! fetch (API server, platform API) ──> what was observed ──> view (pure: rows and verdicts) ──> print (text, JSON, YAML)
//! ```
//!
//! Promises: the plugin needs only the caller's kubeconfig, and says what it could not learn and
//! what to do about it. What is not known is not shown. Reading commands change nothing. Standard
//! output holds only the answer.

mod args;
mod commands;
mod fetch;
mod print;
mod view;

use std::process::ExitCode;

use clap::Parser as _;

use args::Args;

/// The arguments are invalid (sysexits.h, EX_USAGE).
const USAGE: u8 = 64;
/// Environment variable with a token for the platform API.
const TOKEN: &str = "LOCKSTEP_TOKEN";

fn main() -> ExitCode {
    let mut args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            // Help and version are answers, not mistakes.
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    args.cluster = args.cluster.or_token(std::env::var(TOKEN).ok());
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            print::error(&error.to_string());
            return ExitCode::from(commands::FAILED);
        }
    };
    let ended = runtime.block_on(commands::run(args));
    // Does not wait for requests that are still under way.
    runtime.shutdown_background();
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            print::error(&format!("{error:#}"));
            ExitCode::from(commands::FAILED)
        }
    }
}
