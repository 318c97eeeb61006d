//! The certificate of the hub, which the platform API serves too: made once per process, whoever asks first.

use std::path::PathBuf;

use kube::Client;
use tokio::sync::OnceCell;
use tonic::transport::Identity;

use super::hub::{TlsError, from_cluster, from_dir};
use crate::namespace;

/// The serving certificate and key.
pub(crate) struct HubIdentity {
    client: Client,
    namespace: String,
    /// Directory of the CA; otherwise a Secret.
    dir: Option<PathBuf>,
    made: OnceCell<Identity>,
}

impl HubIdentity {
    pub(crate) fn new(client: Client, namespace: String, dir: Option<PathBuf>) -> Self {
        Self {
            client,
            namespace,
            dir,
            made: OnceCell::new(),
        }
    }

    /// The identity, signed by the CA that clients know.
    ///
    /// # Errors
    /// [`TlsError`] where the CA cannot be had now. The next call tries again.
    pub(crate) async fn get(&self) -> Result<Identity, TlsError> {
        let make = || async {
            match &self.dir {
                Some(dir) => from_dir(dir),
                None => {
                    namespace::ensure(&self.client, &self.namespace)
                        .await
                        .map_err(Box::new)?;
                    from_cluster(&self.client, &self.namespace).await
                }
            }
        };
        self.made.get_or_try_init(make).await.cloned()
    }
}
