//! The listening side: connections within limits, and an end that keeps its word.

use std::{io, net::SocketAddr, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;

/// Bytes of a request's head.
const HEAD_BYTES: usize = 16 << 10;
/// Lines of a request's head.
const HEAD_LINES: usize = 64;
/// How long after the end a request may still be taken in that was sent before it: this process may have been busy ending
/// other things, and the kernel has it.
const LAST_ASKED: Duration = Duration::from_millis(50);
/// A pause when no connection can be taken (no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one client, or many, may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most connections at once; further ones wait in the kernel's queue.
    pub connections: usize,
    /// A request's head must come within this, a kept connection's next one too.
    pub head: Duration,
    /// A client that takes nothing of its answer for this long is cut off.
    pub stall: Duration,
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
            connections: 64,
            head: Duration::from_secs(10),
            stall: Duration::from_secs(10),
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
    TcpListener::bind(address).await.map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => ServeError::Taken { address },
        io::ErrorKind::AddrNotAvailable => ServeError::NotHere { address },
        io::ErrorKind::PermissionDenied => ServeError::Forbidden { address },
        _ => ServeError::Other { address, source },
    })
}

/// Serves until `end` completes, then takes no further connection but those that wait already, lets what was asked be answered
/// and read, and returns within `limits.end`.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, end: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let (closing, _) = watch::channel(false);
    let mut connections = JoinSet::new();
    let accept = || async {
        let place = Arc::clone(&places).acquire_owned().await;
        (place, listener.accept().await)
    };
    let serve_one = |connections: &mut JoinSet<()>, (place, stream)| {
        let connection = connection(stream, router.clone(), limits, closing.subscribe());
        connections.spawn(async move {
            let _place = place;
            connection.await;
        });
    };
    let mut end = pin!(end);
    loop {
        let (place, accepted) = tokio::select! {
            biased;
            () = &mut end => break,
            accepted = accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => serve_one(&mut connections, (place, stream)),
            Err(error) => {
                tracing::warn!(%error, "no connection could be taken");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    let begun = Instant::now();
    let mut last_asked = pin!(sleep(LAST_ASKED));
    // Bounded: those who come all the time don't put the end off.
    for _ in 0..limits.connections {
        tokio::select! {
            biased;
            (place, accepted) = accept() => if let Ok((stream, _)) = accepted {
                serve_one(&mut connections, (place, stream));
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

async fn connection(stream: TcpStream, router: Router, limits: Limits, mut closing: watch::Receiver<bool>) {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(limits.stall));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(limits.head).max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    let connection = builder.serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
    let mut connection = pin!(connection);
    tokio::select! {
        // What goes wrong with one client concerns only that client.
        _ = connection.as_mut() => return,
        () = async {
            let _ = closing.wait_for(|closing| *closing).await;
            sleep(LAST_ASKED).await;
        } => {}
        () = sleep(limits.age) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = timeout(limits.last_request, connection).await;
}
