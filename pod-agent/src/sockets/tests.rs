use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};

use super::*;

#[test]
fn who_handles_sigterm_is_known_by_its_masks() {
    let status = |blocked: &str, ignored: &str, caught: &str| {
        format!("Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n")
    };
    let (none, term) = ("0000000000000000", "0000000000004000");
    assert!(is_default(&status(none, none, "ffffffffffffbfff")));
    for (blocked, ignored, caught) in [(term, none, none), (none, term, none), (none, none, term)] {
        assert!(!is_default(&status(blocked, ignored, caught)));
    }
    for odd in [
        "",
        "SigBlk:\t0\nSigIgn:\t0\n",
        "SigBlk:\t0\nSigIgn:\t0\nSigCgt:\tx\n",
    ] {
        assert!(!is_default(odd), "{odd:?}");
    }
}

#[test]
fn under_a_seccomp_profile_nothing_is_tried() {
    assert!(is_unfiltered("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
    assert!(is_unfiltered("Name:\tx\n"));
    assert!(!is_unfiltered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
}

/// Whether the other side of a connection sees it reset when this side closes it.
fn is_reset(mut other: TcpStream) -> bool {
    match other.read(&mut [0; 1]) {
        Ok(0) => false,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
        other => panic!("{other:?}"),
    }
}

/// One test, because each has its own sockets changed by the others.
#[test]
fn connections_that_would_keep_a_port_are_reset_and_others_closed() {
    accepted();
    left_by_the_other_side();
}

fn accepted() {
    let own = std::process::id().cast_signed();
    let (server, elsewhere) = (listen(), listen());
    for doomed in [false, true] {
        let client = TcpStream::connect(server.local_addr().expect("its address")).expect("connect");
        let (accepted, _) = server.accept().expect("accept");
        let out = TcpStream::connect(elsewhere.local_addr().expect("its address")).expect("connect");
        let (far, _) = elsewhere.accept().expect("accept");
        // Only the server's process, which is this one, listens at these ports; `out` stands for what it has connected to.
        let proc = Path::new("/proc");
        reset_at_end(proc, &[own], |_| doomed);
        drop(accepted);
        assert_eq!(is_reset(client), doomed);
        drop(out);
        assert!(!is_reset(far));
    }
}

fn left_by_the_other_side() {
    let own = std::process::id().cast_signed();
    let server = listen();
    let client = TcpStream::connect(server.local_addr().expect("its address")).expect("connect");
    let (accepted, _) = server.accept().expect("accept");
    accepted.shutdown(std::net::Shutdown::Write).expect("close it");
    let mut buffer = [0; 1];
    assert_eq!((&client).read(&mut buffer).expect("its end"), 0);
    let socket = client.as_fd();
    assert!(sys::tcp(socket).is_some_and(|tcp| tcp.is_left && !tcp.listens));
    reset_at_end(Path::new("/proc"), &[own], |_| true);
    drop(client);
    assert!(is_reset(accepted));
}

fn listen() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("bind")
}
