//! The demo's workload as a whole.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{
    place::{self, Place, PlaceError},
    role::{Role, Setup},
    truth::Counters,
    worker::{Seen, Worker},
};

/// What the workload is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder for its files; `None`: the first one found that is on a disk.
    pub folder: Option<PathBuf>,
    /// Time from one flush to the next.
    pub period: Duration,
    /// Requests a second, on average.
    pub rate: f64,
    /// The same seed gives the same arrivals and the same model times.
    pub seed: u64,
    /// A program whose `main` begins with [`super::role::dispatch`]; `None`: the running one.
    pub program: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { folder: None, period: Duration::from_secs(6), rate: 80.0, seed: 1, program: None }
    }
}

impl Options {
    /// Are rate and period within their ranges?
    ///
    /// # Errors
    /// [`DemoError::Setting`] with the first that is not.
    pub fn check(&self) -> Result<(), DemoError> {
        if !(0.1..=1_000.0).contains(&self.rate) {
            return Err(DemoError::Setting {
                name: "rate",
                value: self.rate.to_string(),
                range: "0.1 to 1000 requests a second",
            });
        }
        if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&self.period) {
            return Err(DemoError::Setting {
                name: "period",
                value: humantime::format_duration(self.period).to_string(),
                range: "1s to 1h",
            });
        }
        Ok(())
    }
}

/// Why the demo can't run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A setting is out of its range.
    #[error("--{name} {value}: must be {range}")]
    Setting {
        /// Name of the flag.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        range: &'static str,
    },
    /// No folder for its files.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A process could not be started.
    #[error("{role} could not be started: {source}")]
    Start {
        /// Which one.
        role: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A process did not become ready.
    #[error("{role} is not ready: {reason}")]
    NotReady {
        /// Which one.
        role: &'static str,
        /// Why.
        reason: String,
    },
    /// A process ended in the middle.
    #[error("the demo's workload broke off: {0}")]
    Broken(String),
}

/// The workload, not running yet.
#[derive(Debug)]
pub struct Workload;

/// The workload: ready, and after [`Running::begin`] under load. Ends, and its files with it, when dropped.
#[derive(Debug)]
pub struct Running {
    /// TCP port of the server on the loopback address.
    pub server_port: u16,
    /// Process of the server: what the agent is to measure.
    pub server_pid: u32,
    /// Where its files are.
    pub place: Place,
    /// Bytes of one flush as measured at the start; later ones follow the disk's speed.
    pub flush_bytes: u64,
    // Dropped in this order: clients, server, writer.
    load: Option<Worker>,
    server: Worker,
    metrics: Worker,
    program: PathBuf,
    setup: Setup,
    seen: Arc<Mutex<Seen>>,
}

impl Workload {
    /// Starts server and metrics writer, and measures the disk. Blocks for some seconds. No request is sent and no flush is made
    /// before [`Running::begin`], so that probes can be attached to a server that is idle.
    ///
    /// # Errors
    /// [`DemoError`]; nothing is left behind.
    pub fn start(options: &Options) -> Result<Running, DemoError> {
        options.check()?;
        let place = place::choose(options.folder.as_deref())?;
        let program = match &options.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(|source| DemoError::Start { role: Role::Server.name(), source })?,
        };
        let seen = Arc::default();
        let mut setup =
            Setup { folder: place.folder.clone(), port: 0, seed: options.seed, rate: options.rate, period: options.period };
        let server = Worker::start(&program, Role::Server, &setup, &seen)?;
        setup.port = u16::try_from(server.ready(&seen)?).unwrap_or_default();
        // After the index is written, so that the one does not slow the other's measurement.
        let metrics = Worker::start(&program, Role::Metrics, &setup, &seen)?;
        let flush_bytes = metrics.ready(&seen)?;
        let (server_port, server_pid) = (setup.port, server.pid());
        Ok(Running { server_port, server_pid, place, flush_bytes, load: None, server, metrics, program, setup, seen })
    }
}

impl Running {
    /// Begins load and flushes. A second call changes nothing.
    ///
    /// # Errors
    /// [`DemoError`] when the clients can't be started or the writer has ended.
    pub fn begin(&mut self) -> Result<(), DemoError> {
        if self.load.is_none() {
            self.load = Some(Worker::start(&self.program, Role::Load, &self.setup, &self.seen)?);
            self.metrics.order("begin").map_err(|error| DemoError::Broken(error.to_string()))?;
        }
        Ok(())
    }

    /// What was seen so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.seen().counters.clone()
    }

    /// Requests answered and flushes made so far.
    #[must_use]
    pub fn progress(&self) -> (u64, usize) {
        let seen = self.seen();
        (seen.counters.answered_in_all(), seen.counters.flushes.len())
    }

    /// Are all of its processes alive?
    ///
    /// # Errors
    /// [`DemoError::Broken`] with the reason that the process gave.
    pub fn check(&mut self) -> Result<(), DemoError> {
        let workers = [Some(&mut self.server), Some(&mut self.metrics), self.load.as_mut()];
        let ended = workers.into_iter().flatten().any(Worker::has_ended);
        match (self.seen().broken.clone(), ended) {
            (Some(reason), _) => Err(DemoError::Broken(reason)),
            (None, true) => Err(DemoError::Broken("a process was killed".to_owned())),
            (None, false) => Ok(()),
        }
    }

    /// Ends the load and the flushes, waits for the last answers (some seconds at most), ends the server, and gives back all
    /// that was seen.
    ///
    /// # Errors
    /// [`DemoError::Broken`] when a process could not do its work to the end.
    pub fn stop(mut self) -> Result<Counters, DemoError> {
        let checked = self.check();
        self.load.iter_mut().for_each(Worker::stop);
        self.metrics.stop();
        self.server.stop();
        checked?;
        let mut seen = self.seen();
        match seen.broken.take() {
            Some(reason) => Err(DemoError::Broken(reason)),
            None => Ok(std::mem::take(&mut seen.counters)),
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
