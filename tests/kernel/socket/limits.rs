//! Much of everything: what is followed whatever its size, and where there is a limit, what it costs is counted and no more.

use std::{io::Write, thread, time::Duration};

use anyhow::{Context, Result, ensure};
use tailcomb_common::socket::{HEAD_CUT, SSE};
use tailcomb_tests::{
    case::{Case, Need},
    http::{Step, chunk, read_until, write},
};

use super::{
    observer::{observe, start, unless_skipped, within},
    streams::SSE_HEAD,
};

const fn case(name: &'static str, run: fn() -> Result<()>) -> Case {
    Case { name, needs: &[Need::Kernel], run }
}

pub(super) const CASES: &[Case] = &[
    case("r21_sixteen_requests_may_wait", || unless_skipped(sixteen_requests_may_wait)),
    case("socket_pipelined_beyond_the_room_are_counted", || unless_skipped(pipelined_beyond_the_room)),
    case("socket_heads_of_64_kib", || unless_skipped(heads_of_64_kib)),
    case("socket_hundreds_of_chunks_in_a_write", || unless_skipped(hundreds_of_chunks_in_a_write)),
    case("socket_a_thousand_pieces_in_a_write", || unless_skipped(a_thousand_pieces_in_a_write)),
    case("socket_a_mebibyte_in_a_write", || unless_skipped(a_mebibyte_in_a_write)),
    case("socket_a_loss_ends_with_its_request", || unless_skipped(a_loss_ends_with_its_request)),
    case("socket_an_answer_to_nothing_ends_nothing", || unless_skipped(an_answer_to_nothing)),
    case("socket_a_loss_under_pipelining_shifts_nothing", || unless_skipped(a_loss_under_pipelining)),
];

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

/// Answers `/N` with a status that tells N.
fn numbered(path: &str) -> Vec<Step> {
    let number: u16 = path.trim_start_matches('/').parse().unwrap_or(0);
    let wait = if number == 0 { 100 } else { 1 };
    vec![Step::Wait(wait), write(&format!("HTTP/1.1 {} N\r\nContent-Length: 2\r\n\r\nok", 400 + number))]
}

fn sixteen_requests_may_wait() -> Result<()> {
    let server = start(|path| match path {
        // The answer to a HEAD describes a body that does not come.
        "/7" => vec![write("HTTP/1.1 407 N\r\nContent-Length: 2\r\n\r\n")],
        _ => numbered(path),
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        for round in 0..3 {
            let all: String = (0..16)
                .map(|number| format!("{} /{number} HTTP/1.1\r\nX: {round}\r\n\r\n", if number == 7 { "HEAD" } else { "GET" }))
                .collect();
            client.write_all(all.as_bytes())?;
            for _ in 0..15 {
                read_answer(&mut client)?;
            }
            let records = observer.requests(server.port, 16)?;
            let served = server.served(16 * (round + 1))?;
            for (number, (record, served)) in records.iter().zip(&served[16 * round..]).enumerate() {
                ensure!(usize::from(record.status) == 400 + number && record.flags == 0, "{number}: {record:?}");
                let kept = String::from_utf8_lossy(&record.head[..usize::from(record.head_len)]).into_owned();
                ensure!(kept.contains(&format!(" /{number} ")), "{number}: {kept}");
                within("end", record.end_ns, *served.steps.last().context("a step")?)?;
            }
        }
        observer.nothing_undecoded(server.port)
    })
}

/// Reads up to the next answer's body. Bytes behind it may come along: the answers have one end, so they are counted by it.
fn read_answer(client: &mut std::net::TcpStream) -> Result<()> {
    use std::io::Read;
    let mut last = [0u8; 2];
    let mut byte = [0u8; 1];
    while &last != b"ok" {
        client.read_exact(&mut byte)?;
        last = [last[1], byte[0]];
    }
    Ok(())
}

fn pipelined_beyond_the_room() -> Result<()> {
    let server = start(numbered)?;
    observe(|observer| {
        let mut client = server.connect()?;
        let all: String = (0..100).map(|number| format!("GET /{number} HTTP/1.1\r\n\r\n")).collect();
        client.write_all(all.as_bytes())?;
        for _ in 0..100 {
            read_answer(&mut client)?;
        }
        let records = observer.requests(server.port, 32)?;
        let statuses: Vec<u16> = records.iter().map(|record| record.status).collect();
        ensure!(statuses == (400..432).collect::<Vec<u16>>(), "{statuses:?}");
        let found = observer.undecoded(server.port)?;
        ensure!(found == ["pipelined"; 68], "{} of {found:?}", found.len());
        // What comes then is measured as ever.
        for number in 1..4 {
            client.write_all(format!("GET /{number} HTTP/1.1\r\n\r\n").as_bytes())?;
            read_answer(&mut client)?;
            let record = observer.requests(server.port, 1)?[0];
            ensure!(record.status == 400 + number && record.flags == 0, "{record:?}");
        }
        observer.nothing_undecoded(server.port)
    })
}

