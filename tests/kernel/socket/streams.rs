//! Streams: first event, gaps, end.

use std::io::Write;

use anyhow::{Result, ensure};
use tailcomb_common::socket::{ABORTED, ARRIVAL_UNKNOWN, NDJSON, RequestRecord, SSE};
use tailcomb_tests::{
    case::{Case, Need, Tier},
    http::{Served, Server, Step, chunk, now_ns, read_until, write},
};

use super::observer::{Observer, lasts, observe, start, within};

pub(super) const CASES: &[Case] = &[
    Case { name: "r01_sse_marks_are_those_of_the_script", needs: &[Need::Kernel], run: sse_marks_are_those_of_the_script },
    Case { name: "r31_streams_and_unary_are_told_apart", needs: &[Need::Kernel], run: streams_and_unary_are_told_apart },
    Case { name: "r35_a_ping_is_no_token", needs: &[Need::Kernel], run: a_ping_is_no_token },
    Case { name: "r42_the_head_is_no_token", needs: &[Need::Kernel], run: the_head_is_no_token },
    Case { name: "socket_several_events_in_a_chunk", needs: &[Need::Kernel], run: several_events_in_a_chunk },
    Case { name: "socket_pieces_as_node_writes_them", needs: &[Need::Kernel], run: pieces_as_node_writes_them },
    Case { name: "socket_one_byte_a_write", needs: &[Need::Kernel], run: one_byte_a_write },
    Case { name: "socket_newline_delimited_json", needs: &[Need::Kernel], run: newline_delimited_json },
];

pub(super) const SSE_HEAD: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n";
const LAST: &[u8] = b"0\r\n\r\n";

/// One request on a connection of its own: the record, the server's log, and when the client had sent.
fn one(observer: &mut Observer, server: &Server, end: &[u8]) -> Result<(RequestRecord, Served, u64)> {
    let mut client = server.connect()?;
    let sent = now_ns()?;
    client.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")?;
    read_until(&mut client, end)?;
    let records = observer.requests(server.port, 1)?;
    let record = records[0];
    ensure!(record.flags & (ABORTED | ARRIVAL_UNKNOWN) == 0, "{record:?}");
    let served = server.served(1)?[0].clone();
    within("arrival", record.arrive_ns, (sent, served.read_ns))?;
    observer.nothing_undecoded(server.port)?;
    Ok((record, served, sent))
}

fn script(steps: Vec<Step>) -> Result<Server> {
    start(move |_| steps.clone())
}

fn sse_marks_are_those_of_the_script() -> Result<()> {
    // 100 events 50 ms apart where there is time for them.
    let events = if Tier::of_this_run() == Tier::Fast { 20 } else { 100 };
    let mut steps = vec![Step::Wait(5), write(SSE_HEAD), Step::Wait(795), write(&chunk("data: 0\n\n"))];
    for event in 1..events {
        steps.push(Step::Wait(50));
        steps.push(write(&chunk(&format!("data: {{\"choices\":[{event}]}}\n\n"))));
    }
    steps.push(Step::Wait(1));
    steps.push(write("0\r\n\r\n"));
    let server = script(steps)?;
    observe(|observer| {
        let (record, served, _) = one(observer, &server, LAST)?;
        within("head written", record.head_written_ns, served.steps[1])?;
        within("first event", record.first_event_ns, served.steps[3])?;
        within("last event", record.last_event_ns, served.steps[served.steps.len() - 3])?;
        within("end", record.end_ns, served.steps[served.steps.len() - 1])?;
        ensure!(record.event_chunks == events, "{} events", record.event_chunks);
        ensure!(record.flags & SSE != 0 && record.status == 200, "{record:?}");
        let gap = (record.last_event_ns - record.first_event_ns) / u64::from(events - 1);
        ensure!(gap >= 50_000_000, "mean gap {gap} ns");
        ensure!(record.largest_gap_ns >= gap, "the largest gap is below the mean");
        ensure!(record.request_bytes == 2, "{record:?}");
        Ok(())
    })
}

