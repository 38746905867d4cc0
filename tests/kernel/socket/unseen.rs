//! Bytes that the probe does not see, and those that it sees without their buffer: what follows them is never misread.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    time::Duration,
};

use anyhow::{Result, ensure};
use nix::fcntl::{SpliceFFlags, splice};
use tailcomb_common::socket::{ABORTED, CLOSE_DELIMITED, RequestRecord};
use tailcomb_tests::{
    case::{Case, Need},
    http::{Step, chunk, now_ns, read_until, write},
};

use super::{
    observer::{Observer, observe, start, unless_skipped, within},
    streams::SSE_HEAD,
};

const fn case(name: &'static str, run: fn() -> Result<()>) -> Case {
    Case { name, needs: &[Need::Kernel], run }
}

pub(super) const CASES: &[Case] = &[
    case("socket_a_body_by_sendfile_is_whole", || unless_skipped(body_by_sendfile)),
    case("socket_a_chunk_by_sendfile_is_passed_or_counted", || unless_skipped(chunk_by_sendfile)),
    case("socket_a_body_that_ends_unseen_is_counted", || unless_skipped(body_that_ends_unseen)),
    case("socket_a_part_of_a_body_unseen_is_passed", || unless_skipped(part_of_a_body_unseen)),
    case("socket_an_answer_unseen_shifts_nothing", || unless_skipped(answer_unseen)),
    case("socket_answers_unseen_shift_nothing", || unless_skipped(answers_unseen)),
    case("socket_a_part_of_a_stream_unseen_is_counted", || unless_skipped(part_of_a_stream_unseen)),
    case("socket_an_end_unseen_is_no_abort", || unless_skipped(end_unseen)),
    case("socket_an_unseen_answer_under_pipelining_shifts_nothing", || unless_skipped(unseen_under_pipelining)),
    case("socket_a_request_unseen_is_counted", || unless_skipped(request_unseen)),
    case("socket_a_request_body_by_splice_is_whole", || unless_skipped(request_body_by_splice)),
    case("socket_a_clients_fin_is_no_byte", || unless_skipped(clients_fin)),
];

const OK: &str = "HTTP/1.1 204 No Content\r\n\r\n";

fn head(status: u16, length: usize) -> String {
    format!("HTTP/1.1 {status} N\r\nContent-Length: {length}\r\n\r\n")
}

/// Both ends of a connection, moved by hand and by one thread.
struct Pair {
    client: TcpStream,
    server: TcpStream,
    port: u16,
}

impl Pair {
    /// A connection that is seen from its establishment on: the observer has to be there.
    fn new() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        let (server, _) = listener.accept()?;
        for end in [&client, &server] {
            end.set_nodelay(true)?;
            end.set_read_timeout(Some(Duration::from_mins(1)))?;
        }
        Ok(Self { client, server, port })
    }

    /// The client sends, and the server reads all of it in one call.
    fn ask(&mut self, text: &str) -> Result<()> {
        self.client.write_all(text.as_bytes())?;
        self.take(text)
    }

    /// The server reads.
    fn take(&mut self, text: &str) -> Result<()> {
        let mut buffer = vec![0; text.len()];
        self.server.read_exact(&mut buffer)?;
        ensure!(buffer == text.as_bytes(), "read {:?}", String::from_utf8_lossy(&buffer));
        Ok(())
    }

    /// The server writes, in one call, and the client reads; when that was.
    fn say(&mut self, text: &str) -> Result<(u64, u64)> {
        let begin = now_ns()?;
        self.server.write_all(text.as_bytes())?;
        let end = now_ns()?;
        self.client.read_exact(&mut vec![0; text.len()])?;
        Ok((begin, end))
    }

    /// A request and its answer, which both are seen, and whose record has to be right.
    fn exchange(&mut self, observer: &mut Observer, status: u16) -> Result<()> {
        self.ask(&format!("GET /{status} HTTP/1.1\r\n\r\n"))?;
        let said = self.say(&head(status, 0))?;
        self.is(observer, status, said)?;
        Ok(())
    }

    /// The one request there is: its path and its answer tell the same number.
    fn is(&self, observer: &mut Observer, status: u16, said: (u64, u64)) -> Result<RequestRecord> {
        let record = observer.requests(self.port, 1)?[0];
        let kept = String::from_utf8_lossy(&record.head[..usize::from(record.head_len)]).into_owned();
        ensure!(kept.contains(&format!(" /{status} ")) && record.status == status && record.flags == 0, "{kept}: {record:?}");
        within("end", record.end_ns, said)?;
        Ok(record)
    }

    /// So many requests were counted, and none was measured.
    fn counted(&self, observer: &mut Observer, count: usize) -> Result<()> {
        let found = observer.undecoded(self.port)?;
        ensure!(found == vec!["unseen"; count], "{found:?} instead of {count} unseen");
        observer.requests(self.port, 0)?;
        Ok(())
    }
}

