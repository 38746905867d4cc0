//! The exporter served in this process over known values.

use std::{net::SocketAddr, thread::JoinHandle};

use anyhow::{Context, Result, ensure};
use tailcomb::{
    attribute::{
        device::{Device, Layer},
        workload::Workload,
    },
    clock::Anchor,
    decode::{
        request::{Marks, Mode, Outcome, Request},
        route::Routes,
    },
    export::http::Server,
    probes::{
        block::{BlockSeries, BlockSnapshot, Operation, PhaseHistogram},
        verdict::ProbeVerdict,
    },
    store::{Options, Shared, Store},
};
use tailcomb_common::{
    block::Count,
    bucket::{KERNEL_SLOTS, kernel_slot, upper_bound_ns},
};
use tailcomb_tests::agent::get_from;
use tokio::sync::watch;

/// The exporter on a free loopback port, on a thread of its own.
pub(crate) struct Served {
    pub(crate) store: Shared,
    pub(crate) address: SocketAddr,
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    /// Serves a store in which both probes are attached and nothing is counted yet.
    pub(crate) fn start() -> Result<Self> {
        let store = Shared::new(Store::new(Options::default(), Anchor::now()));
        store.lock().set_probes(
            ["block", "socket"].map(|probe| ProbeVerdict { probe, required: true, attached: true, programs: Vec::new() }).into(),
        );
        let (end, ended) = watch::channel(false);
        let (to, from) = std::sync::mpsc::channel();
        let shared = store.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let server = Server::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
                to.send(server.local_addr()).expect("the test waits");
                server.serve(shared, Vec::new(), ended).await;
            });
        });
        Ok(Self { store, address: from.recv().context("the server's address")?, end, thread: Some(thread) })
    }

    /// Counts complete requests that lasted `ns`, streams with a first token after `first_token`.
    pub(crate) fn request(&self, route: &str, count: u64, ns: u64, first_token: Option<u64>) {
        let now = Anchor::now().monotonic_ns();
        let arrive = now.saturating_sub(ns);
        let request = Request {
            connection: 1,
            tgid: 1,
            tid: 1,
            comm: "server".to_owned(),
            cgroup_id: 1,
            local_port: 8_000,
            method: "POST",
            route: Routes::default().of(route),
            status: Some(200),
            mode: if first_token.is_some() { Mode::Stream } else { Mode::Unary },
            outcome: Outcome::Complete,
            arrival_seen: true,
            marks: Marks {
                arrive,
                first_read: Some(arrive + 20_000),
                first_event: first_token.map(|ns| arrive + ns),
                end: arrive + ns,
                ..Marks::default()
            },
            request_bytes: 3_000,
            response_bytes: 100,
            event_chunks: 0,
            largest_gap_ns: None,
            unseen: None,
        };
        let workload = Workload { workload: "server".to_owned(), ..Workload::default() };
        let mut store = self.store.lock();
        for _ in 0..count {
            store.request(&request, &workload, Some("vllm"));
        }
    }

    /// Sets what the disk `vda` has done to reads of these times.
    pub(crate) fn reads(&self, times: &[(u64, u64)]) {
        let mut counts = Box::new([0; KERNEL_SLOTS]);
        let (mut completed, mut sum_ns) = (0, 0);
        for (ns, count) in times {
            counts[kernel_slot(*ns)] += count;
            completed += count;
            sum_ns += ns * count;
        }
        let phase = Some(PhaseHistogram { sum_ns, max_ns: 0, counts });
        let series = BlockSeries {
            device: 1,
            operation: Operation::Read,
            count: Count { started: completed, completed, bytes: 4_096 * completed, ..Count::default() },
            phases: [phase.clone(), phase.clone(), phase.clone(), phase],
        };
        let snapshot = BlockSnapshot { at_ns: Anchor::now().monotonic_ns(), series: vec![series] };
        let disk = |_| Some(Device { name: "vda".to_owned(), layer: Layer::Leaf });
        let mut store = self.store.lock();
        store.block(&snapshot, &disk);
        store.tick(Anchor::now());
    }

    /// Its metrics in one format.
    pub(crate) fn metrics(&self, accept: &str) -> Result<Vec<u8>> {
        let (status, body) = get_from(self.address, "/metrics", accept)?;
        ensure!(status == 200, "/metrics: {status}");
        Ok(body)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.end.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Bounds in seconds of the schema-3 bucket that holds `ns`: what is above the first, up to the second.
pub(crate) fn bucket_of(ns: u64) -> Result<(f64, f64)> {
    let slot = tailcomb_common::bucket::slot(ns);
    #[expect(clippy::cast_precision_loss, reason = "under 2^53")]
    let bound = |slot| upper_bound_ns(slot).map(|ns| ns as f64 / 1e9).context("a finite bucket");
    Ok((bound(slot - 1)?, bound(slot)?))
}
