//! The listening side: connections within limits, and an end that keeps its word.

use std::{io, net::SocketAddr, pin::pin, time::Duration};

use axum::Router;
use hyper::{
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::watch,
    task::{JoinSet, yield_now},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use super::places::{Place, Places, Watched};

/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// Lines of a request's head.
const HEAD_LINES: usize = 64;
/// How long after the end a request may still be taken in that was sent before it: this process may have been busy ending
/// other things, and the kernel has it.
const LAST_ASKED: Duration = Duration::from_millis(50);
/// How many connections the kernel keeps for us until they are taken; it may keep fewer (`net.core.somaxconn`). One that finds no
/// room there tries again after a second.
const BACKLOG: u32 = 4_096;
/// How often answers that take too long are looked for.
const LOOK: Duration = Duration::from_secs(1);
/// Time between two log lines about connections that were given up.
const REPORT: Duration = Duration::from_secs(10);
/// A pause when no connection can be taken (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one client, or many, may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections at once; for a further one, that is given up which has done nothing for the longest.
    pub connections: usize,
    /// Most answers at once that are not written to their end: each is some megabytes. For a further one the oldest is given up.
    pub answers: usize,
    /// A request's head must come within this, a kept connection's next one too.
    pub head: Duration,
    /// A client that takes nothing of its answer for this long is cut off.
    pub stall: Duration,
    /// An answer that is not read to its end within this is cut off.
    pub answer: Duration,
    /// After this a connection takes no further request …
    pub age: Duration,
    /// … and has this long for the one that runs.
    pub last_request: Duration,
    /// How long the end waits for answers that are being read: with what the caller does besides, under 2 s.
    pub end: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            answers: 16,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(10),
            answer: Duration::from_secs(30),
            age: Duration::from_secs(120),
            last_request: Duration::from_secs(15),
            end: Duration::from_millis(1_000),
        }
    }
}

/// The address can't be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Taken.
    #[error(
        "can't listen on {address}: the port is taken, perhaps by another tailcomb; stop that, or choose another with --listen ADDR:PORT"
    )]
    Taken {
        /// The address.
        address: SocketAddr,
    },
    /// Not this machine's.
    #[error(
        "can't listen on {address}: this machine has no such address; choose one of its own, or 0.0.0.0, with --listen ADDR:PORT"
    )]
    NotHere {
        /// The address.
        address: SocketAddr,
    },
    /// Not allowed.
    #[error(
        "can't listen on {address}: not permitted; ports below 1024 need CAP_NET_BIND_SERVICE, choose another with --listen ADDR:PORT"
    )]
    Forbidden {
        /// The address.
        address: SocketAddr,
    },
    /// Anything else.
    #[error("can't listen on {address}: {source}; choose another address with --listen ADDR:PORT")]
    Other {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
}

/// Listens on `address`.
///
/// # Errors
/// [`ServeError`] with the remedy.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, ServeError> {
    listen(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::Taken { address },
        io::ErrorKind::AddrNotAvailable => ServeError::NotHere { address },
        io::ErrorKind::PermissionDenied => ServeError::Forbidden { address },
        _ => ServeError::Other { address, source },
    })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As a restarted server needs: connections of the one before may still be ending.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Serves until `end` completes, then takes no further connection but those that wait already, lets what was asked be answered
/// and read, and returns within `limits.end`.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, end: impl Future<Output = ()>) {
    let places = Places::new(limits.connections, limits.answers);
    let (closing, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let serve_one = |connections: &mut JoinSet<()>, stream| {
        connections.spawn(connection(stream, places.take(), router.clone(), limits, closing.subscribe()));
    };
    let mut look = interval(LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut report = Report::default();
    let mut end = pin!(end);
    loop {
        tokio::select! {
            biased;
            () = &mut end => break,
            _ = look.tick() => {
                places.give_up_overdue(limits.answer);
                report.say(places.given_up());
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    serve_one(&mut connections, stream);
                    // It gets its turn before it may be given up for the next one: what it asked is here already, as a rule.
                    yield_now().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "no connection could be taken");
                    places.make_room();
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
        while connections.try_join_next().is_some() {}
    }
    let begun = Instant::now();
    let mut last_asked = pin!(sleep(LAST_ASKED));
    // Bounded: those who come all the time don't put the end off.
    for _ in 0..limits.connections {
        tokio::select! {
            biased;
            accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                serve_one(&mut connections, stream);
                yield_now().await;
            },
            () = &mut last_asked => break,
        }
    }
    drop(listener);
    closing.send_replace(true);
    let all_ended = async { while connections.join_next().await.is_some() {} };
    if timeout(limits.end.saturating_sub(begun.elapsed()), all_ended).await.is_err() {
        tracing::warn!("some clients did not read their answers in time");
    }
}

/// Says how many connections were given up, now and then.
#[derive(Default)]
struct Report {
    said: u64,
    at: Option<Instant>,
}

impl Report {
    fn say(&mut self, given_up: u64) {
        if given_up == self.said || self.at.is_some_and(|at| at.elapsed() < REPORT) {
            return;
        }
        tracing::warn!(
            connections = given_up - self.said,
            "HTTP connections were given up for newer ones, or because their answers were not read in time"
        );
        (self.said, self.at) = (given_up, Some(Instant::now()));
    }
}

async fn connection(stream: TcpStream, place: Place, router: Router, limits: Limits, mut closing: watch::Receiver<bool>) {
    let stream = Watched::new(stream, limits.stall, &place);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    let (service, answer_begins) = (TowerToHyperService::new(router), place.marker());
    let service = service_fn(move |request| {
        let (answer, begins) = (service.call(request), answer_begins.clone());
        async move {
            let answer = answer.await;
            begins();
            answer
        }
    });
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
    let gone = place.gone();
    let mut gone = pin!(gone);
    tokio::select! {
        // What goes wrong with one client concerns only that client.
        _ = connection.as_mut() => return,
        () = gone.as_mut() => return,
        () = async {
            let _ = closing.wait_for(|closing| *closing).await;
            sleep(LAST_ASKED).await;
        } => {}
        () = sleep(limits.age) => {}
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        _ = timeout(limits.last_request, connection) => {}
        () = gone => {}
    }
}
