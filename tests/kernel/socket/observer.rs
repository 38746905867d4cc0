//! The probe as the cases see it, loaded once for most of them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use aya::maps::PerCpuArray;
use tailcomb::{
    decode::record::Record,
    probes::{
        loader::{self, Loaded, Options},
        skipped,
        socket::SocketProbe,
    },
};
use tailcomb_common::{
    lost::REASONS,
    socket::{RequestRecord, UNDECODED_REASONS},
};
use tailcomb_tests::{
    child,
    http::{Server, Step, chunk, write},
};

/// The probe, and what it has told so far.
pub(super) struct Observer {
    loaded: Loaded,
    pub(super) probe: SocketProbe,
    requests: Vec<RequestRecord>,
    undecoded: BTreeMap<u16, Vec<&'static str>>,
}

static SHARED: Mutex<Option<Observer>> = Mutex::new(None);

/// Runs a case on the observer that the cases share: it measures this process and its children.
pub(super) fn observe(case: impl FnOnce(&mut Observer) -> Result<()>) -> Result<()> {
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    if shared.is_none() {
        let mut observer = Observer::load(&Options::default())?;
        observer.probe.targets().add_process(std::process::id(), true)?;
        *shared = Some(observer);
    }
    case(shared.as_mut().context("just loaded")?)
}

/// Runs a case that sees to many calls in a short time. Where it fails and the kernel says that it skipped runs of the probe's
/// programs meanwhile (a kernel that preempts them does, and the agent counts that as lost), it is said and the case repeated.
pub(super) fn unless_skipped(case: fn() -> Result<()>) -> Result<()> {
    let skipped = || -> Result<u64> {
        let mut runs = 0;
        observe(|observer| {
            runs = observer.skipped();
            Ok(())
        })?;
        Ok(runs)
    };
    for _ in 0..4 {
        let before = skipped()?;
        match case() {
            Err(error) if skipped()? > before => println!("repeated: the kernel skipped runs meanwhile: {error:#}"),
            done => return done,
        }
    }
    case()
}