fn heads_of_64_kib() -> Result<()> {
    let server = start(|_| vec![write(&format!("HTTP/1.1 200 OK\r\n{}Content-Length: 2\r\n\r\nok", cookies(60_000)))])?;
    observe(|observer| {
        let mut client = server.connect()?;
        for size in [700, 16_000, 30_000, 65_536, 100_000] {
            let head = format!("POST /v1/completions HTTP/1.1\r\n{}Content-Length: 5\r\n\r\n", cookies(size));
            client.write_all(format!("{head}hello").as_bytes())?;
            read_until(&mut client, b"\r\n\r\nok")?;
            let record = observer.requests(server.port, 1)?[0];
            ensure!(record.flags == HEAD_CUT && record.status == 200, "{size}: {record:?}");
            ensure!(record.request_bytes == 5 && record.response_bytes == 2, "{size}: {record:?}");
            ensure!(head.as_bytes().starts_with(&record.head), "{size}: {:?}", String::from_utf8_lossy(&record.head));
        }
        observer.nothing_undecoded(server.port)
    })
}

/// Header lines of all lengths, `size` bytes together.
fn cookies(size: usize) -> String {
    let mut lines = String::new();
    for turn in 0.. {
        let left = size - lines.len();
        if left < 100 {
            lines.push_str(&format!("X-Last: {}\r\n", "x".repeat(left.max(11) - 10)));
            break;
        }
        // Names that begin like those that matter, tabs, bytes beyond ASCII: each is passed in another way.
        let name = ["Cookie", "X-Stainless-Lang", "Content-Language", "Transfers", "TE", "C", "content-lengths"][turn % 7];
        let value = ["a=b", "\u{e9}t\u{e9}", "a\tb", ":", "chunked", "0"][turn % 6].repeat(turn % 11);
        lines.push_str(&format!("{name}: {value}\r\n"));
    }
    lines
}

fn hundreds_of_chunks_in_a_write() -> Result<()> {
    let server = start(|path| {
        let count = path.trim_start_matches('/').parse().unwrap_or(1);
        let events: String = (0..count).map(|number| chunk(&format!("data: {number}\n\n"))).collect();
        let pings = chunk(": ping\n\n").repeat(50);
        vec![write(SSE_HEAD), Step::Wait(30), write(&format!("{pings}{events}{pings}")), Step::Wait(30), write("0\r\n\r\n")]
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        for (turn, count) in [10u32, 100, 400, 3000].into_iter().enumerate() {
            client.write_all(format!("GET /{count} HTTP/1.1\r\n\r\n").as_bytes())?;
            read_until(&mut client, b"0\r\n\r\n")?;
            let record = observer.requests(server.port, 1)?[0];
            let served = server.served(turn + 1)?[turn].clone();
            ensure!(record.flags == SSE && record.event_chunks == count, "{count}: {record:?}");
            within("first event", record.first_event_ns, served.steps[2])?;
            within("last event", record.last_event_ns, served.steps[2])?;
            within("end", record.end_ns, served.steps[4])?;
            ensure!(record.largest_gap_ns == 0, "{count}: {record:?}");
        }
        observer.nothing_undecoded(server.port)
    })
}

fn a_thousand_pieces_in_a_write() -> Result<()> {
    let server = start(|path| {
        let pieces: usize = path.trim_start_matches('/').parse().unwrap_or(1);
        // A size line, data, and a line's end each; empty pieces in between.
        let mut list: Vec<Vec<u8>> = Vec::new();
        while list.len() + 4 <= pieces {
            list.extend([&b"9\r\n"[..], b"data: x\n\n", b"", b"\r\n"].map(<[u8]>::to_vec));
        }
        vec![write(SSE_HEAD), Step::Pieces(list), write("0\r\n\r\n")]
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        for (turn, pieces) in [20u32, 24, 28, 100, 400, 1024].into_iter().enumerate() {
            client.write_all(format!("GET /{pieces} HTTP/1.1\r\n\r\n").as_bytes())?;
            read_until(&mut client, b"0\r\n\r\n")?;
            let record = observer.requests(server.port, 1)?[0];
            let served = server.served(turn + 1)?[turn].clone();
            ensure!(record.flags == SSE && record.event_chunks == pieces / 4, "{pieces}: {record:?}");
            within("first event", record.first_event_ns, served.steps[1])?;
            within("end", record.end_ns, served.steps[2])?;
        }
        observer.nothing_undecoded(server.port)
    })
}

