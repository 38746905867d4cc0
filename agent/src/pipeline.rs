//! The stages joined: source → decode → attribute → store. The one file that knows all of them.
//!
//! Everything here runs on one thread, but the scan for targets, which has its own. [`Pipeline::drain`] takes what the ring
//! buffer holds, a budget at a time, so that the HTTP server beside it is never kept waiting; [`Pipeline::tick`] does the rest,
//! once a second; [`Pipeline::pump`] does both for ever.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::ControlFlow,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use aya_log::EbpfLogger;
use log::Log;
use tailcomb_common::lost::{REASONS, SOCKET_MAP_FULL};
use tokio::{
    task::yield_now,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    attribute::{
        device::Devices,
        engine::Engine,
        measured::{News, Roster},
        scan::{Found, InKernel, Known, ScanError, ScanThread, Scanner},
        targets::{self, TargetError},
        workload::{Workload, Workloads},
    },
    clock::{Anchor, monotonic_ns},
    config::Config,
    decode::{self, Decoded, route::Routes},
    guard::{Advice, Guard, Usage},
    probes::{
        block::{BlockReader, selftest},
        loader::{self, LoadError, Loaded, Options},
        lost,
        run_time::RunTimes,
        skipped,
        socket::{self, SocketError, SocketProbe, TargetMaps},
        table::PROBES,
    },
    store::{ProbeRun, Shared},
};

/// How often the ring buffer is looked at when it is quiet.
pub const POLL: Duration = Duration::from_millis(50);
/// How often everything else is done.
pub const TICK: Duration = Duration::from_secs(1);
/// How long the start waits for the first scan.
const FIRST_SCAN: Duration = Duration::from_secs(5);
/// After this many ticks in which a scan still runs, that is said.
const LATE_SCAN: u32 = 10;
/// How long it is remembered which server a measured process was that has ended.
const REMEMBERED_NS: u64 = 10 * 1_000_000_000;
/// Most records taken before others get their turn.
const BUDGET: usize = 2_000;

