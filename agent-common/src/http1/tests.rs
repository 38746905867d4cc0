use proptest::prelude::*;

use super::*;

/// Walks a machine over `bytes` as the kernel does, in pieces that end at `cuts`: hops and skims where it may, steps where it must.
/// Returns the signals with the position behind the byte that gave them, and hops' ends likewise.
fn walk(machine: &mut Machine, bytes: &[u8], cuts: &[usize]) -> Vec<(usize, u8)> {
    let mut signals = Vec::new();
    let mut at = 0;
    let mut ends: Vec<usize> = cuts.iter().copied().filter(|cut| *cut < bytes.len()).collect();
    ends.sort_unstable();
    ends.push(bytes.len());
    for end in ends {
        while at < end {
            let hop = machine.skippable().min((end - at) as u64);
            let told = if hop > 0 {
                at += usize::try_from(hop).expect("within the piece");
                machine.skip(hop)
            } else {
                let eight = bytes[..end].get(at..at + 8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight")));
                let skimmed = eight.map_or(0, |eight| machine.skim(eight));
                if skimmed > 0 {
                    at += usize::try_from(skimmed).expect("at most 8");
                    continue;
                }
                at += 1;
                machine.step(bytes[at - 1])
            };
            if told != 0 {
                signals.push((at, told));
            }
            if told & FAILED != 0 {
                return signals;
            }
        }
    }
    signals
}

fn request(bytes: &[u8]) -> (Machine, Vec<(usize, u8)>) {
    let mut machine = Machine::requests();
    let signals = walk(&mut machine, bytes, &[]);
    (machine, signals)
}

fn response(bytes: &[u8]) -> (Machine, Vec<(usize, u8)>) {
    let mut machine = Machine::responses();
    let signals = walk(&mut machine, bytes, &[]);
    (machine, signals)
}

/// Positions of one signal.
fn positions(signals: &[(usize, u8)], signal: u8) -> Vec<usize> {
    signals.iter().filter(|(_, told)| told & signal != 0).map(|(at, _)| *at).collect()
}

#[test]
fn a_request_without_a_body_ends_with_its_head() {
    let bytes = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    let (machine, signals) = request(bytes);
    assert_eq!(signals, [(1, BEGIN), (bytes.len(), HEAD | END)]);
    assert!(machine.is_idle());
}

#[test]
fn methods_that_matter_are_known_and_those_like_them_are_not() {
    for (method, bits) in [("HEAD", TO_HEAD), ("CONNECT", TO_CONNECT), ("HEADS", 0), ("HEA", 0), ("CONNEC", 0), ("PRIX", 0)] {
        let (machine, signals) = request(format!("{method} /x HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(positions(&signals, END).len(), 1, "{method}: {signals:?}");
        assert_eq!(machine.kind(), RequestKind(bits), "{method}");
    }
}

#[test]
fn other_protocols_are_told_by_name() {
    assert_eq!(request(b"\x16\x03\x01\x02\x00").0.failure(), Failure::Tls);
    assert_eq!(request(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").0.failure(), Failure::Http2);
    for bytes in
        [&b"\x00\x01"[..], b"GET /\r\n", b"GET / HTTP/2\r\n", b"{\"json\":1}", b"GET / HTTP/1.1\r\nA: \x00\r\n", b"GET\r\n"]
    {
        let (machine, signals) = request(bytes);
        assert_eq!(signals.last().map(|(_, told)| *told), Some(FAILED), "{bytes:?}");
        assert_eq!(machine.failure(), Failure::Other);
    }
}

#[test]
fn content_length_in_any_form() {
    for header in [
        "Content-Length: 5",
        "content-length:5",
        "CONTENT-LENGTH: \t 05 \t",
        "X: y\r\nContent-Length: 5",
        "content-length: 5\nX: y",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\n{header}\r\n\r\nabcdeGET / HTTP/1.1\r\n\r\n");
        let (_, signals) = request(bytes.as_bytes());
        let body = bytes.find("abcde").expect("there");
        assert_eq!(positions(&signals, HEAD), [body, bytes.len()], "{header}");
        assert_eq!(positions(&signals, END), [body + 5, bytes.len()], "{header}");
    }
    for header in [
        "Content-Length: -5",
        "Content-Length:",
        "Content-Length: 5x",
        "Content-Length: 99999999999999999999",
        "Content-Length: 5, 5",
    ] {
        let (_, signals) = request(format!("POST / HTTP/1.1\r\n{header}\r\n\r\n").as_bytes());
        assert_eq!(signals.last().map(|(_, told)| *told), Some(FAILED), "{header}");
    }
}

#[test]
fn headers_like_those_that_matter_do_not() {
    for header in [
        "Content-Lengths: 5",
        "Content-Lengt: 5",
        "XContent-Length: 5",
        "X: Content-Length: 5",
        " Content-Length: 5",
        "Content-Length : 5",
    ] {
        let bytes = format!("POST / HTTP/1.1\r\nA: b\r\n{header}\r\n\r\n");
        let (_, signals) = request(bytes.as_bytes());
        assert_eq!(positions(&signals, END), [bytes.len()], "{header}");
    }
}

#[test]
fn chunked_in_any_form() {
    for header in [
        "Transfer-Encoding: chunked",
        "transfer-encoding:CHUNKED",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: gzip,chunked ",
        "transfer-encoding: gzip\r\nTransfer-Encoding: chunked",
    ] {
        let bytes = format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n5;a=b\r\nhello\r\n00a\r\n0123456789\r\n0\r\nT: x\r\n\r\n");
        let (machine, signals) = response(bytes.as_bytes());
        assert_eq!(positions(&signals, END), [bytes.len()], "{header}: {signals:?}");
        assert_eq!(machine.body_bytes(), 15, "{header}");
    }
    for header in
        ["Transfer-Encoding: chunkedx", "Transfer-Encoding: xchunked", "Transfer-Encodin: chunked", "Transfer-Encoding: gzip"]
    {
        let (machine, _) = response(format!("HTTP/1.1 200 OK\r\n{header}\r\n\r\n0\r\n\r\n").as_bytes());
        assert!(machine.ends_at_close(), "{header}");
    }
    for size in ["", "g", "-1", "fffffffffffffffff", " 5"] {
        let (_, signals) = response(format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{size}\r\n").as_bytes());
        assert_eq!(signals.last().map(|(_, told)| *told), Some(FAILED), "size {size:?}");
    }
}

#[test]
fn answers_end_as_rfc_9112_says() {
    let length = "Content-Length: 9\r\n";
    for (status, kind, framing) in [
        (200, 0, Framing::Length),
        (200, TO_HEAD, Framing::None),
        (204, 0, Framing::None),
        (304, 0, Framing::None),
        (404, 0, Framing::Length),
    ] {
        let mut machine = Machine::responses();
        let head = format!("HTTP/1.1 {status} X\r\n{length}\r\n");
        assert_eq!(machine.step(head.as_bytes()[0]), BEGIN);
        machine.answer(&RequestKind(kind));
        let signals = walk(&mut machine, &head.as_bytes()[1..], &[]);
        let ends = framing == Framing::None;
        assert_eq!(positions(&signals, END).len(), usize::from(ends), "{status} {kind}");
        assert_eq!(machine.status(), status);
    }
    assert!(response(b"HTTP/1.0 200\r\n\r\nbody").0.ends_at_close());
    assert_eq!(response(b"HTTP/1.0 200\r\n\r\nbody").0.body_bytes(), 4);
}

#[test]
fn interim_answers_are_none() {
    let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    let (machine, signals) = response(bytes);
    assert_eq!(positions(&signals, HEAD), [bytes.len()]);
    assert_eq!(positions(&signals, BEGIN).len(), 3);
    assert_eq!(machine.status(), 200);
}

#[test]
fn below_100_is_no_status() {
    for status in ["000", "099"] {
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
        assert_eq!(response(head.as_bytes()).1.last(), Some(&(head.len(), FAILED)), "{status}");
    }
}

#[test]
fn an_upgrade_ends_it() {
    let bytes = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x05hello";
    let (machine, signals) = response(bytes);
    assert_eq!(signals.last(), Some(&(bytes.len() - 7, HEAD | END | UPGRADE)));
    assert!(machine.skippable() > 0);
}

const SSE_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

#[test]
fn only_data_is_an_event() {
    for (body, event) in [
        (": ping\n\n", false),
        (":ping\r\n\r\n", false),
        ("event: x\nid: 1\nretry: 5\n\n", false),
        ("Data: x\n\n", false),
        ("datas: x\n\n", false),
        ("xdata: x\n\n", false),
        (": data: x\n\n", false),
        ("data: x\n\n", true),
        ("data:x\r\n\r\n", true),
        ("data\n\n", true),
        ("\u{feff}data: x\n\n", true),
        (": ping\r\rdata: x\r\r", true),
        ("event: message\ndata: x\n\n", true),
        ("\n\n\ndata:\n\n", true),
    ] {
        let (_, signals) = response(format!("{SSE_HEAD}{}0\r\n\r\n", chunk(body)).as_bytes());
        assert_eq!(positions(&signals, EVENT).len(), usize::from(event), "{body:?}");
        // The same, one byte a chunk.
        let bytes: String = body.chars().map(|character| chunk(&character.to_string())).collect();
        let (_, signals) = response(format!("{SSE_HEAD}{bytes}0\r\n\r\n").as_bytes());
        assert_eq!(!positions(&signals, EVENT).is_empty(), event, "{body:?} in bytes");
    }
}

#[test]
fn after_the_first_event_chunks_count() {
    let chunks = ["data: 1\n\n", ": ping\n\n", "data: 2\n\ndata: 3\n\n", "data: 4\n", "\n", "event: x\ndata: 5\n\n"];
    let body: String = chunks.iter().map(|data| chunk(data)).collect();
    let (_, signals) = response(format!("{SSE_HEAD}{body}0\r\n\r\n").as_bytes());
    assert_eq!(positions(&signals, EVENT).len(), 4);
}

#[test]
fn other_content_has_no_events() {
    for kind in
        ["text/event-streams", "text/event", "application/json", "text/plain", "application/x-ndjsonx", "xtext/event-stream"]
    {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let (machine, signals) = response(format!("{head}{}", chunk("data: 1\n\n")).as_bytes());
        assert!(!machine.is_sse() && !machine.is_ndjson() && positions(&signals, EVENT).is_empty(), "{kind}");
    }
    for kind in ["text/event-stream", "TEXT/Event-Stream;charset=utf-8", " text/event-stream ; x=y", "text/event-stream, x"] {
        let (machine, _) = response(format!("HTTP/1.1 200 OK\r\nContent-Type:{kind}\r\n\r\n").as_bytes());
        assert!(machine.is_sse(), "{kind}");
    }
    for kind in ["application/x-ndjson", "application/ndjson; charset=utf-8", "application/jsonl"] {
        let (machine, _) = response(format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\n").as_bytes());
        assert!(machine.is_ndjson(), "{kind}");
    }
    let encoded = SSE_HEAD.replace("Transfer", "Content-Encoding: gzip\r\nTransfer");
    let (machine, signals) = response(format!("{encoded}{}", chunk("data: 1\n\n")).as_bytes());
    assert!(machine.is_encoded() && positions(&signals, EVENT).is_empty());
    let plain = SSE_HEAD.replace("Transfer", "Content-Encoding: identity\r\nTransfer");
    assert!(!response(plain.as_bytes()).0.is_encoded());
}

/// A message with what a machine must say of it: positions of its head's and its own end.
#[derive(Clone, Debug)]
struct Message {
    bytes: Vec<u8>,
    head: usize,
    body: u64,
}

fn message(response: bool) -> impl Strategy<Value = Message> {
    let headers = prop::collection::vec(("[A-Za-z][A-Za-z0-9-]{0,20}", "[ -~]{0,40}"), 0..6);
    let bodies = prop_oneof![
        Just(None),
        prop::collection::vec(any::<u8>(), 0..300).prop_map(|body| Some((body, Vec::new()))),
        (prop::collection::vec(any::<u8>(), 0..300), prop::collection::vec(1usize..80, 1..8)).prop_map(Some),
    ];
    (headers, bodies, any::<bool>()).prop_map(move |(headers, body, cr)| {
        let end = if cr { "\r\n" } else { "\n" };
        let mut text = if response { format!("HTTP/1.1 200 OK{end}") } else { format!("POST /a?b=c HTTP/1.1{end}") };
        for (name, value) in headers {
            // Names that matter are set below.
            text.push_str(&format!("X{name}: {value}{end}"));
        }
        let mut framed = Vec::new();
        let mut length = 0;
        match body {
            None => text.push_str(&format!("Content-Length: 0{end}")),
            Some((body, sizes)) if sizes.is_empty() => {
                length = body.len();
                text.push_str(&format!("content-length: {length}{end}"));
                framed = body;
            }
            Some((body, sizes)) => {
                length = body.len();
                text.push_str(&format!("Transfer-Encoding: chunked{end}"));
                let mut rest = &body[..];
                for size in sizes.iter().cycle() {
                    let (this, next) = rest.split_at((*size).min(rest.len()));
                    framed.extend_from_slice(format!("{:x}{end}", this.len()).as_bytes());
                    framed.extend_from_slice(this);
                    if this.is_empty() {
                        break;
                    }
                    framed.extend_from_slice(end.as_bytes());
                    rest = next;
                }
                framed.extend_from_slice(end.as_bytes());
            }
        }
        text.push_str(end);
        let head = text.len();
        let mut bytes = text.into_bytes();
        bytes.extend_from_slice(&framed);
        Message { bytes, head, body: length as u64 }
    })
}

fn told(messages: &[Message], mut machine: Machine, cuts: &[usize]) -> Result<(), TestCaseError> {
    let bytes: Vec<u8> = messages.iter().flat_map(|message| message.bytes.clone()).collect();
    let signals = walk(&mut machine, &bytes, cuts);
    let mut at = 0;
    let (mut heads, mut ends) = (Vec::new(), Vec::new());
    for message in messages {
        heads.push(at + message.head);
        at += message.bytes.len();
        ends.push(at);
    }
    prop_assert_eq!(positions(&signals, HEAD), heads);
    prop_assert_eq!(positions(&signals, END), ends);
    prop_assert_eq!(positions(&signals, BEGIN).len(), messages.len());
    prop_assert!(machine.is_idle());
    prop_assert_eq!(machine.body_bytes(), messages.last().map_or(0, |message| message.body));
    Ok(())
}

/// Texts that end everywhere words may be passed, and elsewhere.
fn anywhere() -> impl Strategy<Value = String> {
    let whole = prop_oneof![
        Just(
            "POST /v1/completions?x=y HTTP/1.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nA: b\r\n"
                .to_owned()
        ),
        Just("GET /x HTTP/1.1\nCONTENT-LENGTH: 7\nx-y: z\ncontent-type: application/x-ndjson\n\n".to_owned()),
        Just(format!("{SSE_HEAD}ff\r\n: ping\n\nevent: x\n")),
        Just("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: a comment\nevent: x".to_owned()),
        Just("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 40\r\n\r\n: a comment\nevent: x".to_owned()),
    ];
    (whole, any::<prop::sample::Index>()).prop_map(|(whole, end)| whole[..end.index(whole.len() + 1)].to_owned())
}

/// Eight bytes of which a rule may be about all.
fn near_words() -> impl Strategy<Value = Vec<u8>> {
    let words =
        ["content-", "transfer", "length: ", "type: ap", "plicatio", "HTTP/1.1", "TTP/1.1 ", "Content-", "Length: ", "/v1/ HTT"];
    let mask = prop_oneof![Just(0), Just(0x20), Just(0x80), Just(1)];
    (prop::sample::select(words.to_vec()), 0usize..8, mask).prop_map(|(word, at, mask)| {
        let mut bytes = word.as_bytes().to_vec();
        bytes[at] ^= mask;
        bytes
    })
}

fn near_controls() -> impl Strategy<Value = u8> {
    prop_oneof![0x1eu8..0x23, 0x7eu8..0x82, any::<u8>(), 0x20u8..0x7f, Just(b'\r'), Just(b'\n'), Just(b':')]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn requests_of_any_form_split_anywhere(
        messages in prop::collection::vec(message(false), 1..5),
        cuts in prop::collection::vec(0usize..2000, 0..40),
    ) {
        told(&messages, Machine::requests(), &cuts)?;
    }

    #[test]
    fn responses_of_any_form_split_anywhere(
        messages in prop::collection::vec(message(true), 1..5),
        cuts in prop::collection::vec(0usize..2000, 0..40),
    ) {
        told(&messages, Machine::responses(), &cuts)?;
    }

    /// Against httparse: what it takes as a head, the machine takes, with the same end.
    #[test]
    fn heads_end_where_httparse_says(head in "(GET|POST|HEAD|PUT|QUERY) /[!-~]{0,30} HTTP/1\\.[01]\r\n([A-Z][a-z-]{0,15}:[ -~]{0,30}\r\n){0,8}\r\n", rest in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&rest);
        let mut headers = [httparse::EMPTY_HEADER; 16];
        let mut parsed = httparse::Request::new(&mut headers);
        let Ok(httparse::Status::Complete(end)) = parsed.parse(&bytes) else { return Ok(()) };
        let (_, signals) = request(&bytes);
        prop_assert_eq!(positions(&signals, HEAD).first().copied(), Some(end));
    }

    /// Garbage: neither panic nor endless walk, and once failed, always failed.
    #[test]
    fn garbage_is_survived(bytes in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\r'), Just(b'\n'), Just(b':'), Just(b'0')], 0..400), head in 0usize..4) {
        for mut machine in [Machine::requests(), Machine::responses()] {
            let start: &[u8] = match head {
                0 => b"",
                1 => b"HTTP/1.1 200 OK\r\n",
                2 => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n",
                _ => b"POST / HTTP/1.1\r\n",
            };
            let _ = walk(&mut machine, start, &[]);
            let signals = walk(&mut machine, &bytes, &[]);
            if signals.last().is_some_and(|(_, told)| told & FAILED != 0) {
                prop_assert!(machine.step(b'G') & FAILED != 0);
                prop_assert_eq!(machine.skippable(), 0);
            }
        }
    }

    /// Wherever a machine is, what it passes over changes nothing when it is stepped through.
    #[test]
    fn skimming_is_stepping(start in anywhere(), eight in prop_oneof![near_words(), prop::collection::vec(near_controls(), 8)]) {
        for mut stepped in [request(start.as_bytes()).0, response(start.as_bytes()).0] {
            let mut skimmed = stepped;
            let count = skimmed.skim(u64::from_le_bytes(eight.clone().try_into().expect("eight bytes")));
            prop_assert!(count <= 8);
            for byte in &eight[..usize::try_from(count).expect("few")] {
                prop_assert_eq!(stepped.step(*byte), 0, "{:?} after {:?}", eight, start);
            }
            prop_assert_eq!(stepped, skimmed, "{:?} after {:?}", eight, start);
        }
    }

    /// A stream's first event is told at the same byte however the stream is cut.
    #[test]
    fn events_do_not_move(lines in prop::collection::vec(prop_oneof![Just(": ping"), Just("event: x"), Just(""), Just("data: x"), Just("data"), Just("dat: a")], 1..12), end in prop_oneof![Just("\n"), Just("\r\n"), Just("\r")], cuts in prop::collection::vec(0usize..400, 0..20)) {
        let body: String = lines.iter().map(|line| format!("{line}{end}")).collect();
        let bytes = format!("{SSE_HEAD}{}0\r\n\r\n", chunk(&body));
        let mut machine = Machine::responses();
        let signals = walk(&mut machine, bytes.as_bytes(), &cuts);
        let first = lines.iter().position(|line| line.starts_with("data"));
        prop_assert_eq!(positions(&signals, EVENT).len(), usize::from(first.is_some()));
        if let Some(first) = first {
            let before: usize = lines[..first].iter().map(|line| line.len() + end.len()).sum();
            let start = bytes.len() - body.len() - "\r\n0\r\n\r\n".len();
            // "data:", or "data" and its line's end.
            prop_assert_eq!(positions(&signals, EVENT), [start + before + 5]);
        }
        prop_assert_eq!(positions(&signals, END), [bytes.len()]);
    }
}

/// What makes heads cheap in the kernel: few bytes are looked at one by one, and few rows of the table, each a cache line.
#[test]
fn most_of_a_head_is_passed() {
    let head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\n\
        User-Agent: OpenAI/Python 1.0.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.0.0\r\nX-Stainless-OS: Linux\r\n\
        X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.7\r\nAuthorization: Bearer x\r\n\
        X-Stainless-Async: false\r\nX-Stainless-Retry-Count: 0\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n\
        Content-Type: application/json\r\nContent-Length: 62\r\n\r\n";
    let mut machine = Machine::requests();
    let (mut at, mut turns, mut rows) = (0, 0, std::collections::BTreeSet::new());
    while at < head.len() {
        turns += 1;
        let eight = head.get(at..at + 8).map(|eight| u64::from_le_bytes(eight.try_into().expect("eight")));
        match eight.map_or(0, |eight| machine.skim(eight)) {
            0 => {
                rows.insert(machine.state);
                let _ = machine.step(head[at]);
                at += 1;
            }
            count => at += usize::try_from(count).expect("at most 8"),
        }
    }
    assert_eq!(machine.state, DATA_FIXED);
    assert!(turns < 110 && rows.len() < 28, "{turns} turns, {} rows: {rows:?}", rows.len());
}
