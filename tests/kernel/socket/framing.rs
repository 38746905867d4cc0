//! Where a request and its response begin and end.

use std::{io::Write, net::TcpStream, thread, time::Duration};

use anyhow::{Result, bail, ensure};
use tailcomb_common::socket::{ABORTED, ARRIVAL_UNKNOWN, CLOSE_DELIMITED, HEAD_CUT};
use tailcomb_tests::{
    case::{Case, Need, Tier},
    http::{Step, chunk, now_ns, read_until, write},
};

use super::observer::{observe, start, within};

pub(super) const CASES: &[Case] = &[
    Case { name: "r03_an_idle_connection_lengthens_nothing", needs: &[Need::Kernel], run: an_idle_connection_lengthens_nothing },
    Case { name: "r04_pipelined_requests_are_told_apart", needs: &[Need::Kernel], run: pipelined_requests_are_told_apart },
    Case { name: "r05_a_head_may_be_split_anywhere", needs: &[Need::Kernel], run: a_head_may_be_split_anywhere },
    Case { name: "r06_100_continue_is_no_answer", needs: &[Need::Kernel], run: a_100_continue_is_no_answer },
    Case { name: "r32_answers_without_a_body", needs: &[Need::Kernel], run: answers_without_a_body },
    Case { name: "socket_bodies_are_never_heads", needs: &[Need::Kernel], run: bodies_are_never_heads },
    Case { name: "socket_close_delimited", needs: &[Need::Kernel], run: close_delimited },
    Case { name: "socket_receive_wait", needs: &[Need::Kernel], run: receive_wait },
];

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

fn exchange(client: &mut TcpStream, request: &str, end: &str) -> Result<Vec<u8>> {
    client.write_all(request.as_bytes())?;
    read_until(client, end.as_bytes())
}

fn an_idle_connection_lengthens_nothing() -> Result<()> {
    let idle = Duration::from_secs(match Tier::of_this_run() {
        Tier::Long => 60,
        Tier::Ci => 5,
        Tier::Fast => 2,
    });
    let server = start(|_| {
        vec![
            write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Step::Wait(100),
            write(&chunk("hello")),
            Step::Wait(100),
            write("0\r\n\r\n"),
        ]
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        let mut sent = now_ns()?;
        exchange(&mut client, "GET / HTTP/1.1\r\n\r\n", "0\r\n\r\n")?;
        let first = observer.requests(server.port, 1)?[0];
        let published = now_ns()?.saturating_sub(first.end_ns);
        ensure!(published < 1_000_000_000, "published {published} ns after its end");
        thread::sleep(idle);
        let again = now_ns()?;
        exchange(&mut client, "GET / HTTP/1.1\r\n\r\n", "0\r\n\r\n")?;
        let second = observer.requests(server.port, 1)?[0];
        for (record, served) in [first, second].iter().zip(server.served(2)?) {
            within("arrival", record.arrive_ns, (sent, served.read_ns))?;
            within("end", record.end_ns, served.steps[4])?;
            sent = again;
            ensure!(record.response_bytes == 5 && record.flags == 0, "{record:?}");
        }
        ensure!(first.connection == second.connection, "one connection has one number");
        observer.nothing_undecoded(server.port)
    })
}

fn pipelined_requests_are_told_apart() -> Result<()> {
    let server = start(|path| match path {
        "/1" => vec![Step::Wait(10), write("HTTP/1.1 201 A\r\nContent-Length: 0\r\n\r\n")],
        "/2" => vec![Step::Wait(300), write("HTTP/1.1 202 B\r\nContent-Length: 0\r\n\r\n")],
        _ => vec![Step::Wait(20), write("HTTP/1.1 203 C\r\nContent-Length: 1\r\n\r\n.")],
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        let sent = now_ns()?;
        let all = "GET /1 HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\nGET /3 HTTP/1.1\r\n\r\n";
        exchange(&mut client, all, "\r\n\r\n.")?;
        let records = observer.requests(server.port, 3)?;
        let statuses: Vec<u16> = records.iter().map(|record| record.status).collect();
        ensure!(statuses == [201, 202, 203], "{statuses:?}");
        // All arrived at once, so each waited for those before it.
        let served = server.served(3)?;
        let first_read = served[0].read_ns;
        for (record, served) in records.iter().zip(&served) {
            within("arrival", record.arrive_ns, (sent, first_read))?;
            within("end", record.end_ns, served.steps[1])?;
        }
        observer.nothing_undecoded(server.port)
    })
}

