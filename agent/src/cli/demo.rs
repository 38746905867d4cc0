//! `tailcomb demo`: the agent beside a real little inference server under load, and what it saw of it.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Write},
    net::SocketAddr,
    ops::ControlFlow,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Args;
use tailcomb_common::block;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};

use super::{BAD_USAGE, GRACE, OK, start_logging};
use crate::{
    clock::{Anchor, monotonic_ns},
    config::{Config, parse_listen},
    demo::{
        self, DemoError, Running, Workload,
        report::{Run, Seconds},
        truth::{Counters, Endpoint},
    },
    export::{http::Server, parameters},
    pipeline::{POLL, Pipeline},
    probes::loader,
    render::{Mark, Style},
    store::{
        self, Shared, Store,
        heatmap::{Query, Signal},
    },
};

/// Time between two lines of progress where there is no terminal.
const LINE_PERIOD: Duration = Duration::from_secs(10);
/// Longest run: what the heatmaps keep.
const LONGEST: u64 = store::heatmap::SECONDS;

/// Flags of `tailcomb demo`.
#[derive(Args)]
pub(super) struct Demo {
    /// How long to measure: 90, 90s, 2m; at most 30m.
    #[arg(long, default_value = "90s", value_parser = parameters::duration)]
    duration: Duration,
    /// Time from one flush to the next.
    #[arg(long, default_value = "6s", value_parser = parameters::duration)]
    period: Duration,
    /// Requests a second, on average.
    #[arg(long, default_value_t = 80.0)]
    rate: f64,
    /// The same seed gives the same arrivals and the same model times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder for the demo's files, on a real disk [default: the first such of the current folder, /var/tmp, home, /tmp, /].
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// Address and port of /metrics meanwhile.
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:9809", value_parser = parse_listen)]
    listen: SocketAddr,
}

/// Runs to the end of `--duration`, or to SIGINT or SIGTERM, and prints what was seen until then.
pub(super) fn main(flags: &Demo) -> Result<u8> {
    let options =
        demo::Options { folder: flags.dir.clone(), period: flags.period, rate: flags.rate, seed: flags.seed, program: None };
    if let Err(error) = check(flags.duration).and_then(|()| options.check()) {
        eprintln!("tailcomb: {error}");
        return Ok(BAD_USAGE);
    }
    let config = Config { listen: flags.listen, log_level: "warn".to_owned(), ..Config::default() };
    start_logging(&config);
    ask_the_kernel()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    // The port first: what can't be asked is not to write to the disk.
    let server = runtime.block_on(Server::bind(config.listen))?;
    println!(
        "Preparing: starting a server on the loopback address, writing its index to the disk, measuring how fast the disk writes ..."
    );
    // Blocking, and outside of the runtime: a Ctrl-C here ends this process at once, and its children with it.
    let workload = Workload::start(&options)?;
    let run = runtime.block_on(measure(flags, config, server, workload))?;
    print!("\n{}", run.text(&Style::of_stdout()));
    Ok(OK)
}

fn check(duration: Duration) -> Result<(), DemoError> {
    if (1..=LONGEST).contains(&duration.as_secs()) {
        return Ok(());
    }
    Err(DemoError::Setting {
        name: "duration",
        value: humantime::format_duration(duration).to_string(),
        range: "1s to 30m, which is what the heatmaps keep",
    })
}

/// Loads the probes once before anything is written to the disk, so that what is missing is said first.
fn ask_the_kernel() -> Result<()> {
    let loaded = loader::load(&loader::Options::default())?;
    if let Some(verdict) = loaded.verdicts.iter().find(|verdict| verdict.required && !verdict.attached) {
        let (reason, remedy) = verdict.missing().unwrap_or(("it was taken off", "see `tailcomb check`"));
        bail!("the demo needs the probe {}, which does not work here: {reason}; {remedy}", verdict.probe);
    }
    Ok(())
}

