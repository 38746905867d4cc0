//! The export stage as a client sees it: over real sockets, against a store with known values.

mod answers;
mod exposition;
mod limits;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    thread::JoinHandle,
    time::Duration,
};

use tailcomb_common::block::Count;
use tokio::sync::oneshot;

use super::{
    access::Access,
    http::App,
    serve::{self, Limits},
};
use crate::{
    attribute::device::{Device, Layer},
    decode::request::{Mode, Outcome},
    probes::{
        block::{BlockSnapshot, Operation},
        verdict::ProbeVerdict,
    },
    store::{
        Options, ProbeRun, Shared, Store,
        block::tests::series,
        tests::{at, request, workload},
    },
};

/// A server on a thread of its own.
struct Running {
    address: SocketAddr,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(store: &Shared, limits: Limits) -> Self {
        let app = App::new(store.clone(), Access::new(Some("node-7"), &["tailcomb.example".to_owned()]));
        let (address_to, address_from) = std::sync::mpsc::channel();
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let listener = serve::bind("127.0.0.1:0".parse().expect("an address")).await.expect("a free port");
                address_to.send(listener.local_addr().expect("bound")).expect("the test waits");
                serve::serve(listener, app.router(), limits, async { ended.await.unwrap_or(()) }).await;
            });
        });
        Self { address: address_from.recv().expect("an address"), end: Some(end), thread: Some(thread) }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a time-out");
        stream
    }

    /// Sends these bytes and reads to the end: status, head, body.
    fn exchange(&self, bytes: &str) -> (u16, String, Vec<u8>) {
        let mut stream = self.connect();
        stream.write_all(bytes.as_bytes()).expect("the server reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers and closes");
        split(&answer)
    }

    fn get(&self, target: &str) -> (u16, String) {
        self.get_with(target, "Host: localhost\r\n")
    }

    fn get_with(&self, target: &str, headers: &str) -> (u16, String) {
        let (status, _, body) = self.exchange(&format!("GET {target} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n"));
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    fn end(&mut self) {
        if let Some(end) = self.end.take() {
            // The server may be gone already.
            let _ = end.send(());
        }
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server did not panic");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn split(answer: &[u8]) -> (u16, String, Vec<u8>) {
    let text = String::from_utf8_lossy(answer);
    let head = text.split("\r\n\r\n").next().unwrap_or_default().to_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no HTTP: {text:?}"));
    let body = answer.get(head.len() + 4..).unwrap_or_default().to_vec();
    (status, head, body)
}

fn store() -> Shared {
    Shared::new(Store::new(Options::default(), at(0)))
}

fn verdicts(attached: bool) -> Vec<ProbeVerdict> {
    ["block", "socket"].map(|probe| ProbeVerdict { probe, required: true, attached, programs: Vec::new() }).into()
}

fn disk(number: u32) -> Option<Device> {
    Some(Device { name: format!("vd{number}"), layer: if number == 2 { Layer::Stacked } else { Layer::Leaf } })
}

/// A snapshot of a disk and of a device stacked on it.
fn snapshot(seconds: u64, reads: &[u64]) -> BlockSnapshot {
    let mut read = series(1, Operation::Read, reads);
    read.count = Count { errors: 1, merges: 2, requeues: 3, partial: 4, ..read.count };
    let series = vec![read, series(2, Operation::Read, reads), series(1, Operation::DeviceWide, &[2_000_000])];
    BlockSnapshot { at_ns: at(seconds).monotonic_ns(), series }
}

/// A store with something in every family, ready.
fn full() -> Shared {
    let shared = store();
    {
        let mut store = shared.lock();
        store.set_probes(verdicts(true));
        store.set_probe_runs(vec![ProbeRun { probe: "block", seconds: 0.5, runs: 100.0 }]);
        let mut stream = request("/v1/chat/completions", Mode::Stream);
        stream.largest_gap_ns = Some(30_000_000);
        store.request(&stream, &workload("vllm"), Some("vllm"));
        store.request(&request("/health", Mode::Unary), &workload("vllm"), None);
        let mut aborted = request("/v1/completions", Mode::Unary);
        aborted.outcome = Outcome::Aborted;
        aborted.status = None;
        store.request(&aborted, &workload("vllm"), None);
        store.undecoded("tls", 1, &workload("triton"));
        store.incomplete(&workload("triton"));
        store.block(&snapshot(1, &[1_000]), &disk);
        store.block(&snapshot(2, &[1_000, 40_000, 70_000_000_000]), &disk);
        store.set_kernel_lost(&[1, 2, 3]);
        store.tick(at(3));
    }
    shared
}
