//! One connection to NRI.
//!
//! ```text
//! connect ──RegisterPlugin──> Configure ──> Synchronize ──> CreateContainer, RunPodSandbox, RemoveContainer, RemovePodSandbox …
//! ```
//!
//! containerd serialises its calls over all pods and drops a plugin that takes longer than 2 s. So
//! every answer comes from memory, and calls are answered one by one, in order. A lost connection
//! costs only the injection into containers created meanwhile: Synchronize reports the rest.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use lockstep_proto::nri::v1alpha1 as wire;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tracing::{debug, info};

use super::mux;
use super::ttrpc::{self, Kind, Request, Response};
use crate::agents::sockets::Sockets;
use crate::install::Installed;
use crate::worker::driver::{Closed, Handle};

mod calls;
mod slim;

pub use calls::TooOld;
use calls::{Answer, CallError, Parts};

const NAME: &str = "lockstep";
const INDEX: &str = "10";
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// Stream of the one call that the plugin makes.
const REGISTER: u32 = 1;
/// Limit for a write, and for the rest of a message: an NRI that takes longer hangs.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// Read or write failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not the multiplexer's protocol.
    #[error(transparent)]
    Mux(#[from] mux::TooLarge),
    /// Not ttrpc.
    #[error(transparent)]
    Ttrpc(#[from] ttrpc::TooLarge),
    /// The answer to RegisterPlugin is malformed.
    #[error("malformed answer: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// NRI rejects the plugin.
    #[error("NRI refuses the plugin: {0}")]
    Refused(String),
    /// NRI no longer reads.
    #[error("NRI does not read answers")]
    Stuck,
    /// The rest of a message does not come.
    #[error("NRI has stopped in the middle of a message")]
    CutShort,
    /// NRI cannot do what the daemon needs.
    #[error(transparent)]
    TooOld(#[from] TooOld),
    /// The daemon is going down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The plugin, with what it needs to answer calls.
pub struct Plugin {
    /// Sends facts to the driver.
    pub workers: Handle,
    /// The pods' sockets.
    pub sockets: Arc<Sockets>,
    /// The agent binary on the host.
    pub agent: Installed,
}

impl Plugin {
    /// Serves one connection to its end.
    ///
    /// # Errors
    /// When it ends other than by containerd closing it.
    pub async fn serve(&self, mut stream: UnixStream) -> Result<(), PluginError> {
        let mut input = BytesMut::with_capacity(64 * 1024);
        let mut calls = BytesMut::new();
        let mut answers = BytesMut::new();
        let mut parts = Parts::default();
        send(&mut stream, mux::RUNTIME, &register()?).await?;
        loop {
            let begun = !(input.is_empty() && calls.is_empty() && answers.is_empty());
            let read = stream.read_buf(&mut input);
            let size = if begun {
                tokio::time::timeout(IO_TIMEOUT, read)
                    .await
                    .map_err(|_| PluginError::CutShort)?
            } else {
                read.await
            };
            if size? == 0 {
                return Ok(());
            }
            while let Some((connection, bytes)) = mux::decode(&mut input)? {
                match connection {
                    mux::PLUGIN => calls.extend_from_slice(&bytes),
                    mux::RUNTIME => answers.extend_from_slice(&bytes),
                    _ => debug!(connection, "bytes on an unknown NRI connection"),
                }
            }
            while let Some(message) = ttrpc::decode(&mut answers)? {
                if message.kind == Kind::Response && message.stream == REGISTER {
                    registered(&Response::decode(message.payload)?)?;
                }
            }
            while let Some(message) = ttrpc::decode(&mut calls)? {
                if message.kind == Kind::Request {
                    let response = self.respond(message.payload, &mut parts).await?;
                    send(
                        &mut stream,
                        mux::PLUGIN,
                        &ttrpc::response(message.stream, &response)?,
                    )
                    .await?;
                }
            }
        }
    }

    async fn respond(&self, payload: Bytes, parts: &mut Parts) -> Result<Response, PluginError> {
        let begun = Instant::now();
        let request = match Request::decode(payload) {
            Ok(request) => request,
            Err(error) => return Ok(Response::error(ttrpc::INVALID_ARGUMENT, error.to_string())),
        };
        let answer = if request.service == PLUGIN_SERVICE {
            self.call(&request.method, request.payload, parts).await
        } else {
            Ok(Answer::Unknown)
        };
        debug!(
            method = request.method,
            micros = begun.elapsed().as_micros(),
            "NRI call"
        );
        match answer {
            Ok(Answer::Result(payload)) => Ok(Response::ok(payload)),
            Ok(Answer::Unknown) => Ok(Response::error(
                ttrpc::UNIMPLEMENTED,
                format!("{}/{} is not implemented", request.service, request.method),
            )),
            Err(CallError::Malformed(error)) => Ok(Response::error(
                ttrpc::INVALID_ARGUMENT,
                format!("{}: {error}", request.method),
            )),
            Err(CallError::TooOld(version)) => Err(version.into()),
            Err(CallError::Closed(closed)) => Err(closed.into()),
        }
    }
}

fn register() -> Result<BytesMut, ttrpc::TooLarge> {
    let argument = wire::RegisterPluginRequest {
        plugin_name: NAME.to_owned(),
        plugin_idx: INDEX.to_owned(),
        nri_version: String::new(),
    };
    let call = Request {
        service: RUNTIME_SERVICE.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: argument.encode_to_vec().into(),
        timeout_nano: 0,
    };
    ttrpc::request(REGISTER, &call)
}

fn registered(response: &Response) -> Result<(), PluginError> {
    match &response.status {
        Some(status) if status.code != 0 => Err(PluginError::Refused(status.message.clone())),
        _ => {
            info!("registered with NRI");
            Ok(())
        }
    }
}

async fn send(stream: &mut UnixStream, connection: u32, message: &[u8]) -> Result<(), PluginError> {
    let mut out = BytesMut::new();
    mux::encode(connection, message, &mut out);
    tokio::time::timeout(IO_TIMEOUT, stream.write_all(&out))
        .await
        .map_err(|_| PluginError::Stuck)??;
    Ok(())
}

#[cfg(test)]
mod tests;
