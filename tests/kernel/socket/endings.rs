//! Requests that do not end well, processes that come and go, records that have no room.

use std::{collections::BTreeMap, io::Write, thread, time::Duration};

use anyhow::{Result, ensure};
use nix::sys::socket::{setsockopt, sockopt::Linger};
use tailcomb::probes::{loader::Options, socket::RECORDS};
use tailcomb_common::socket::{ABORTED, ARRIVAL_UNKNOWN, RequestRecord};
use tailcomb_tests::{
    case::{Case, Need},
    child::ServerProcess,
    http::{Server, Step, chunk, now_ns, read_until, write},
};

use super::{
    observer::{Observer, observe, start, unless_skipped, within},
    streams::SSE_HEAD,
};

pub(super) const CASES: &[Case] = &[
    Case { name: "r37_a_client_that_leaves_aborts", needs: &[Need::Kernel], run: a_client_that_leaves_aborts },
    Case { name: "r10_a_reset_before_the_answer_aborts", needs: &[Need::Kernel], run: a_reset_before_the_answer_aborts },
    Case {
        name: "socket_a_reset_after_the_answer_is_no_abort",
        needs: &[Need::Kernel],
        run: || unless_skipped(a_reset_after_the_answer_is_no_abort),
    },
    Case { name: "socket_a_server_killed_in_a_stream", needs: &[Need::Kernel], run: a_server_killed_in_a_stream },
    Case { name: "socket_a_head_that_never_ends", needs: &[Need::Kernel], run: a_head_that_never_ends },
    Case { name: "socket_a_claimed_port_makes_its_listener_a_target", needs: &[Need::Kernel], run: a_claimed_port_claims },
    Case { name: "socket_a_full_ring_is_counted", needs: &[Need::Kernel], run: a_full_ring_is_counted },
    Case { name: "r33_connections_without_a_request", needs: &[Need::Kernel], run: connections_without_a_request },
];

/// Closing it resets the connection.
fn reset(client: std::net::TcpStream) -> Result<(u64, u64)> {
    setsockopt(&client, Linger, &libc::linger { l_onoff: 1, l_linger: 0 })?;
    let begin = now_ns()?;
    drop(client);
    Ok((begin, now_ns()?))
}

fn a_client_that_leaves_aborts() -> Result<()> {
    for by_reset in [false, true] {
        let mut steps = vec![write(SSE_HEAD)];
        for _ in 0..100 {
            steps.push(write(&chunk("data: 1\n\n")));
            steps.push(Step::Wait(20));
        }
        steps.push(write("0\r\n\r\n"));
        let server = start(move |_| steps.clone())?;
        observe(|observer| {
            let mut client = server.connect()?;
            client.write_all(b"GET /stream HTTP/1.1\r\n\r\n")?;
            for _ in 0..10 {
                read_until(&mut client, b"1\n\n\r\n")?;
            }
            let left = if by_reset {
                reset(client)?
            } else {
                let begin = now_ns()?;
                drop(client);
                // Answered by a reset at the server's next write, which the script has 20 ms later; its log has when.
                (begin, server.served(1)?[0].steps.last().map_or(0, |step| step.1))
            };
            let record = observer.requests(server.port, 1)?[0];
            ensure!(record.flags & ABORTED != 0 && (9..=12).contains(&record.event_chunks), "{record:?}");
            within("end", record.end_ns, left)?;
            observer.nothing_undecoded(server.port)
        })?;
    }
    Ok(())
}