/// What this process does meanwhile is not seen: it is no target.
fn unseen<T>(observer: &mut Observer, act: impl FnOnce() -> Result<T>) -> Result<T> {
    observer.probe.targets().remove_process(std::process::id())?;
    let done = act();
    observer.probe.targets().add_process(std::process::id(), true)?;
    done
}

fn body_by_sendfile() -> Result<()> {
    const SIZE: usize = 300_000;
    let server = start(|path| match path {
        "/file" => vec![write(&head(201, SIZE)), Step::Wait(30), Step::File(vec![b'x'; SIZE]), Step::Wait(30)],
        "/parts" => {
            vec![write(&format!("{}{}", head(202, SIZE + 7), "head")), Step::File(vec![b'x'; SIZE]), Step::Wait(30), write("end")]
        }
        "/close" => {
            vec![write("HTTP/1.1 203 N\r\nConnection: close\r\n\r\n"), Step::File(vec![b'x'; SIZE]), Step::Wait(30), Step::Close]
        }
        _ => vec![write(OK)],
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        let mut served = 0;
        for (path, status, bytes, last, flags) in [
            ("/file", 201, SIZE, 2, 0),
            ("/file", 201, SIZE, 2, 0),
            ("/", 204, 0, 0, 0),
            ("/parts", 202, SIZE + 7, 3, 0),
            ("/", 204, 0, 0, 0),
            ("/close", 203, SIZE, 3, CLOSE_DELIMITED),
        ] {
            client.write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())?;
            read_answer(&mut client, bytes)?;
            served += 1;
            let record = observer.requests(server.port, 1)?[0];
            let steps = server.served(served)?[served - 1].steps.clone();
            ensure!(record.status == status && record.flags == flags, "{path}: {record:?}");
            ensure!(record.response_bytes == bytes as u64, "{path}: {record:?}");
            within("head written", record.head_written_ns, steps[0])?;
            within("end", record.end_ns, steps[last])?;
        }
        observer.nothing_undecoded(server.port)
    })
}

/// Reads a head, and a body of that length.
fn read_answer(client: &mut TcpStream, length: usize) -> Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    client.read_exact(&mut vec![0; length])?;
    Ok(())
}

