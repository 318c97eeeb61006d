//! Runs cases against clusters, one cluster after the other. A cluster is up from its first case to
//! its last.
//!
//! Each case has a namespace of its own, and its state is printed when the case fails. Cases that
//! disturb the node, or measure it, run by themselves after all others.

mod disturb;
pub(crate) mod left;
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
use tokio::sync::{OnceCell, RwLock};

pub(crate) use disturb::{Daemon, Paused};
pub(crate) use product::{Build, Part, Product, READY};

/// How many cases run at once: most of the time they wait.
const AT_ONCE: usize = 4;
/// No case takes this long, unless it says so.
pub(crate) const LIMIT: Duration = Duration::from_secs(480);

type Body = fn(Scene) -> Pin<Box<dyn Future<Output = Result<()>>>>;

/// A test.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) alone: bool,
    pub(crate) limit: Duration,
    pub(crate) body: Body,
}

/// Makes a [`Case`] of an `async fn(Scene) -> Result<()>`. `alone` is for cases that must not run
/// beside others.
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

/// The input of a case.
#[derive(Clone)]
pub(crate) struct Scene {
    /// Its namespace.
    pub(crate) namespace: Namespace,
    /// The installed product.
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

/// Cases that share a cluster.
pub(crate) struct Suite {
    /// How many nodes the cluster has.
    pub(crate) nodes: u8,
    /// A node that does not report counts as lost after 12 s instead of Kubernetes' default of 50
    /// s.
    pub(crate) soon_lost: bool,
    pub(crate) cases: Vec<Case>,
}

/// The cluster of a suite, which the first request brings up, or the reason why it cannot come up.
struct Shared {
    nodes: u8,
    soon_lost: bool,
    product: OnceCell<Result<Arc<Product>, String>>,
    gate: RwLock<()>,
}

impl Shared {
    async fn product(&self) -> Result<Arc<Product>, String> {
        let install = async || match Product::install(self.nodes, self.soon_lost).await {
            Ok(product) => Ok(Arc::new(product)),
            Err(error) => Err(format!("cannot set the cluster up: {error:#}")),
        };
        self.product.get_or_init(install).await.clone()
    }
}

/// Runs only the suites whose cluster has this number of nodes.
const NODES: &str = "LOCKSTEP_TEST_NODES";

/// The whole run.
pub(crate) fn run(suites: Vec<Suite>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(AT_ONCE);
    let nodes = std::env::var(NODES).ok();
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let mut ok = true;
    for suite in suites {
        if nodes
            .as_ref()
            .is_some_and(|nodes| *nodes != suite.nodes.to_string())
        {
            continue;
        }
        ok &= run_suite(suite, &arguments, &runtime);
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// True if all cases passed.
fn run_suite(mut suite: Suite, arguments: &Arguments, runtime: &Arc<Runtime>) -> bool {
    suite.cases.sort_by_key(|case| case.alone);
    let shared = Arc::new(Shared {
        nodes: suite.nodes,
        soon_lost: suite.soon_lost,
        product: OnceCell::new(),
        gate: RwLock::new(()),
    });
    let trials = suite
        .cases
        .into_iter()
        .map(|case| {
            let (runtime, shared) = (runtime.clone(), shared.clone());
            Trial::test(short(case.name), move || runtime.block_on(attempt(case, &shared)))
        })
        .collect();
    let conclusion = libtest_mimic::run(arguments, trials);
    let mut ok = !conclusion.has_failed();
    if let Some(Ok(product)) = shared.product.get() {
        if !ok {
            eprintln!("{}", runtime.block_on(product.logs()));
        }
        if let Err(error) = runtime.block_on(Product::remove(product.clone())) {
            eprintln!("cannot take the cluster down: {error:#}");
            ok = false;
        }
    }
    ok
}

/// The name without that of the test binary.
fn short(name: &str) -> &str {
    name.split_once("::").map_or(name, |(_, rest)| rest)
}

async fn attempt(case: Case, shared: &Shared) -> Result<(), Failed> {
    let product = shared.product().await?;
    let (_exclusive, _shared) = if case.alone {
        (Some(shared.gate.write().await), None)
    } else {
        (None, Some(shared.gate.read().await))
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
    // Anything left of it goes with the cluster.
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
