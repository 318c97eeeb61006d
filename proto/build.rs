//! Compiles the `.proto` files with protox, so that no `protoc` is needed on the machine.

use std::error::Error;
use std::path::Path;

use prost::Message as _;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=lockstep");
    println!("cargo:rerun-if-changed=vendor");

    let agent = protox::compile(["lockstep/agent/v1/agent.proto"], ["."])?;
    // NRI is ttrpc, not gRPC: the node daemon dispatches its services by hand, so only its messages
    // are needed.
    let nri = protox::compile(["vendor/nri/api.proto"], ["."])?;
    let messages = || {
        tonic_prost_build::configure()
            .build_server(false)
            .build_client(false)
    };
    messages().compile_fds(agent)?;
    messages().compile_fds(nri)?;

    let node = protox::compile(["lockstep/node/v1/hub.proto"], ["."])?;
    // No generated `connect`: it would clash with the method of that name, and the channel is made
    // by its user anyway.
    tonic_prost_build::configure()
        .build_transport(false)
        .codec_path("crate::bounded::BoundedCodec")
        .compile_fds(node)?;
    let platform = protox::compile(["lockstep/platform/v1/platform.proto"], ["."])?;
    // Served by the reflection API, with comments.
    let described = Path::new(&std::env::var("OUT_DIR")?).join("platform.binpb");
    std::fs::write(described, platform.encode_to_vec())?;
    tonic_prost_build::configure()
        .build_transport(false)
        .compile_fds(platform)?;
    let cri = protox::compile(["vendor/cri/api.proto"], ["."])?;
    tonic_prost_build::configure()
        .build_server(false)
        .extern_path(".runtime.v1.PodSandbox", "crate::pod_sandbox::PodSandbox")
        .compile_fds(cri)?;
    Ok(())
}
