//! Clients that are slow, rude, many or late.

use std::time::Instant;

use super::*;
use crate::export::serve::ServeError;

/// Limits short enough for a test.
fn short() -> Limits {
    Limits { connections: 4, head: Duration::from_millis(300), stall: Duration::from_millis(300), ..Limits::default() }
}

/// A store whose text is some megabytes: more than the sockets' buffers hold.
fn large() -> Shared {
    let store = Shared::new(Store::new(Options { series_budget: 4_000, ..Options::default() }, at(0)));
    {
        let mut store = store.lock();
        for number in 0..500 {
            store.request(&request("/health", Mode::Unary), &workload(&format!("server-{number}")), None);
        }
    }
    store
}

/// Waits until something of the answer is there, and takes nothing of it.
fn wait_for_answer(stream: &TcpStream) {
    stream.peek(&mut [0]).expect("an answer");
}

#[test]
fn a_head_that_does_not_come_does_not_hold_a_connection() {
    let running = Running::start(&full(), short());
    let begun = Instant::now();
    let mut slow: Vec<TcpStream> = (0..4).map(|_| running.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHo").expect("the server reads");
    }
    // All places are taken; a scrape waits until the slow ones are cut off, and no longer.
    assert_eq!(running.get("/healthz").0, 200);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(begun.elapsed() >= Duration::from_millis(250), "nothing was held: the test shows nothing");
}

#[test]
fn an_answer_that_is_not_read_does_not_hold_a_connection() {
    let running = Running::start(&large(), short());
    let mut slow: Vec<TcpStream> = (0..4).map(|_| running.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    }
    slow.iter().for_each(wait_for_answer);
    let begun = Instant::now();
    assert_eq!(running.get("/healthz").0, 200);
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
}

#[test]
fn a_head_too_large_is_refused() {
    let running = Running::start(&full(), Limits::default());
    let (status, ..) = running.exchange(&format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(64 << 10)));
    assert_eq!(status, 431);
    let many = "X: y\r\n".repeat(200);
    let (status, ..) = running.exchange(&format!("GET / HTTP/1.1\r\nHost: localhost\r\n{many}\r\n"));
    assert_eq!(status, 431);
    let (status, ..) = running.exchange("garbage\r\n\r\n");
    assert_eq!(status, 400);
    assert_eq!(running.get("/healthz").0, 200);
}

#[test]
fn a_scrape_under_way_is_answered_to_its_end_and_idle_connections_are_not_waited_for() {
    // More patience than it takes even on a busy machine, and than anything here should need.
    let limits = Limits { end: Duration::from_secs(60), ..Limits::default() };
    let mut running = Running::start(&large(), limits);
    let mut idle = running.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    let mut scrape = running.connect();
    scrape.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    // Its answer is longer than the buffers: at the end it is still being written.
    wait_for_answer(&scrape);
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        let mut answer = Vec::new();
        scrape.read_to_end(&mut answer).expect("the whole answer");
        answer
    });
    let begun = Instant::now();
    running.end();
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    let (status, head, body) = split(&reader.join().expect("read"));
    let length: usize = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .and_then(|length| length.parse().ok())
        .expect("a length");
    assert_eq!((status, body.len()), (200, length));
    assert!(length > 4 << 20, "{length} bytes may fit the buffers: the test shows nothing");
    assert!(TcpStream::connect(running.address).is_err(), "nobody listens any more");
}

#[test]
fn the_end_does_not_wait_for_a_client_that_reads_nothing() {
    let mut running = Running::start(&large(), Limits::default());
    let mut stuck = running.connect();
    stuck.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    wait_for_answer(&stuck);
    let begun = Instant::now();
    running.end();
    assert!((Duration::from_millis(1_000)..Duration::from_secs(5)).contains(&begun.elapsed()), "{:?}", begun.elapsed());
}

#[test]
fn a_taken_port_is_named_with_the_remedy() {
    let running = Running::start(&full(), Limits::default());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let error = runtime.block_on(serve::bind(running.address)).expect_err("taken");
    assert!(matches!(error, ServeError::Taken { .. }));
    assert!(error.to_string().contains(&running.address.to_string()) && error.to_string().contains("--listen"), "{error}");
    let elsewhere = runtime.block_on(serve::bind("192.0.2.1:9809".parse().expect("an address"))).expect_err("not ours");
    assert!(matches!(elsewhere, ServeError::NotHere { .. }), "{elsewhere}");
}