fn streams_and_unary_are_told_apart() -> Result<()> {
    // Streams of 60 s as reported; of 1.5 s where that is too long.
    let rest = if Tier::of_this_run() == Tier::Long { 59_400 } else { 900 };
    let server = start(move |path| match path {
        "/get" => vec![Step::Wait(10), write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")],
        _ => vec![write(SSE_HEAD), Step::Wait(600), write(&chunk("data: 1\n\n")), Step::Wait(rest), write("0\r\n\r\n")],
    })?;
    observe(|observer| {
        let streaming = server.connect()?;
        let sent = now_ns()?;
        (&streaming).write_all(b"GET /stream HTTP/1.1\r\n\r\n")?;
        let mut client = server.connect()?;
        for _ in 0..19 {
            client.write_all(b"GET /get HTTP/1.1\r\n\r\n")?;
            read_until(&mut client, b"ok")?;
        }
        read_until(&mut streaming.try_clone()?, LAST)?;
        let records = observer.requests(server.port, 20)?;
        let (streams, unary): (Vec<RequestRecord>, Vec<RequestRecord>) =
            records.into_iter().partition(|record| record.flags & SSE != 0);
        ensure!(streams.len() == 1 && unary.len() == 19, "{} streams", streams.len());
        let (streamed, got): (Vec<Served>, Vec<Served>) =
            server.served(20)?.into_iter().partition(|served| served.path == "/stream");
        within("arrival of the stream", streams[0].arrive_ns, (sent, streamed[0].read_ns))?;
        within("its first token", streams[0].first_event_ns, streamed[0].steps[2])?;
        within("its end", streams[0].end_ns, streamed[0].steps[4])?;
        let mut before = sent;
        for (record, served) in unary.iter().zip(&got) {
            within("arrival of a unary one", record.arrive_ns, (before, served.read_ns))?;
            within("its end", record.end_ns, served.steps[1])?;
            before = served.steps[1].0;
            ensure!(record.first_event_ns == 0 && record.event_chunks == 0, "a unary request has no events: {record:?}");
        }
        observer.nothing_undecoded(server.port)
    })
}

fn a_ping_is_no_token() -> Result<()> {
    let pause = if Tier::of_this_run() == Tier::Long { 1_000 } else { 100 };
    for end in ["\n", "\r\n", "\r"] {
        let mut steps = vec![write(SSE_HEAD)];
        for _ in 0..5 {
            steps.push(write(&chunk(&format!(": ping{end}{end}"))));
            steps.push(Step::Wait(pause));
        }
        steps.push(write(&chunk(&format!("event: message{end}data:{{}}{end}{end}"))));
        steps.push(Step::Wait(100));
        steps.push(write(&chunk(&format!(": ping{end}{end}"))));
        steps.push(Step::Wait(100));
        steps.push(write(&chunk(&format!("data:{{}}{end}{end}"))));
        steps.push(write("0\r\n\r\n"));
        let server = script(steps)?;
        observe(|observer| {
            let (record, served, _) = one(observer, &server, LAST)?;
            within("first event", record.first_event_ns, served.steps[11])?;
            within("last event", record.last_event_ns, served.steps[15])?;
            lasts("largest gap", record.largest_gap_ns, served.steps[11], served.steps[15])?;
            ensure!(record.event_chunks == 2, "{} events with line end {end:?}", record.event_chunks);
            Ok(())
        })?;
    }
    Ok(())
}

fn the_head_is_no_token() -> Result<()> {
    let first = chunk("data: 1\n\n");
    let end = || write("0\r\n\r\n");
    // 2 s as reported, with the head after 0, 1 and 2 s; a fifth of that where it is too long.
    let half = if Tier::of_this_run() == Tier::Long { 1_000 } else { 200 };
    let heads = [
        vec![write(SSE_HEAD), Step::Wait(2 * half), write(&first), end()],
        vec![Step::Wait(half), write(SSE_HEAD), Step::Wait(half), write(&first), end()],
        vec![Step::Wait(2 * half), write(&format!("{SSE_HEAD}{first}")), end()],
    ];
    for steps in heads {
        let server = script(steps)?;
        observe(|observer| {
            let (record, served, sent) = one(observer, &server, LAST)?;
            within("first token", record.first_event_ns, served.steps[served.steps.len() - 2])?;
            ensure!(record.first_event_ns - sent >= 2 * half * 1_000_000, "{record:?}");
            Ok(())
        })?;
    }
    Ok(())
}

fn several_events_in_a_chunk() -> Result<()> {
    let three = format!("{}{}0\r\n\r\n", chunk("data: 2\n\ndata: 3\n\n"), chunk("data: [DONE]\n\n"));
    let server = script(vec![
        write(&format!("{SSE_HEAD}{}", chunk("data: role\n\ndata: 1\n\n"))),
        Step::Wait(200),
        // An event over two chunks, its blank line in the second; and a size line with an extension.
        write("7;x=y\r\ndata: a\r\n"),
        Step::Wait(50),
        write(&chunk("\n\n")),
        Step::Wait(50),
        write(&three),
    ])?;
    observe(|observer| {
        let (record, served, _) = one(observer, &server, LAST)?;
        within("first event", record.first_event_ns, served.steps[0])?;
        within("last event", record.last_event_ns, served.steps[6])?;
        within("end", record.end_ns, served.steps[6])?;
        ensure!(record.event_chunks == 4, "{} chunks with events", record.event_chunks);
        lasts("largest gap", record.largest_gap_ns, served.steps[0], served.steps[2])?;
        Ok(())
    })
}

fn pieces_as_node_writes_them() -> Result<()> {
    let pieces = |data: &str| {
        Step::Pieces(vec![format!("{:x}", data.len()).into_bytes(), b"\r\n".to_vec(), data.as_bytes().to_vec(), b"\r\n".to_vec()])
    };
    // 22 pieces in one call, as gRPC and hyper make them; each of them a part of a chunk.
    let many: Vec<Vec<u8>> = chunk("data: abcdefghi\n\n").bytes().map(|byte| vec![byte]).take(22).collect();
    let rest: Vec<u8> = chunk("data: abcdefghi\n\n").bytes().skip(22).collect();
    let long = "x".repeat(5000);
    let server = script(vec![
        Step::Wait(50),
        Step::Pieces(vec![SSE_HEAD.as_bytes().to_vec(), b"9\r\n".to_vec(), b"data: 1\n\n".to_vec(), b"\r\n".to_vec()]),
        Step::Wait(50),
        pieces(&format!("data: {long}\n\n")),
        Step::Wait(50),
        Step::Pieces(many),
        if rest.is_empty() { Step::Wait(0) } else { Step::Write(rest) },
        pieces(&format!("data: {long}\n\n")),
        write("0\r\n"),
        Step::Wait(30),
        write("\r\n"),
    ])?;
    observe(|observer| {
        let (record, served, _) = one(observer, &server, LAST)?;
        within("head written", record.head_written_ns, served.steps[1])?;
        within("first event", record.first_event_ns, served.steps[1])?;
        within("last event", record.last_event_ns, served.steps[7])?;
        within("end", record.end_ns, served.steps[10])?;
        ensure!(record.event_chunks == 4, "{} events", record.event_chunks);
        let body = 9 + 2 * (5000 + 8) + 17;
        ensure!(record.response_bytes == body, "{} body bytes instead of {body}", record.response_bytes);
        Ok(())
    })
}

fn one_byte_a_write() -> Result<()> {
    let text = format!("{SSE_HEAD}{}", chunk("data: 1\n\n"));
    let server = script(vec![
        Step::Wait(100),
        Step::Bytewise(text.into_bytes()),
        Step::Wait(100),
        Step::Bytewise(format!("{}0\r\n\r\n", chunk(": no event\n\n")).into_bytes()),
    ])?;
    observe(|observer| {
        let (record, served, _) = one(observer, &server, LAST)?;
        within("head written", record.head_written_ns, served.steps[1])?;
        within("first event", record.first_event_ns, served.steps[1])?;
        within("end", record.end_ns, served.steps[3])?;
        ensure!(record.event_chunks == 1 && record.status == 200, "{record:?}");
        Ok(())
    })
}

fn newline_delimited_json() -> Result<()> {
    let server = script(vec![
        write("HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"),
        Step::Wait(200),
        write(&chunk("{\"response\":\"a\"}\n")),
        Step::Wait(50),
        write(&format!("{}0\r\n\r\n", chunk("{\"done\":true}\n"))),
    ])?;
    observe(|observer| {
        let (record, served, _) = one(observer, &server, LAST)?;
        within("first line", record.first_event_ns, served.steps[2])?;
        within("end", record.end_ns, served.steps[4])?;
        ensure!(record.flags & NDJSON != 0 && record.event_chunks == 2, "{record:?}");
        Ok(())
    })
}