/// A server that the shared observer sees begin to listen.
pub(super) fn start(script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Result<Server> {
    observe(|_| Ok(()))?;
    Server::start(script)
}

impl Observer {
    /// Loads the probe anew.
    pub(super) fn load(options: &Options) -> Result<Self> {
        let mut loaded = loader::load(options)?;
        ensure!(loaded.is_attached("socket"), "not attached: {:?}", loaded.verdicts);
        let probe = SocketProbe::new(&mut loaded.ebpf)?;
        Ok(Self { loaded, probe, requests: Vec::new(), undecoded: BTreeMap::new() })
    }

    /// The requests to a port, once there are `count` of them; more than that is an error too.
    pub(super) fn requests(&mut self, port: u16, count: usize) -> Result<Vec<RequestRecord>> {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            self.drain()?;
            let have = self.requests.iter().filter(|record| record.local_port == port).count();
            if have >= count {
                // What comes too much comes at once.
                thread::sleep(Duration::from_millis(20));
                self.drain()?;
                let (these, others) =
                    std::mem::take(&mut self.requests).into_iter().partition(|record| record.local_port == port);
                self.requests = others;
                let these: Vec<RequestRecord> = these;
                ensure!(these.len() == count, "{} requests instead of {count}: {these:?}", these.len());
                return Ok(these);
            }
            ensure!(
                Instant::now() < deadline,
                "{have} requests instead of {count}; undecoded {:?}, lost {:?}",
                self.undecoded.get(&port),
                self.lost()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Why requests or connections of a port were not decoded, waiting for the first of them.
    pub(super) fn undecoded(&mut self, port: u16) -> Result<Vec<&'static str>> {
        let deadline = Instant::now() + Duration::from_secs(5);
        while !self.undecoded.contains_key(&port) && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(10));
            self.drain()?;
        }
        Ok(self.undecoded.remove(&port).unwrap_or_default())
    }

    /// Is everything told of a port as it should be where nothing was left out?
    pub(super) fn nothing_undecoded(&mut self, port: u16) -> Result<()> {
        self.drain()?;
        ensure!(!self.undecoded.contains_key(&port), "undecoded: {:?}", self.undecoded.get(&port));
        Ok(())
    }

    /// Runs of the probe's programs that the kernel skipped so far.
    fn skipped(&self) -> u64 {
        skipped::read(&self.loaded.ebpf).get("socket").copied().unwrap_or_default()
    }

    fn drain(&mut self) -> Result<()> {
        let mut failure = None;
        loop {
            let drained = self.probe.drain(256, |bytes| match Record::from_bytes(bytes) {
                Ok(Record::Request(record)) => self.requests.push(record),
                Ok(Record::Undecoded(record)) => {
                    let reason = UNDECODED_REASONS.get(record.reason as usize).copied().unwrap_or("out of range");
                    let count = record.requests.max(1) as usize;
                    self.undecoded.entry(record.local_port).or_default().extend(std::iter::repeat_n(reason, count));
                }
                Err(error) => failure = Some(error),
            });
            if let Some(error) = failure {
                return Err(error.into());
            }
            if !drained.more {
                return Ok(());
            }
        }
    }

    /// Is a program of the probe in use on this kernel?
    pub(super) fn uses(&self, program: &str) -> bool {
        self.loaded.verdicts.iter().flat_map(|probe| &probe.programs).any(|row| row.program == program && row.verdict.is_ok())
    }

    /// The loss counters of the probe that are not 0.
    pub(super) fn lost(&self) -> Result<BTreeMap<&'static str, u64>> {
        let map = self.loaded.ebpf.map("LOST").context("the map LOST")?;
        let map = PerCpuArray::<_, u64>::try_from(map)?;
        let mut lost = BTreeMap::new();
        for (position, (stage, reason)) in REASONS.iter().enumerate() {
            let count: u64 = map.get(&u32::try_from(position)?, 0)?.iter().sum();
            if *stage == "socket" && count > 0 {
                lost.insert(*reason, count);
            }
        }
        Ok(lost)
    }
}

/// Tolerance of a time: what lies between a mark in the kernel and the stamp of the thread beside it. Software emulation of a
/// guest, on a loaded machine, stretches that.
fn tolerance_ms() -> f64 {
    tolerance_ns() as f64 / 1e6
}

/// The same in ns.
pub(super) fn tolerance_ns() -> u64 {
    if std::env::var_os("TAILCOMB_TEST_GUEST").is_some() { 60_000_000 } else { 5_000_000 }
}

/// Is `mark` within the tolerance of the time from `begin` to `end` (a step of the server's log)?
pub(super) fn within(what: &str, mark: u64, (begin, end): (u64, u64)) -> Result<()> {
    let ms = |ns: u64| ns as f64 / 1e6;
    let (early, late) = (ms(begin.saturating_sub(mark)), ms(mark.saturating_sub(end)));
    ensure!(mark != 0, "{what} is missing");
    ensure!(early <= tolerance_ms() && late <= tolerance_ms(), "{what}: {early:.2} ms too early or {late:.2} ms too late");
    Ok(())
}

/// Is a duration that of two steps of the server's log?
pub(super) fn lasts(what: &str, ns: u64, from: (u64, u64), to: (u64, u64)) -> Result<()> {
    within(what, ns, (to.0.saturating_sub(from.1), to.1.saturating_sub(from.0)))
}

/// What the server of a case in a process of its own does.
fn script(path: &str) -> Vec<Step> {
    match path {
        "/stream" => vec![
            write("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"),
            write(&chunk("data: 1\n\n")),
            Step::Wait(60_000),
        ],
        _ => vec![Step::Wait(20), write("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")],
    }
}

/// Is this process meant to be that server? Then it serves until it is killed.
pub(crate) fn serve_if_told() -> Result<()> {
    child::serve_if_told(script)
}
