//! Writes the CustomResourceDefinition of JobSets to the Helm chart, or to the given file.

use std::error::Error;
use std::path::{Path, PathBuf};

use lockstep_api::crd;

const CHART_FILE: &str = "../../charts/lockstep/crds/jobset.x-k8s.io_jobsets.yaml";

fn main() -> Result<(), Box<dyn Error>> {
    let path = match std::env::args_os().nth(1) {
        Some(path) => PathBuf::from(path),
        None => {
            let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR").ok_or("run by cargo, or give a file")?;
            Path::new(&crate_dir).join(CHART_FILE)
        }
    };
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(&path, crd::yaml()?).map_err(|err| format!("{}: {err}", path.display()))?;
    Ok(())
}
