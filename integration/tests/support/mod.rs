//! Runs cases against one cluster that is brought up before the first and taken down after the last.
//!
//! Each case has a namespace of its own, whose state is printed when the case fails. Cases that disturb the node, or measure it,
//! run alone: they wait until all others are done.

mod disturb;
mod product;

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use futures::FutureExt;
use libtest_mimic::{Arguments, Failed, Trial};
use lockstep_integration::harness::{Access, Group, Manifest, Namespace};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

pub(crate) use disturb::{Daemon, Paused};
pub(crate) use product::{Part, Product};

/// How many cases run at once: they wait most of the time.
const AT_ONCE: usize = 5;
/// No case takes this long, unless it says so.
pub(crate) const LIMIT: Duration = Duration::from_secs(240);

type Body = fn(Scene) -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// A test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) alone: bool,
    pub(crate) limit: Duration,
    pub(crate) body: Body,
}

/// Makes a [`Case`] of an `async fn(Scene) -> Result<()>`. `alone` is for those that bear no others beside them.
macro_rules! case {
    ($body:ident) => {
        case!($body, false)
    };
    ($body:ident alone) => {
        case!($body, true)
    };
    ($body:ident, $alone:expr) => {
        $crate::support::Case {
            name: concat!(module_path!(), "::", stringify!($body)),
            alone: $alone,
            limit: $crate::support::LIMIT,
            body: |scene| Box::pin($body(scene)),
        }
    };
}
pub(crate) use case;

/// What a case works with.
#[derive(Clone)]
pub(crate) struct Scene {
    /// Its namespace.
    pub(crate) namespace: Namespace,
    /// The product, where it is installed.
    pub(crate) product: Arc<Product>,
}

impl Scene {
    /// Applies a JobSet.
    pub(crate) async fn apply(&self, manifest: &Manifest) -> Result<Group> {
        Group::apply(&self.namespace, manifest).await
    }

    /// How to reach the cluster.
    pub(crate) fn access(&self) -> &Access {
        &self.namespace.access
    }
}

/// The whole run.
pub(crate) fn run(mut cases: Vec<Case>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    cases.sort_by_key(|case| case.alone);
    if arguments.list {
        return libtest_mimic::run(&arguments, cases.into_iter().map(listed).collect()).exit_code();
    }
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let product = match runtime.block_on(Product::install()) {
        Ok(product) => Arc::new(product),
        Err(error) => {
            eprintln!("cannot set the cluster up: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let gate = Arc::new(RwLock::new(()));
    let trials = cases
        .into_iter()
        .map(|case| {
            let (runtime, product, gate) = (runtime.clone(), product.clone(), gate.clone());
            Trial::test(short(case.name), move || {
                runtime.block_on(attempt(case, product, gate))
            })
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if conclusion.has_failed() {
        eprintln!("{}", runtime.block_on(product.logs()));
    }
    if let Err(error) = runtime.block_on(Product::remove(product)) {
        eprintln!("cannot take the cluster down: {error:#}");
        return ExitCode::FAILURE;
    }
    conclusion.exit_code()
}

fn listed(case: Case) -> Trial {
    Trial::test(short(case.name), || Ok(()))
}

/// The name without that of the test binary.
fn short(name: &str) -> &str {
    name.split_once("::").map_or(name, |(_, rest)| rest)
}

async fn attempt(case: Case, product: Arc<Product>, gate: Arc<RwLock<()>>) -> Result<(), Failed> {
    let (_exclusive, _shared) = if case.alone {
        (Some(gate.write().await), None)
    } else {
        (None, Some(gate.read().await))
    };
    let start = Instant::now();
    let namespace = product
        .access()
        .namespace("test")
        .await
        .map_err(|error| format!("{error:#}"))?;
    let scene = Scene {
        namespace: namespace.clone(),
        product,
    };
    let body = AssertUnwindSafe((case.body)(scene)).catch_unwind();
    let result = match tokio::time::timeout(case.limit, body).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) => Err(anyhow!("it panicked, see above")),
        Err(_) => Err(anyhow!("not done after {} s", case.limit.as_secs())),
    };
    let seconds = start.elapsed().as_secs_f64();
    let dump = match &result {
        Ok(()) => String::new(),
        Err(_) => namespace.dump().await,
    };
    // What is left of it goes with the cluster.
    let _ = namespace.delete().await;
    match result {
        Ok(()) => {
            println!("     {} took {seconds:.1} s", short(case.name));
            Ok(())
        }
        Err(error) => Err(format!(
            "{error:#}\nafter {seconds:.1} s, in namespace {}:\n{dump}",
            namespace.name
        )
        .into()),
    }
}