fn a_reset_before_the_answer_aborts() -> Result<()> {
    let server = start(|_| vec![Step::AwaitClient])?;
    observe(|observer| {
        for _ in 0..20 {
            let mut client = server.connect()?;
            client.write_all(b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n")?;
            thread::sleep(Duration::from_millis(10));
            let left = reset(client)?;
            let record = observer.requests(server.port, 1)?[0];
            within("end", record.end_ns, left)?;
            ensure!(record.flags & ABORTED != 0 && record.status == 0 && record.head_written_ns == 0, "{record:?}");
        }
        Ok(())
    })
}

fn a_reset_after_the_answer_is_no_abort() -> Result<()> {
    let server = start(|_| vec![write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")])?;
    observe(|observer| {
        let count = 300;
        for _ in 0..count {
            let mut client = server.connect()?;
            client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"ok")?;
            reset(client)?;
        }
        for record in observer.requests(server.port, count)? {
            ensure!(record.flags == 0 && record.status == 200, "{record:?}");
        }
        Ok(())
    })
}

fn a_server_killed_in_a_stream() -> Result<()> {
    observe(|observer| {
        // A child process: a target because its parent is one.
        let mut server = ServerProcess::start(0)?;
        let address = ("127.0.0.1", server.port);
        let mut done = std::net::TcpStream::connect(address)?;
        done.write_all(b"GET /unary HTTP/1.1\r\n\r\n")?;
        read_until(&mut done, b"ok")?;
        let mut client = std::net::TcpStream::connect(address)?;
        client.write_all(b"GET /stream HTTP/1.1\r\n\r\n")?;
        read_until(&mut client, b"1\n\n\r\n")?;
        ensure!(observer.probe.targets().processes()?.contains(&server.id()), "a child of a target is one");
        let port = server.port;
        let killed = server.kill()?;
        let records = observer.requests(port, 2)?;
        ensure!(records[0].flags == 0 && records[0].status == 200 && records[0].tgid == server.id(), "{:?}", records[0]);
        within("end", records[1].end_ns, killed)?;
        ensure!(records[1].flags & ABORTED != 0 && records[1].event_chunks == 1, "{:?}", records[1]);
        ensure!(!observer.probe.targets().processes()?.contains(&server.id()), "a dead process is no target");
        Ok(())
    })
}

fn a_head_that_never_ends() -> Result<()> {
    let server = start(|_| Vec::new())?;
    observe(|observer| {
        let mut client = server.connect()?;
        client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n")?;
        thread::sleep(Duration::from_millis(20));
        drop(client);
        let record = observer.requests(server.port, 1)?[0];
        ensure!(record.flags & ABORTED != 0 && record.head_read_ns == 0 && record.status == 0, "{record:?}");
        Ok(())
    })
}

fn a_claimed_port_claims() -> Result<()> {
    let mut observer = Observer::load(&Options::default())?;
    // Free, and used by nobody in the meantime but by the child.
    let free = std::net::TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
    observer.probe.targets().add_port(free, true)?;
    let server = ServerProcess::start(free)?;
    let mut client = std::net::TcpStream::connect(("127.0.0.1", free))?;
    client.write_all(b"GET /unary HTTP/1.1\r\n\r\n")?;
    read_until(&mut client, b"ok")?;
    let record = observer.requests(free, 1)?[0];
    ensure!(record.tgid == server.id() && record.flags & ARRIVAL_UNKNOWN == 0, "{record:?}");
    Ok(())
}

fn a_full_ring_is_counted() -> Result<()> {
    let options = Options { map_entries: BTreeMap::from([(RECORDS, 4096)]), ..Options::default() };
    let mut observer = Observer::load(&options)?;
    observer.probe.targets().add_process(std::process::id(), true)?;
    let server = Server::start(|_| vec![write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")])?;
    let mut client = server.connect()?;
    let sent = 100;
    for _ in 0..sent {
        client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        read_until(&mut client, b"ok")?;
    }
    let room = 4096 / (size_of::<RequestRecord>() + 8);
    // The last one's record comes after its answer did: the ring must not be emptied before.
    let beyond = (sent - room) as u64;
    let lost = |observer: &Observer| Ok::<_, anyhow::Error>(observer.lost()?.get("ring_full").copied().unwrap_or_default());
    for _ in 0..200 {
        if lost(&observer)? >= beyond {
            break;
        }
        thread::sleep(Duration::from_millis(25));
    }
    let records = observer.requests(server.port, room)?;
    let lost = lost(&observer)?;
    ensure!(lost == (sent - records.len()) as u64, "{} records, lost {lost}", records.len());
    // And it goes on once there is room.
    client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
    read_until(&mut client, b"ok")?;
    ensure!(observer.requests(server.port, 1)?[0].flags == 0);
    Ok(())
}

fn connections_without_a_request() -> Result<()> {
    let server = start(|_| vec![write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")])?;
    observe(|observer| {
        for _ in 0..50 {
            drop(server.connect()?);
        }
        let mut client = server.connect()?;
        client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        read_until(&mut client, b"ok")?;
        ensure!(observer.requests(server.port, 1)?[0].status == 200);
        observer.nothing_undecoded(server.port)
    })
}