/// Why the agent can't start. Each message says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A target that is none.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// A target that can't be looked for.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// No thread for the scan.
    #[error("no thread for the scan of processes could be started: {0}; look at the limit on processes (ulimit -u, pids.max)")]
    Thread(#[source] io::Error),
    /// No probe can be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The agent without its HTTP server.
pub struct Pipeline {
    store: Shared,
    loaded: Loaded,
    socket: Option<SocketProbe>,
    block: Option<BlockReader>,
    scan: ScanThread,
    /// Ticks since the scan that runs began.
    scan_ticks: u32,
    /// The processes that are measured, and those that were until just now, with the time at which they last were.
    members: HashMap<u32, (Known, u64)>,
    roster: Roster,
    routes: Routes,
    workloads: Workloads,
    devices: Devices,
    run_times: Option<RunTimes>,
    guard: Guard,
    /// What was counted as lost while the probes were being attached, one program after another: their samples are not lost,
    /// they began before there was a probe.
    lost_before: [u64; REASONS.len()],
    /// Diagnostics of the programs; only an object of the dev profile has any.
    diagnostics: Option<EbpfLogger<&'static dyn Log>>,
}

impl Pipeline {
    /// Loads the probes, tests them, and looks for targets.
    ///
    /// # Errors
    /// [`StartError`]; nothing stays attached then.
    pub fn start(config: &Config, store: Shared) -> Result<Self, StartError> {
        let scanner = Scanner::new(targets::parse_all(&config.targets)?)?;
        let options = Options {
            globals: BTreeMap::from([(socket::ALL, u32::from(scanner.all()))]),
            map_entries: BTreeMap::from([(socket::RECORDS, config.ring_buffer_mib << 20)]),
        };
        let mut loaded = loader::load(&options)?;
        if let Some(found) = self_test(&mut loaded, &config.state_dir) {
            tracing::info!(found, "self-test of the block probe on a read of our own");
        }
        let socket = if loaded.is_attached("socket") { open_socket(&mut loaded) } else { None };
        let block = loaded.is_attached("block").then(BlockReader::new);
        {
            let mut store = store.lock();
            store.set_probes(loaded.verdicts.clone());
            store.set_targets(scanner.targets());
        }
        if scanner.all() {
            tracing::info!("measuring every process (target `all`)");
        }
        let lost_before = lost::read(&loaded.ebpf).unwrap_or_default();
        let diagnostics = EbpfLogger::init(&mut loaded.ebpf).ok();
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut pipeline = Self {
            store,
            loaded,
            socket,
            block,
            scan: ScanThread::start(scanner).map_err(StartError::Thread)?,
            scan_ticks: 0,
            members: HashMap::new(),
            roster: Roster::default(),
            routes: Routes::default(),
            workloads: Workloads::default(),
            devices: Devices::new(),
            run_times: Some(RunTimes::new(Instant::now())),
            guard: Guard::new(config.max_overhead, cpus),
            lost_before,
            diagnostics,
        };
        pipeline.begin_scan();
        if let Some(found) = pipeline.scan.wait(FIRST_SCAN).and_then(|found| pipeline.apply_scan(found)) {
            for target in found.unmatched {
                tracing::info!(%target, "no process matches this target yet; it is looked for each second");
            }
        }
        Ok(pipeline)
    }

    /// Drains and ticks for ever, or until `after_tick`, called after each tick, breaks.
    pub async fn pump<B>(&mut self, mut after_tick: impl FnMut() -> ControlFlow<B>) -> B {
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let more = self.drain();
            tokio::select! {
                biased;
                _ = tick.tick() => {
                    self.tick(Instant::now());
                    if let ControlFlow::Break(value) = after_tick() {
                        return value;
                    }
                }
                () = yield_now(), if more => {}
                () = sleep(POLL), if !more => {}
            }
        }
    }

    /// Takes up to a budget of records out of the ring buffer; true where more are waiting.
    pub fn drain(&mut self) -> bool {
        if let Some(found) = self.scan.poll() {
            self.apply_scan(found);
        }
        let Some(socket) = &mut self.socket else { return false };
        let now = monotonic_ns();
        let mut store = self.store.lock();
        let (routes, workloads, members) = (&self.routes, &mut self.workloads, &self.members);
        let drained = socket.drain(BUDGET, |bytes| match decode::decode(bytes, routes) {
            Ok(Decoded::Request(request)) => {
                let seen = Seen {
                    tgid: request.tgid,
                    comm: &request.comm,
                    cgroup_id: request.cgroup_id,
                    by_first_thread: request.tid == request.tgid,
                };
                let workload = workload_of(workloads, seen, request.marks.end, now);
                let engine = members.get(&request.tgid).map_or_else(
                    || workloads.kin(&request.comm, request.cgroup_id).and_then(|kin| kin.engine),
                    |(member, _)| member.engine,
                );
                store.request(&request, &workload, engine.map(Engine::name));
            }
            Ok(Decoded::Incomplete(it)) => {
                let seen = Seen { tgid: it.tgid, comm: &it.comm, cgroup_id: it.cgroup_id, by_first_thread: it.tid == it.tgid };
                store.incomplete(&workload_of(workloads, seen, now, now));
            }
            Ok(Decoded::Undecoded(it)) => {
                let seen = Seen { tgid: it.tgid, comm: &it.comm, cgroup_id: it.cgroup_id, by_first_thread: false };
                store.undecoded(it.reason, it.count, &workload_of(workloads, seen, now, now));
            }
            Err(error) => store.add_lost(("decode", error.reason()), 1),
        });
        drained.more
    }

    /// Everything that is done once a second.
    pub fn tick(&mut self, now: Instant) {
        if let Some(diagnostics) = &mut self.diagnostics {
            diagnostics.flush();
        }
        self.begin_scan();
        self.read_block();
        self.read_lost();
        self.watch_overhead(now);
        self.store.lock().tick(Anchor::now());
    }

    /// Has the processes looked through, unless they still are.
    fn begin_scan(&mut self) {
        let Some(socket) = &mut self.socket else { return };
        let targets = socket.targets();
        let in_kernel = match targets.processes().and_then(|processes| Ok(InKernel { processes, ports: targets.ports()? })) {
            Ok(in_kernel) => in_kernel,
            Err(error) => {
                tracing::warn!(%error, "the kernel's list of targets can't be read; targets stay as they are");
                return;
            }
        };
        if self.scan.begin(in_kernel) {
            self.scan_ticks = 0;
            return;
        }
        self.scan_ticks += 1;
        if self.scan_ticks == LATE_SCAN {
            tracing::warn!(
                "looking through the processes takes longer than {LATE_SCAN} s: targets stay as they are meanwhile; /proc is slow"
            );
        }
    }

    /// Tells the kernel which processes and ports are measured now, as a scan found.
    fn apply_scan(&mut self, found: Result<Found, ScanError>) -> Option<Found> {
        let socket = self.socket.as_mut()?;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the processes could not be looked through; targets stay as they are");
                return None;
            }
        };
        let now = monotonic_ns();
        self.members.retain(|_, (_, seen_ns)| now.saturating_sub(*seen_ns) < REMEMBERED_NS);
        self.members.extend(found.members.iter().map(|(tgid, known)| (*tgid, (*known, now))));
        for process in &found.new {
            self.workloads.learn(process.clone(), now);
        }
        self.roster.update(&found.measured).iter().for_each(News::log);
        self.store.lock().set_measured(&found.measured);
        self.workloads.learn_names(found.members.values().map(|known| (known.id, known.engine)), now);
        if !found.changes.is_empty() {
            tracing::debug!(changes = ?found.changes, "targets changed");
            for error in apply(socket.targets(), &found) {
                tracing::warn!(%error, "a target could not be told to the kernel");
                self.store.lock().add_lost(REASONS[SOCKET_MAP_FULL as usize], 1);
            }
        }
        Some(found)
    }

    /// Reads the disks' figures.
    fn read_block(&mut self) {
        let Some(reader) = &mut self.block else { return };
        let now = monotonic_ns();
        match reader.read(&self.loaded.ebpf, now) {
            Ok(snapshot) => {
                for gone in self.devices.refresh(snapshot.series.iter().map(|series| series.device), now) {
                    if let Err(error) = reader.forget(&mut self.loaded.ebpf, gone) {
                        tracing::warn!(%error, device = gone, "the series of a device that is gone could not be dropped");
                    }
                }
                self.store.lock().block(&snapshot, &|device| self.devices.get(device).cloned());
            }
            Err(error) => tracing::warn!(%error, "the disks' figures could not be read this time"),
        }
    }

    /// Reads what the kernel half lost.
    fn read_lost(&self) {
        let mut store = self.store.lock();
        match lost::read(&self.loaded.ebpf) {
            Ok(mut totals) => {
                totals.iter_mut().zip(&self.lost_before).for_each(|(total, before)| *total = total.saturating_sub(*before));
                store.set_kernel_lost(&totals);
            }
            Err(error) => tracing::warn!(%error, "the kernel's loss counters could not be read this time"),
        }
        for (probe, runs) in skipped::read(&self.loaded.ebpf) {
            store.set_lost((probe, skipped::REASON), runs);
        }
    }

    /// Samples the probes' run time and gives a probe up where they take too much.
    fn watch_overhead(&mut self, now: Instant) {
        let Some(run_times) = &mut self.run_times else { return };
        let sample = match run_times.tick(&self.loaded.ebpf, now) {
            Ok(Some(sample)) => sample,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(%error, "the kernel does not account the probes' run time: the overhead guard is off");
                self.run_times = None;
                return;
            }
        };
        let runs = run_times
            .totals()
            .iter()
            .map(|(probe, total)| ProbeRun { probe, seconds: total.seconds, runs: total.runs })
            .collect();
        self.store.lock().set_probe_runs(runs);
        let usage: Vec<Usage> = PROBES
            .iter()
            .filter(|probe| self.loaded.is_attached(probe.name))
            .map(|probe| Usage {
                probe: probe.name,
                optional: !probe.required,
                run_seconds: sample.seconds.get(probe.name).copied().unwrap_or_default(),
            })
            .collect();
        match self.guard.observe(sample.period, &usage) {
            Advice::Carry => {}
            Advice::Warn { share } => tracing::warn!(
                share,
                limit = self.guard.limit(),
                "the probes take more CPU time than max_overhead allows, and all that are left are required"
            ),
            Advice::Detach { probe, share } => {
                tracing::warn!(
                    probe,
                    share,
                    limit = self.guard.limit(),
                    "the probes take more CPU time than max_overhead allows: detached"
                );
                self.loaded.detach(
                    probe,
                    &format!("the overhead guard detached it: the probes took {:.1} % of CPU time", share * 100.0),
                );
                self.store.lock().set_probes(self.loaded.verdicts.clone());
            }
        }
    }
}

