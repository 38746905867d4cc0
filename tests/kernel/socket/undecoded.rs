//! What is not decoded is counted by its reason; what is not a server's is not measured.

use std::{
    io::Write,
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Result, ensure};
use tailcomb::probes::loader::Options;
use tailcomb_common::socket::{ABORTED, ARRIVAL_UNKNOWN};
use tailcomb_tests::{
    case::{Case, Need},
    http::{Server, Step, chunk, read_until, write},
};

use super::{
    observer::{Observer, observe, start, tolerance_ns},
    streams::SSE_HEAD,
};

pub(super) const CASES: &[Case] = &[
    Case { name: "socket_tls_and_others_are_counted", needs: &[Need::Kernel], run: tls_and_others_are_counted },
    Case { name: "socket_what_stops_being_http_is_counted", needs: &[Need::Kernel], run: what_stops_being_http_is_counted },
    Case { name: "r23_a_proxy_is_measured_as_a_server_only", needs: &[Need::Kernel], run: a_proxy_is_measured_as_a_server_only },
    Case { name: "socket_connections_older_than_the_probe", needs: &[Need::Kernel], run: connections_older_than_the_probe },
    Case { name: "socket_not_a_target_not_measured", needs: &[Need::Kernel], run: not_a_target_not_measured },
];

fn tls_and_others_are_counted() -> Result<()> {
    let server = start(|_| vec![write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")])?;
    let cases: [(&[u8], &str); 4] = [
        // A ClientHello's first bytes.
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "tls"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "http2"),
        (b"\x00\x01\x02\x03 not known", "unknown"),
        (b"hello there, no version\r\n\r\n", "unknown"),
    ];
    observe(|observer| {
        for (bytes, reason) in cases {
            let mut client = server.connect()?;
            client.write_all(bytes)?;
            let found = observer.undecoded(server.port)?;
            ensure!(found == [reason], "{found:?} instead of {reason}");
            // Nothing of that connection is followed any more.
            client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        }
        let mut client = server.connect()?;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        read_until(&mut client, b"ok")?;
        observer.requests(server.port, 1)?;
        Ok(())
    })
}

fn what_stops_being_http_is_counted() -> Result<()> {
    let server = start(|path| match path {
        "/chunk" => vec![
            write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            write("5\r\nhellothen no line end\r\n"),
            Step::Close,
        ],
        _ => vec![write("no status line at all\r\n\r\n"), Step::Close],
    })?;
    observe(|observer| {
        let before = observer.lost()?;
        for path in ["/chunk", "/head"] {
            let mut client = server.connect()?;
            client.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())?;
            let found = observer.undecoded(server.port)?;
            ensure!(found == ["desync"], "{path}: {found:?}");
        }
        observer.requests(server.port, 0)?;
        // Each was counted once: as undecoded.
        let after = observer.lost()?;
        ensure!(after == before, "lost {before:?}, then {after:?}");
        Ok(())
    })
}

fn a_proxy_is_measured_as_a_server_only() -> Result<()> {
    let backend = start(|_| vec![Step::Wait(100), write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")])?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let back = backend.port;
    thread::spawn(move || -> Result<()> {
        for stream in listener.incoming() {
            let mut front = stream?;
            let head = read_until(&mut front, b"\r\n\r\n")?;
            let mut upstream = TcpStream::connect((Ipv4Addr::LOCALHOST, back))?;
            upstream.write_all(&head)?;
            let answer = read_until(&mut upstream, b"ok")?;
            front.write_all(&answer)?;
        }
        Ok(())
    });
    observe(|observer| {
        for _ in 0..5 {
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
            client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"ok")?;
        }
        let front = observer.requests(port, 5)?;
        let behind = observer.requests(back, 5)?;
        for (outer, inner) in front.iter().zip(&behind) {
            // An end is stamped when its write returns: the proxy may have answered before the backend's thread comes that far.
            let late = inner.end_ns.saturating_sub(outer.end_ns);
            ensure!(outer.arrive_ns < inner.arrive_ns && late < tolerance_ns(), "{outer:?} is not around {inner:?}");
        }
        observer.nothing_undecoded(port)?;
        observer.nothing_undecoded(back)
    })
}

fn connections_older_than_the_probe() -> Result<()> {
    let loaded = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&loaded);
    let server = Server::start(move |path| match path {
        "/stream" => vec![
            write(SSE_HEAD),
            write(&chunk("data: 1\n\n")),
            Step::Until(Arc::clone(&until)),
            write(&chunk("data: 2\n\n")),
            write("0\r\n\r\n"),
        ],
        _ => vec![Step::Wait(20), write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")],
    })?;
    let mut streaming = server.connect()?;
    streaming.write_all(b"GET /stream HTTP/1.1\r\n\r\n")?;
    let mut idle = server.connect()?;
    idle.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    read_until(&mut idle, b"ok")?;
    let mut observer = Observer::load(&Options::default())?;
    observer.probe.targets().add_process(std::process::id(), true)?;
    observer.probe.targets().add_port(server.port, false)?;
    // Without the hooks inside the calls, a read that was entered before is not seen: of that request only the answer is.
    let inside = observer.uses("sock_recv_length");
    if !inside {
        idle.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        read_until(&mut idle, b"ok")?;
        let found = observer.undecoded(server.port)?;
        ensure!(found == ["mid_stream"], "{found:?}");
    }
    // An old connection is followed from its next request on; where it was not known before, the arrival is not either.
    for turn in 0..2 {
        idle.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        read_until(&mut idle, b"ok")?;
        let record = observer.requests(server.port, 1)?[0];
        let expected = if turn == 0 && inside { ARRIVAL_UNKNOWN } else { 0 };
        ensure!(record.flags == expected && record.status == 200, "{record:?}");
    }
    // One in the middle of an answer is counted, and followed from the next request on too.
    loaded.store(true, Ordering::Release);
    read_until(&mut streaming, b"0\r\n\r\n")?;
    let found = observer.undecoded(server.port)?;
    ensure!(found == ["mid_stream"], "{found:?}");
    streaming.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    read_until(&mut streaming, b"ok")?;
    let record = observer.requests(server.port, 1)?[0];
    ensure!(record.flags & ABORTED == 0 && record.status == 200, "{record:?}");
    observer.nothing_undecoded(server.port)
}

fn not_a_target_not_measured() -> Result<()> {
    let mut observer = Observer::load(&Options::default())?;
    let server = Server::start(|_| vec![write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")])?;
    let mut client = server.connect()?;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    read_until(&mut client, b"ok")?;
    thread::sleep(Duration::from_millis(50));
    observer.requests(server.port, 0)?;
    // `all` needs no target.
    let mut everything = Observer::load(&Options { globals: [(tailcomb::probes::socket::ALL, 1)].into(), ..Options::default() })?;
    let mut client = server.connect()?;
    client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    read_until(&mut client, b"ok")?;
    ensure!(everything.requests(server.port, 1)?[0].flags == 0);
    Ok(())
}