fn a_mebibyte_in_a_write() -> Result<()> {
    const SIZES: [usize; 3] = [65_536, 300_000, 1 << 20];
    let server = start(|path| {
        let size = path.trim_start_matches('/').parse().unwrap_or(1);
        let long = "x".repeat(size);
        vec![
            write(SSE_HEAD),
            // Before the first event a comment has to be looked through for its end.
            write(&chunk(&format!(": {long}\n\n"))),
            Step::Wait(50),
            write(&chunk(&format!(": {long}\ndata: {long}\n\n"))),
            Step::Wait(50),
            write(&format!("{}{}", chunk(&format!(": {long}\n\n")), chunk(&format!("data: {long}\n\n")))),
            write("0\r\n\r\n"),
        ]
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        for (turn, size) in SIZES.into_iter().enumerate() {
            client.write_all(format!("GET /{size} HTTP/1.1\r\n\r\n").as_bytes())?;
            read_until(&mut client, b"0\r\n\r\n")?;
            let record = observer.requests(server.port, 1)?[0];
            let served = server.served(turn + 1)?[turn].clone();
            ensure!(record.flags == SSE && record.event_chunks == 2, "{size}: {record:?}");
            within("first event", record.first_event_ns, served.steps[3])?;
            within("last event", record.last_event_ns, served.steps[5])?;
            within("end", record.end_ns, served.steps[6])?;
            ensure!(record.response_bytes > 5 * size as u64, "{record:?}");
        }
        observer.nothing_undecoded(server.port)
    })
}

fn a_loss_ends_with_its_request() -> Result<()> {
    let server = start(|path| match path {
        // More chunks than are followed in one call.
        "/too_large" => vec![
            write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Step::Write(b"1\r\nx\r\n".repeat(400_000)),
            write("0\r\n\r\n"),
        ],
        "/desync" => vec![write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello, no end\r\n0\r\n\r\n")],
        _ => vec![write(OK)],
    })?;
    observe(|observer| {
        for reason in ["too_large", "desync"] {
            let mut client = server.connect()?;
            for _ in 0..3 {
                for turn in 0..2 {
                    client.write_all(format!("GET /{turn} HTTP/1.1\r\n\r\n").as_bytes())?;
                    read_until(&mut client, b"ok")?;
                    let record = observer.requests(server.port, 1)?[0];
                    ensure!(record.status == 200 && record.response_bytes == 2 && record.flags == 0, "{reason}: {record:?}");
                }
                client.write_all(format!("GET /{reason} HTTP/1.1\r\n\r\n").as_bytes())?;
                read_until(&mut client, b"0\r\n\r\n")?;
                let found = observer.undecoded(server.port)?;
                ensure!(found == [reason], "{found:?} instead of one {reason}");
                observer.requests(server.port, 0)?;
            }
        }
        observer.nothing_undecoded(server.port)
    })
}

fn a_loss_under_pipelining() -> Result<()> {
    let server = start(|path| match path {
        "/desync" => vec![Step::Wait(50), write("no status line at all\r\n\r\n")],
        _ => vec![Step::Wait(20), write(OK)],
    })?;
    observe(|observer| {
        // Both requests are lost, each is counted once, and the answer to the second is never taken for one to the third.
        let mut client = server.connect()?;
        client.write_all(b"GET /desync HTTP/1.1\r\n\r\nGET /2 HTTP/1.1\r\n\r\n")?;
        read_until(&mut client, b"at all\r\n\r\n")?;
        let found = observer.undecoded(server.port)?;
        ensure!(found == ["desync"; 2], "{found:?}");
        client.write_all(b"GET /3 HTTP/1.1\r\n\r\n")?;
        read_until(&mut client, b"ok")?;
        thread::sleep(Duration::from_millis(50));
        observer.requests(server.port, 0)?;
        observer.nothing_undecoded(server.port)
    })
}

fn an_answer_to_nothing() -> Result<()> {
    const UNASKED: &str = "HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nidle";
    let server = start(|_| vec![write(OK), Step::Wait(20), write(UNASKED)])?;
    observe(|observer| {
        let mut client = server.connect()?;
        for _ in 0..3 {
            client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"idle")?;
            let record = observer.requests(server.port, 1)?[0];
            ensure!(record.status == 200 && record.flags == 0 && record.response_bytes == 2, "{record:?}");
        }
        observer.nothing_undecoded(server.port)
    })
}