/// Proves the `block` probe on a read of our own; one that sees something else is taken off. What was found, in words; `None`
/// where the probe is not attached.
pub fn self_test(loaded: &mut Loaded, state_dir: &Path) -> Option<String> {
    if !loaded.is_attached("block") {
        return None;
    }
    let failed = |loaded: &mut Loaded, why: String| {
        let found = format!("failed: {why}");
        loaded.detach("block", &format!("the start-up self-test {found}"));
        found
    };
    Some(match selftest::run(&mut loaded.ebpf, &self_test_folders(state_dir)) {
        Ok(selftest::Outcome::Passed { compared }) => format!("passed: {compared}"),
        Ok(selftest::Outcome::NotApplicable { reason }) => format!("not applicable: {reason}"),
        Ok(selftest::Outcome::Failed { seen }) => failed(loaded, seen),
        Err(error) => failed(loaded, error.to_string()),
    })
}

/// Where the self-test may write: the state folder first, then others that often lie on a disk.
fn self_test_folders(state_dir: &Path) -> Vec<PathBuf> {
    let mut folders = vec![state_dir.to_owned()];
    folders.extend(["/var/lib", "/var/tmp"].map(PathBuf::from));
    folders
}

/// Tells the kernel's maps; what ended goes first, to make room. Returns what the kernel refused.
fn apply(targets: &mut TargetMaps, Found { changes, members, .. }: &Found) -> Vec<SocketError> {
    let mut refused = Vec::new();
    let mut note = |result: Result<(), SocketError>| refused.extend(result.err());
    changes.removed_processes.iter().for_each(|tgid| note(targets.remove_process(*tgid)));
    changes.removed_ports.iter().for_each(|port| note(targets.remove_port(*port)));
    changes.added_ports.iter().for_each(|port| note(targets.add_port(port.port, port.claims)));
    for tgid in &changes.added_processes {
        let every_port = members.get(tgid).is_some_and(|member| member.every_port);
        note(targets.add_process(*tgid, every_port));
    }
    refused
}

