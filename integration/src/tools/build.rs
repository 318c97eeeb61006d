//! Builds Go modules into the cache.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::catalog::Module;
use super::{ToolError, module_dir, packages};
use crate::progress::Progress;

/// How often a build reports its progress.
const SAY_EVERY: Duration = Duration::from_secs(15);
/// Number of last lines of a failed build that are shown.
const LOG_LINES: usize = 40;

/// The folder under `cache` with the module's programs, which are built if they are missing. Builds
/// of several processes wait for each other. An interrupted build is not taken for a finished one.
pub(super) async fn cached_or_built(
    cache: &Path,
    module: &'static Module,
    progress: &Progress,
) -> Result<PathBuf, ToolError> {
    let source = module_dir(module);
    let finished = cache.join(format!("{}-{}", module.name, key(module, &source)?));
    if complete(&finished, module) {
        return Ok(finished);
    }
    fs::create_dir_all(cache).map_err(io(cache))?;
    let _lock = lock(cache, module, progress).await?;
    if complete(&finished, module) {
        return Ok(finished);
    }
    packages::check(packages::Purpose::Build)?;
    let scratch = tempfile::Builder::new()
        .prefix(&format!(".{}-", module.name))
        .tempdir_in(cache)
        .map_err(io(cache))?;
    go_build(module, &source, scratch.path(), progress).await?;
    if finished.exists() {
        fs::remove_dir_all(&finished).map_err(io(&finished))?;
    }
    let scratch = scratch.keep();
    fs::rename(&scratch, &finished).map_err(io(&finished))?;
    Ok(finished)
}

/// A hash of all inputs of the build.
pub(super) fn key(module: &Module, source: &Path) -> Result<String, ToolError> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum", "tools.go"] {
        let path = source.join(file);
        hash.update(fs::read(&path).map_err(io(&path))?);
    }
    hash.update(format!(
        "{} {} {} {}",
        module.cgo,
        module.tags,
        module.ldflags,
        std::env::consts::ARCH
    ));
    for tool in module.tools {
        hash.update(tool.package);
    }
    Ok(hash.finalize()[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

fn complete(dir: &Path, module: &Module) -> bool {
    module.tools.iter().all(|tool| dir.join(tool.name).is_file())
}

async fn lock(cache: &Path, module: &Module, progress: &Progress) -> Result<File, ToolError> {
    let path = cache.join(format!(".{}.lock", module.name));
    let file = File::create(&path).map_err(io(&path))?;
    let mut reported = false;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(fs::TryLockError::Error(source)) => return Err(ToolError::Io { path, source }),
            Err(fs::TryLockError::WouldBlock) if !reported => {
                progress.say(format_args!("waiting for another build of {}", module.name));
                reported = true;
            }
            Err(fs::TryLockError::WouldBlock) => {}
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

async fn go_build(
    module: &'static Module,
    source: &Path,
    into: &Path,
    progress: &Progress,
) -> Result<(), ToolError> {
    let names: Vec<_> = module.tools.iter().map(|tool| tool.name).collect();
    let what = names.join(", ");
    progress.say(format_args!(
        "building {what} (about {} s when nothing is cached)",
        module.cold_seconds
    ));
    let started = Instant::now();
    let mut child = Command::new("go")
        .current_dir(source)
        .args([
            "build",
            "-v",
            "-tags",
            module.tags,
            // The linker drops debug information anyway; not generating it saves a tenth of the
            // time.
            "-gcflags=all=-dwarf=false",
            "-ldflags",
            module.ldflags,
            "-o",
        ])
        .arg(output_arg(module, into))
        .args(module.tools.iter().map(|tool| tool.package))
        .env("CGO_ENABLED", if module.cgo { "1" } else { "0" })
        .env("GOWORK", "off")
        .env("GOFLAGS", "-mod=readonly")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(io(Path::new("go")))?;
    let mut log = VecDeque::new();
    let mut packages = 0_usize;
    if let Some(stderr) = child.stderr.take() {
        let mut lines = BufReader::new(stderr).lines();
        let mut tick = tokio::time::interval(SAY_EVERY);
        tick.tick().await;
        loop {
            tokio::select! {
                line = lines.next_line() => {
                    let Some(line) = line.map_err(io(Path::new("go")))? else { break };
                    packages += 1;
                    log.push_back(line);
                    if log.len() > LOG_LINES {
                        log.pop_front();
                    }
                }
                _ = tick.tick() => progress.say(format_args!(
                    "building {}: {} s of about {} s, {packages} packages",
                    module.name, started.elapsed().as_secs(), module.cold_seconds,
                )),
            }
        }
    }
    let status = child.wait().await.map_err(io(Path::new("go")))?;
    if !status.success() {
        let log = log.into_iter().collect::<Vec<_>>().join("\n");
        return Err(ToolError::Build {
            module: module.name,
            status,
            log,
        });
    }
    progress.say(format_args!(
        "built {what} in {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// `go build` names a program after its package. This is wrong only for a module with one program
/// whose package has another name.
fn output_arg(module: &Module, into: &Path) -> OsString {
    let mut arg = into.as_os_str().to_owned();
    arg.push("/");
    if let [only] = module.tools {
        arg.push(only.name);
    }
    arg
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ToolError {
    let path = path.to_owned();
    move |source| ToolError::Io { path, source }
}
