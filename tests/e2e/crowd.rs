//! Many clients that want nothing, or do not take what they wanted: probes and scrapes are answered all the same.

use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::{
    resource::{Resource, getrlimit, setrlimit},
    socket::{setsockopt, sockopt::RcvBuf},
};
use tailcomb_tests::{
    agent::Agent,
    case::{Case, Need},
};

pub(crate) const CASES: &[Case] = &[
    Case { name: "crowd_300_that_are_slow_do_not_lock_out_a_probe", needs: &[Need::Kernel], run: three_hundred },
    Case { name: "crowd_2000_that_are_slow_do_not_lock_out_a_probe", needs: &[Need::Kernel], run: two_thousand },
];

/// What a client does after it has connected.
#[derive(Clone, Copy, Debug)]
enum Manner {
    Idle,
    HalfAHead,
    AByteASecond,
    NeverReads,
}

const MANNERS: [Manner; 4] = [Manner::Idle, Manner::HalfAHead, Manner::AByteASecond, Manner::NeverReads];

/// A kubelet waits a second for a probe by default,
const PATIENCE: Duration = Duration::from_secs(1);
/// and ends the container when so many in a row took longer.
const FAILURES: usize = 3;
/// Its own files, and a bound on connections well below the usual 1 024.
const MOST_FILES: usize = 600;
/// How many of those that were given up come again each second: the crowd is slow. How quickly a build without optimisation takes
/// thousands at once is another question.
const AGAIN: usize = 300;

fn three_hundred() -> Result<()> {
    MANNERS.into_iter().try_for_each(|manner| crowd(manner, 300).with_context(|| format!("{manner:?}")))
}

fn two_thousand() -> Result<()> {
    let manners = [Manner::Idle, Manner::NeverReads];
    manners.into_iter().try_for_each(|manner| crowd(manner, 2_000).with_context(|| format!("{manner:?}")))
}

fn client(manner: Manner, port: u16) -> Result<TcpStream> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    // It takes next to nothing by itself.
    setsockopt(&stream, RcvBuf, &1)?;
    let sent: &[u8] = match manner {
        Manner::Idle => b"",
        Manner::HalfAHead => b"GET /metrics HTTP/1.1\r\nHo",
        Manner::AByteASecond => b"G",
        Manner::NeverReads => b"GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n",
    };
    // It may have been given up for a later one already.
    let _ = stream.write_all(sent);
    Ok(stream)
}

fn crowd(manner: Manner, count: usize) -> Result<()> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let needed = u64::try_from(count)? + 200;
    if soft < needed {
        setrlimit(Resource::RLIMIT_NOFILE, needed.min(hard), hard).context("this test needs a file for each client")?;
    }
    let agent = Agent::start(&["--target", "port:1"])?;
    let clients: Vec<TcpStream> = (0..count).map(|_| client(manner, agent.port)).collect::<Result<_>>()?;
    let end = Arc::new(AtomicBool::new(false));
    let crowd = thread::spawn({
        let (end, port) = (Arc::clone(&end), agent.port);
        move || press(manner, clients, port, &end)
    });
    thread::sleep(Duration::from_secs(1));
    let asked = probe(&agent, manner);
    end.store(true, Ordering::Release);
    let open = crowd.join().map_err(|_| anyhow!("the crowd panicked"))?;
    asked?;
    ensure!(open > 0, "none of the crowd was there at the end: nothing was shown");
    let (status, took) = agent.stop()?;
    ensure!(status.success() && took < Duration::from_secs(2), "{status} after {took:?}");
    Ok(())
}

/// Sends a byte a second where that is the manner, and comes again for those that were given up, [`AGAIN`] a second. How many are
/// connected at the end.
fn press(manner: Manner, mut clients: Vec<TcpStream>, port: u16, end: &AtomicBool) -> usize {
    while !end.load(Ordering::Acquire) {
        let mut again = AGAIN;
        for stream in &mut clients {
            if matches!(manner, Manner::AByteASecond) {
                let _ = stream.write_all(b"E");
            }
            if again > 0
                && is_closed(stream)
                && let Ok(new) = client(manner, port)
            {
                *stream = new;
                again -= 1;
            }
        }
        thread::sleep(Duration::from_secs(1));
    }
    clients.iter().filter(|stream| !is_closed(stream)).count()
}

fn is_closed(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    let _ = stream.set_nonblocking(false);
    match peeked {
        Ok(count) => count == 0,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

fn probe(agent: &Agent, manner: Manner) -> Result<()> {
    let mut slow: [Vec<Duration>; 3] = Default::default();
    for round in 0..6 {
        for (path, slow) in ["/healthz", "/readyz", "/metrics"].into_iter().zip(&mut slow) {
            let begun = Instant::now();
            let (status, body) = agent.get(path).with_context(|| format!("{path}, round {round}, {manner:?}"))?;
            let took = begun.elapsed();
            ensure!(status == 200, "{path}: {status}: {body}");
            if took < PATIENCE {
                slow.clear();
            } else {
                slow.push(took);
            }
            ensure!(slow.len() < FAILURES, "{path} took {slow:?} in the last rounds");
        }
        let files = fs::read_dir(format!("/proc/{}/fd", agent.pid()))?.count();
        ensure!(files < MOST_FILES, "the agent holds {files} files");
        thread::sleep(Duration::from_millis(250));
    }
    Ok(())
}