fn chunk_by_sendfile() -> Result<()> {
    const HEAD: &str = "HTTP/1.1 201 N\r\nTransfer-Encoding: chunked\r\n\r\n";
    let server = start(|path| match path {
        "/data" => vec![write(&format!("{HEAD}4000\r\n")), Step::File(vec![b'x'; 0x4000]), write("\r\n0\r\n\r\n")],
        "/chunk" => vec![write(HEAD), Step::File(chunk("hello").into_bytes()), write("0\r\n\r\n")],
        _ => vec![write(OK)],
    })?;
    observe(|observer| {
        let mut client = server.connect()?;
        for _ in 0..3 {
            // Its size was seen: the rest is arithmetic.
            client.write_all(b"GET /data HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"0\r\n\r\n")?;
            let record = observer.requests(server.port, 1)?[0];
            ensure!(record.status == 201 && record.flags == 0 && record.response_bytes == 0x4000, "{record:?}");
            observer.nothing_undecoded(server.port)?;
            client.write_all(b"GET /chunk HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"0\r\n\r\n")?;
            let found = observer.undecoded(server.port)?;
            ensure!(found == ["splice"], "{found:?}");
            client.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"\r\n\r\n")?;
            let record = observer.requests(server.port, 1)?[0];
            ensure!(record.status == 204 && record.flags == 0, "{record:?}");
        }
        observer.nothing_undecoded(server.port)
    })
}

fn body_that_ends_unseen() -> Result<()> {
    observe(|observer| {
        let mut pair = Pair::new()?;
        for status in [201, 202] {
            // Which call ended it can't be told, so it is not measured; that the next answer is the next request's can.
            pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
            pair.say(&head(200, 1000))?;
            unseen(observer, || pair.say(&"x".repeat(1000)))?;
            pair.exchange(observer, status)?;
            pair.counted(observer, 1)?;
            pair.exchange(observer, status + 1)?;
        }
        observer.nothing_undecoded(pair.port)
    })
}

fn part_of_a_body_unseen() -> Result<()> {
    observe(|observer| {
        let mut pair = Pair::new()?;
        for (head, end) in [
            ("HTTP/1.1 201 N\r\nContent-Length: 1000\r\n\r\n", ""),
            ("HTTP/1.1 201 N\r\nTransfer-Encoding: chunked\r\n\r\n3e8\r\n", "\r\n0\r\n\r\n"),
        ] {
            for unseen_bytes in [1, 500, 999] {
                pair.ask("GET /201 HTTP/1.1\r\n\r\n")?;
                pair.say(head)?;
                unseen(observer, || pair.say(&"x".repeat(unseen_bytes)))?;
                let said = pair.say(&format!("{}{end}", "x".repeat(1000 - unseen_bytes)))?;
                let record = pair.is(observer, 201, said)?;
                ensure!(record.response_bytes == 1000, "{record:?}");
                pair.exchange(observer, 202)?;
            }
        }
        observer.nothing_undecoded(pair.port)
    })
}

fn answer_unseen() -> Result<()> {
    observe(|observer| {
        let mut pair = Pair::new()?;
        for _ in 0..3 {
            // The whole of it.
            pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
            unseen(observer, || pair.say(&head(500, 0)))?;
            pair.exchange(observer, 201)?;
            pair.counted(observer, 1)?;
            pair.exchange(observer, 202)?;
            // Its head, of which the next bytes could be one.
            pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
            let forged = head(501, 0);
            unseen(observer, || pair.say(&head(500, forged.len())))?;
            pair.say(&forged)?;
            pair.counted(observer, 1)?;
            pair.exchange(observer, 203)?;
            // A part of its head.
            pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
            pair.say("HTTP/1.1 200 OK\r\n")?;
            unseen(observer, || pair.say("Content-Length: 2\r\n"))?;
            pair.say("\r\nok")?;
            pair.counted(observer, 1)?;
            pair.exchange(observer, 204)?;
        }
        observer.nothing_undecoded(pair.port)
    })
}

fn answers_unseen() -> Result<()> {
    observe(|observer| {
        let mut pair = Pair::new()?;
        for _ in 0..2 {
            pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
            unseen(observer, || pair.say(&head(500, 0)))?;
        }
        // Two that wait look as if they were pipelined: all of them is given up, and counted.
        pair.ask("GET /201 HTTP/1.1\r\n\r\n")?;
        pair.say(&head(201, 0))?;
        pair.counted(observer, 3)
    })
}

fn part_of_a_stream_unseen() -> Result<()> {
    observe(|observer| {
        let mut pair = Pair::new()?;
        for _ in 0..2 {
            // Between two chunks; and in a body where each write is an event.
            for (head, event, end) in [
                (SSE_HEAD, chunk("data: 1\n\n"), "0\r\n\r\n"),
                (
                    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 30\r\n\r\n",
                    "data: 678\n".to_owned(),
                    "",
                ),
            ] {
                pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
                pair.say(head)?;
                pair.say(&event)?;
                unseen(observer, || pair.say(&event))?;
                pair.say(&format!("{event}{end}"))?;
                pair.counted(observer, 1)?;
                pair.exchange(observer, 201)?;
            }
        }
        observer.nothing_undecoded(pair.port)
    })
}

fn end_unseen() -> Result<()> {
    observe(|observer| {
        for reset in [false, true] {
            for (head, body) in [("HTTP/1.1 200 N\r\nContent-Length: 9\r\n\r\n", 9), ("", 30)] {
                let mut pair = Pair::new()?;
                pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
                pair.say(head)?;
                unseen(observer, || pair.say(&"x".repeat(body)))?;
                if reset {
                    // What it has not read makes its close a reset.
                    pair.client.write_all(b"?")?;
                }
                drop(pair.server);
                let found = observer.undecoded(pair.port)?;
                ensure!(found == ["unseen"], "{reset}: {found:?}");
                observer.requests(pair.port, 0)?;
            }
            // What the end of the connection completes is complete.
            let mut pair = Pair::new()?;
            pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
            pair.say("HTTP/1.0 200 N\r\n\r\n")?;
            unseen(observer, || pair.say("some text"))?;
            if reset {
                pair.client.write_all(b"?")?;
            }
            drop(pair.server);
            let record = observer.requests(pair.port, 1)?[0];
            ensure!(record.response_bytes == 9 && (record.flags & ABORTED != 0) == reset, "{reset}: {record:?}");
            observer.nothing_undecoded(pair.port)?;
        }
        Ok(())
    })
}

fn unseen_under_pipelining() -> Result<()> {
    observe(|observer| {
        let mut pair = Pair::new()?;
        pair.ask("GET /201 HTTP/1.1\r\n\r\nGET /202 HTTP/1.1\r\n\r\n")?;
        unseen(observer, || pair.say(&head(201, 0)))?;
        pair.ask("GET /203 HTTP/1.1\r\n\r\n")?;
        pair.say(&head(202, 0))?;
        pair.say(&head(203, 0))?;
        pair.counted(observer, 3)?;
        // Nothing of it is followed any more.
        pair.ask("GET /204 HTTP/1.1\r\n\r\n")?;
        pair.say(&head(204, 0))?;
        observer.requests(pair.port, 0)?;
        observer.nothing_undecoded(pair.port)
    })
}

fn request_unseen() -> Result<()> {
    const HALF: &str = "GET /1 HTTP/1.1\r\nA: ";
    observe(|observer| {
        let mut pair = Pair::new()?;
        for _ in 0..2 {
            // With its answer.
            unseen(observer, || {
                pair.ask("GET /1 HTTP/1.1\r\n\r\n")?;
                pair.say(&head(500, 0))
            })?;
            pair.exchange(observer, 201)?;
            pair.counted(observer, 1)?;
            // Without it.
            unseen(observer, || pair.ask("GET /1 HTTP/1.1\r\n\r\n"))?;
            pair.say(&head(500, 0))?;
            pair.counted(observer, 1)?;
            pair.exchange(observer, 202)?;
            // The rest of its head: it did come, so nothing was aborted.
            pair.ask(HALF)?;
            unseen(observer, || pair.ask("b\r\n\r\n"))?;
            pair.say(&head(500, 0))?;
            pair.counted(observer, 1)?;
            pair.exchange(observer, 203)?;
            pair.counted(observer, 1)?;
        }
        observer.nothing_undecoded(pair.port)
    })
}

fn request_body_by_splice() -> Result<()> {
    const SIZE: usize = 5000;
    observe(|observer| {
        let mut pair = Pair::new()?;
        let (from, to) = nix::unistd::pipe()?;
        let mut pipe = std::fs::File::from(from);
        for _ in 0..3 {
            pair.ask(&format!("POST /201 HTTP/1.1\r\nContent-Length: {SIZE}\r\n\r\n"))?;
            pair.client.write_all(&[b'x'; SIZE])?;
            let mut left = SIZE;
            while left > 0 {
                let moved = splice(&pair.server, None, &to, None, left, SpliceFFlags::empty())?;
                ensure!(moved > 0, "the client is gone");
                pipe.read_exact(&mut vec![0; moved])?;
                left -= moved;
            }
            let said = pair.say(&head(201, 0))?;
            let record = pair.is(observer, 201, said)?;
            ensure!(record.request_bytes == SIZE as u64, "{record:?}");
            pair.exchange(observer, 202)?;
        }
        observer.nothing_undecoded(pair.port)
    })
}

fn clients_fin() -> Result<()> {
    observe(|observer| {
        for at_once in [true, false] {
            let mut pair = Pair::new()?;
            pair.exchange(observer, 201)?;
            let text = "GET /202 HTTP/1.1\r\n\r\n";
            pair.client.write_all(text.as_bytes())?;
            if !at_once {
                pair.take(text)?;
            }
            pair.client.shutdown(std::net::Shutdown::Write)?;
            if at_once {
                // The read that takes the last byte may pass the FIN too.
                let mut all = String::new();
                pair.server.read_to_string(&mut all)?;
                ensure!(all == text, "{all}");
            }
            let said = pair.say(&head(202, 0))?;
            pair.is(observer, 202, said)?;
            observer.nothing_undecoded(pair.port)?;
        }
        Ok(())
    })
}