fn open_socket(loaded: &mut Loaded) -> Option<SocketProbe> {
    match SocketProbe::new(&mut loaded.ebpf) {
        Ok(probe) => Some(probe),
        Err(error) => {
            loaded.detach("socket", &error.to_string());
            None
        }
    }
}

/// Who was seen by the kernel half.
#[derive(Clone, Copy)]
struct Seen<'a> {
    tgid: u32,
    /// Command name of the thread that was seen.
    comm: &'a str,
    /// cgroup v2 id of that thread.
    cgroup_id: u64,
    /// Is that thread the process's first, whose name is the process's name?
    by_first_thread: bool,
}

/// Whose a record is. A process that was gone before it could be looked at is taken for one of the measured processes of its name and cgroup; where
/// there are none of one workload, it has its own name, if that is known.
fn workload_of(workloads: &mut Workloads, seen: Seen<'_>, at_ns: u64, now_ns: u64) -> Workload {
    if let Some(process) = workloads.resolve(seen.tgid, at_ns, now_ns) {
        return process.workload.clone();
    }
    if let Some(workload) = workloads.kin(seen.comm, seen.cgroup_id).and_then(|kin| kin.workload.clone()) {
        return workload;
    }
    if seen.by_first_thread && !seen.comm.is_empty() {
        return Workload { workload: seen.comm.to_owned(), ..Workload::default() };
    }
    Workload::unknown()
}