async fn measure(flags: &Demo, mut config: Config, server: Server, mut workload: Running) -> Result<Run> {
    let mut terminate = signal(SignalKind::terminate()).context("waiting for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("waiting for SIGINT")?;
    config.targets = vec![format!("pid:{}", workload.server_pid)];
    config.state_dir.clone_from(&workload.place.folder);
    let address = format!("http://{}/metrics", server.local_addr());
    println!(
        "Server on 127.0.0.1:{} (process {}); a writer flushes about {} MiB to {} ({}) each {:?}; metrics at {address}",
        workload.server_port,
        workload.server_pid,
        workload.flush_bytes >> 20,
        workload.place.disk,
        workload.place.folder.display(),
        flags.period,
    );
    let store = Shared::new(Store::new(store::Options::default(), Anchor::now()));
    let mut pipeline = Pipeline::start(&config, store.clone())?;
    let (stop, stopped) = watch::channel(false);
    let serving = tokio::spawn(server.serve(store.clone(), Vec::new(), stopped));
    // The first snapshot of the disks: what they did before is not the demo's.
    pipeline.tick(Instant::now());
    let start_ns = begin(&mut workload).await?;
    let mut progress = Progress::new(flags.duration);
    let after_tick = || match workload.check() {
        Ok(()) => {
            progress.show(&store, workload.progress());
            ControlFlow::Continue(())
        }
        Err(error) => ControlFlow::Break(error),
    };
    tokio::select! {
        failed = pipeline.pump(after_tick) => return Err(failed.into()),
        () = sleep(flags.duration) => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    // What the disks did since the last tick belongs to the last second.
    pipeline.tick(Instant::now());
    progress.end();
    let ended_ns = monotonic_ns();
    // The last answers are still on their way: the probes stay on until the clients have them.
    let mut ending = tokio::task::spawn_blocking(move || {
        let place = workload.place.clone();
        workload.stop().map(|seen| (seen, place))
    });
    let (seen, place) = loop {
        pipeline.drain();
        tokio::select! {
            ended = &mut ending => break ended.context("the workload's end")??,
            () = sleep(POLL) => {}
        }
    };
    while pipeline.drain() {}
    pipeline.tick(Instant::now());
    let run = collect(&store, seen, &place.disk, start_ns, ended_ns, address);
    drop(pipeline);
    let _ = stop.send(true);
    let _ = tokio::time::timeout(GRACE, serving).await;
    Ok(run)
}

/// Begins load and flushes at the beginning of a second, so that columns of seconds are whole from the first on.
async fn begin(workload: &mut Running) -> Result<u64> {
    let now = Anchor::now();
    let unix = now.unix_seconds(now.monotonic_ns());
    sleep(Duration::from_secs_f64(1.0 - unix.fract())).await;
    workload.begin()?;
    Ok(monotonic_ns())
}

/// Takes the run out of the store.
fn collect(store: &Shared, seen: Counters, disk: &str, start_ns: u64, end_ns: u64, address: String) -> Run {
    let store = store.lock();
    let anchor = store.latest();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds since 1970")]
    let unix = |ns: u64| anchor.unix_seconds(ns) as u64;
    let start = unix(start_ns);
    let seconds = usize::try_from(unix(end_ns).saturating_sub(start)).unwrap_or(0).max(1);
    let (mut requests, mut health) = (0, 0);
    for (labels, values) in store.http.iter() {
        let count: u64 = values.native().slots().map(|(_, count)| count).sum();
        *(if labels.route.name() == Endpoint::Health.path() { &mut health } else { &mut requests }) += count;
    }
    let values = |signal: Signal, label: &str, value: &str| {
        let filters = vec![(label.to_owned(), value.to_owned())];
        let mut values = Seconds::new(seconds);
        let query = Query { signal, from: Some(start), to: Some(start + seconds as u64), step: 1, filters };
        values.add(&store.heatmaps.query(&query), start);
        values
    };
    let route = |endpoint: Endpoint| values(Signal::RequestDuration, "http_route", endpoint.path());
    let routes: BTreeMap<_, _> =
        [Endpoint::Chat, Endpoint::Completion, Endpoint::Embedding].map(|endpoint| (endpoint.path(), route(endpoint))).into();
    let at = |ns: u64| anchor.unix_seconds(ns) - start as f64;
    Run {
        seconds,
        routes,
        requests,
        health,
        disk: values(Signal::Block(block::TOTAL), "device", disk),
        disk_name: disk.to_owned(),
        flushes: seen.flushes.iter().map(|flush| Mark { from: at(flush.start_ns), to: at(flush.end_ns) }).collect(),
        seen,
        lost: store.lost.iter().filter(|(_, count)| *count > 0).map(|((stage, reason), count)| (stage, reason, count)).collect(),
        undecoded: store.undecoded.iter().map(|(_, count)| *count).sum(),
        address,
    }
}

/// The line that says how far it is: one that is written over on a terminal, a new one each ten seconds elsewhere.
struct Progress {
    terminal: bool,
    duration: Duration,
    started: Instant,
    next: Duration,
}

impl Progress {
    fn new(duration: Duration) -> Self {
        let terminal = std::io::stdout().is_terminal();
        Self { terminal, duration, started: Instant::now(), next: if terminal { Duration::ZERO } else { LINE_PERIOD } }
    }

    fn show(&mut self, store: &Shared, (answered, flushes): (u64, usize)) {
        let passed = self.started.elapsed();
        if passed < self.next {
            return;
        }
        let requests: u64 =
            store.lock().http.iter().flat_map(|(_, values)| values.native().slots()).map(|(_, count)| count).sum();
        let line = format!(
            "{:>4} s of {} s: {requests} requests seen by the probes, {answered} answered to the clients, {flushes} flushes",
            passed.as_secs(),
            self.duration.as_secs(),
        );
        if self.terminal {
            print!("\r{line}\x1b[K");
            // Nobody is there to see it then.
            let _ = std::io::stdout().flush();
        } else {
            println!("{line}");
            self.next += LINE_PERIOD;
        }
    }

    /// Leaves the line that is written over.
    fn end(&self) {
        if self.terminal {
            println!();
        }
    }
}