fn a_head_may_be_split_anywhere() -> Result<()> {
    let server = start(|_| vec![write(OK)])?;
    let head = "POST /v1/completions HTTP/1.1\r\nHost: h\r\ncontent-LENGTH:  7\r\nX-Long: 0123456789\r\n\r\n";
    let body = "GET /no";
    observe(|observer| {
        let mut client = server.connect()?;
        let whole = format!("{head}{body}");
        for split in 1..whole.len() {
            let begin = now_ns()?;
            client.write_all(&whole.as_bytes()[..split])?;
            let sent = now_ns()?;
            thread::sleep(Duration::from_micros(300));
            client.write_all(&whole.as_bytes()[split..])?;
            read_until(&mut client, b"ok")?;
            let record = observer.requests(server.port, 1)?[0];
            within("arrival", record.arrive_ns, (begin, sent))?;
            ensure!(record.flags == 0 && record.request_bytes == 7 && record.status == 200, "split at {split}: {record:?}");
            let kept = &record.head[..usize::from(record.head_len)];
            ensure!(kept == head.as_bytes(), "split at {split}: {:?}", String::from_utf8_lossy(kept));
        }
        // A long one, a byte each 1 ms at its beginning.
        let begin = now_ns()?;
        let mut sent = 0;
        for byte in b"GET /slow HTTP" {
            client.write_all(&[*byte])?;
            if sent == 0 {
                sent = now_ns()?;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let rest = format!("/1.1\r\nCookie: {}\r\n\r\n", "c".repeat(6000));
        exchange(&mut client, &rest, "ok")?;
        let record = observer.requests(server.port, 1)?[0];
        within("arrival", record.arrive_ns, (begin, sent))?;
        ensure!(record.flags == HEAD_CUT && record.head_read_ns - record.arrive_ns > 13_000_000, "{record:?}");
        observer.nothing_undecoded(server.port)
    })
}

fn a_100_continue_is_no_answer() -> Result<()> {
    let server = start(|_| vec![Step::Wait(300), write(OK)])?;
    observe(|observer| {
        let mut client = server.connect()?;
        let begin = now_ns()?;
        let size = 2_000_000;
        let head = format!("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n");
        exchange(&mut client, &head, "Continue\r\n\r\n")?;
        let continued = now_ns()?;
        client.write_all(&vec![b'x'; size])?;
        read_until(&mut client, b"ok")?;
        let end = now_ns()?;
        let record = observer.requests(server.port, 1)?[0];
        let served = server.served(1)?[0].clone();
        within("arrival", record.arrive_ns, (begin, continued))?;
        within("body read", record.body_read_ns, (continued, served.read_ns))?;
        within("head written", record.head_written_ns, served.steps[1])?;
        within("end", record.end_ns, (served.steps[1].0, end))?;
        ensure!(record.status == 200 && record.flags == 0 && record.request_bytes == size as u64, "{record:?}");
        observer.nothing_undecoded(server.port)
    })
}

fn answers_without_a_body() -> Result<()> {
    let server = start(|path| match path {
        "/204" => vec![write("HTTP/1.1 204 No Content\r\nContent-Length: 1000\r\n\r\n")],
        "/304" => vec![write("HTTP/1.1 304 Not Modified\r\nContent-Length: 1000\r\n\r\n")],
        "/head" => vec![write("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")],
        _ => vec![Step::Wait(30), write(OK)],
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        exchange(&mut client, "HEAD /head HTTP/1.1\r\n\r\n", "\r\n\r\n")?;
        exchange(&mut client, "GET /204 HTTP/1.1\r\n\r\n", "\r\n\r\n")?;
        exchange(&mut client, "GET /304 HTTP/1.1\r\n\r\n", "\r\n\r\n")?;
        let sent = now_ns()?;
        exchange(&mut client, "GET / HTTP/1.1\r\n\r\n", "ok")?;
        let records = observer.requests(server.port, 4)?;
        let statuses: Vec<(u16, u64)> = records.iter().map(|record| (record.status, record.response_bytes)).collect();
        ensure!(statuses == [(200, 0), (204, 0), (304, 0), (200, 2)], "{statuses:?}");
        let served = server.served(4)?[3].clone();
        within("arrival of the last", records[3].arrive_ns, (sent, served.read_ns))?;
        within("its end", records[3].end_ns, served.steps[1])?;
        observer.nothing_undecoded(server.port)
    })
}

fn bodies_are_never_heads() -> Result<()> {
    let server = start(|_| vec![write(OK)])?;
    let fake = "GET /fake HTTP/1.1\r\n\r\n";
    observe(|observer| {
        let mut client = server.connect()?;
        // In a chunked body, each fake in a read of its own.
        let begin = now_ns()?;
        client.write_all(b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip,chunked\r\n\r\n")?;
        let sent = now_ns()?;
        for _ in 0..3 {
            client.write_all(format!("{:X}\r\n", fake.len()).as_bytes())?;
            thread::sleep(Duration::from_millis(2));
            client.write_all(fake.as_bytes())?;
            thread::sleep(Duration::from_millis(2));
            client.write_all(b"\r\n")?;
        }
        exchange(&mut client, "0\r\n\r\n", "ok")?;
        let record = observer.requests(server.port, 1)?[0];
        within("arrival", record.arrive_ns, (begin, sent))?;
        ensure!(record.request_bytes == 3 * fake.len() as u64 && record.flags == 0, "{record:?}");
        // In a body of known length, whose answer holds one too.
        let body = fake.repeat(5000);
        let request = format!("PUT / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        exchange(&mut client, &request, "ok")?;
        let record = observer.requests(server.port, 1)?[0];
        ensure!(record.request_bytes == body.len() as u64 && record.flags == 0, "{record:?}");
        observer.nothing_undecoded(server.port)
    })
}

fn close_delimited() -> Result<()> {
    let server = start(|_| {
        vec![
            write("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n"),
            Step::Wait(50),
            write("some text without an end"),
            Step::Wait(50),
            Step::Close,
        ]
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        client.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let record = observer.requests(server.port, 1)?[0];
        let served = server.served(1)?[0].clone();
        within("end", record.end_ns, served.steps[4])?;
        ensure!(record.flags & (ABORTED | CLOSE_DELIMITED | ARRIVAL_UNKNOWN) == CLOSE_DELIMITED, "{record:?}");
        ensure!(record.response_bytes == 24, "{record:?}");
        Ok(())
    })
}

fn receive_wait() -> Result<()> {
    // The second request arrives while the server is busy with the first.
    let server = start(|_| vec![Step::Wait(200), write(OK)])?;
    observe(|observer| {
        for round in 0..5 {
            let mut client = server.connect()?;
            client.write_all(b"GET /1 HTTP/1.1\r\n\r\n")?;
            thread::sleep(Duration::from_millis(100));
            let sent = now_ns()?;
            client.write_all(b"GET /2 HTTP/1.1\r\n\r\n")?;
            let done = now_ns()?;
            read_until(&mut client, b"ok")?;
            read_until(&mut client, b"ok")?;
            let records = observer.requests(server.port, 2)?;
            let served = server.served(2 * (round + 1))?;
            let [first, second] = &served[2 * round..] else { bail!("{} served in round {round}", served.len()) };
            within("arrival of the second", records[1].arrive_ns, (sent, done))?;
            if first.read_ns >= sent {
                // An emulated machine was so slow that the server read both at once: nothing waited.
                continue;
            }
            within("its first read", records[1].first_read_ns, (first.steps[1].1, second.read_ns))?;
            within("its end", records[1].end_ns, second.steps[1])?;
            return Ok(());
        }
        bail!("the server never read the first request before the second was sent")
    })
}
