//! Clients that are slow, rude, many or late.

use std::time::Instant;

use super::*;
use crate::export::serve::ServeError;

/// A few places, and patience for whoever has one.
fn few() -> Limits {
    let patient = Duration::from_secs(120);
    Limits { connections: 4, answers: 3, head: patient, stall: patient, answer: patient, ..Limits::default() }
}

/// Well under what a probe waits, and far under the patience above.
const AT_ONCE: Duration = Duration::from_secs(1);

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

/// What a probe and a scraper ask is answered at once, though `slow` has taken all places and more.
fn answered_at_once(store: &Shared, slow: &[u8], wait: fn(&TcpStream)) {
    let running = Running::start(store, few());
    let mut clients: Vec<TcpStream> = (0..12).map(|_| running.connect()).collect();
    for client in &mut clients {
        // One that was given up already is as good as any other.
        let _ = client.write_all(slow);
    }
    wait(&clients[11]);
    for path in ["/healthz", "/metrics", "/healthz"] {
        let begun = Instant::now();
        assert_eq!(running.get(path).0, 200, "{path}");
        assert!(begun.elapsed() < AT_ONCE, "{path} took {:?}", begun.elapsed());
    }
}

#[test]
fn idle_connections_do_not_lock_others_out() {
    answered_at_once(&full(), b"", |_| {});
}

#[test]
fn heads_that_do_not_come_do_not_lock_others_out() {
    answered_at_once(&full(), b"GET /metrics HTTP/1.1\r\nHo", |_| {});
}

#[test]
fn answers_that_are_not_read_do_not_lock_others_out() {
    answered_at_once(&large(), b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", wait_for_answer);
}

/// Reads until the server is done with this connection; how long that took.
fn until_closed(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    let mut buffer = [0; 16];
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {
        std::thread::sleep(Duration::from_millis(20));
    }
    begun.elapsed()
}

#[test]
fn a_head_that_does_not_come_is_waited_for_no_longer_than_said() {
    let running = Running::start(&full(), Limits { head: Duration::from_millis(300), ..few() });
    let mut slow = running.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHo").expect("the server reads");
    let held = until_closed(&mut slow);
    assert!((Duration::from_millis(250)..Duration::from_secs(8)).contains(&held), "{held:?}");
}

#[test]
fn an_answer_that_is_read_too_slowly_is_cut_off() {
    // The patience for one that takes nothing is longer.
    let running = Running::start(&large(), Limits { answer: Duration::from_millis(300), ..few() });
    let mut slow = running.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("the server reads");
    wait_for_answer(&slow);
    std::thread::sleep(Duration::from_millis(2_500));
    let mut answer = Vec::new();
    // Cut off is a reset or an early end.
    let _ = slow.read_to_end(&mut answer);
    let (_, head, body) = split(&answer);
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok()).expect("a length");
    assert!(body.len() < length, "all {length} bytes came");
    assert_eq!(running.get("/healthz").0, 200);
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
