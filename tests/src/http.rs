//! A small HTTP/1.1 server that does exactly what a script says, and writes down when.
//!
//! Plain threads and blocking sockets, so that nothing but the script decides when a byte leaves.

use std::{
    io::{self, IoSlice, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use nix::{
    sys::sendfile::sendfile,
    time::{ClockId, clock_gettime},
};

/// CLOCK_MONOTONIC in ns: the clock of the kernel's marks.
///
/// # Errors
/// When the kernel has no such clock.
pub fn now_ns() -> Result<u64> {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
    Ok(u64::try_from(time.tv_sec())? * 1_000_000_000 + u64::try_from(time.tv_nsec())?)
}

/// One step of a response.
#[derive(Clone, Debug)]
pub enum Step {
    /// Nothing, for so many ms.
    Wait(u64),
    /// Nothing, until somebody sets it.
    Until(Arc<AtomicBool>),
    /// One write.
    Write(Vec<u8>),
    /// One write of several pieces.
    Pieces(Vec<Vec<u8>>),
    /// A write for each byte.
    Bytewise(Vec<u8>),
    /// Of a file, by sendfile.
    File(Vec<u8>),
    /// Close in order, after the client's bytes were read.
    Close,
    /// Wait until the client is gone, then close.
    AwaitClient,
}

/// [`Step::Write`] of a text.
#[must_use]
pub fn write(text: &str) -> Step {
    Step::Write(text.as_bytes().to_vec())
}

/// One chunk of a chunked body.
#[must_use]
pub fn chunk(data: &str) -> String {
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// What was done for one request. Times are ns of CLOCK_MONOTONIC.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// The request's path.
    pub path: String,
    /// The read that completed head and body had returned.
    pub read_ns: u64,
    /// By step: when it began and when it was done.
    pub steps: Vec<(u64, u64)>,
}

/// A server on a port of its own, until the process ends.
#[derive(Clone, Debug)]
pub struct Server {
    /// Its port on 127.0.0.1.
    pub port: u16,
    log: Arc<Mutex<Vec<Served>>>,
}

impl Server {
    /// Starts one; `script` gives the steps for a path. Each connection has a thread.
    ///
    /// # Errors
    /// When it can't listen.
    pub fn start(script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Result<Self> {
        Self::on(0, script)
    }

    /// The same on a chosen port.
    ///
    /// # Errors
    /// When it can't listen there.
    pub fn on(port: u16, script: impl Fn(&str) -> Vec<Step> + Send + Sync + 'static) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let server = Self { port: listener.local_addr()?.port(), log: Arc::default() };
        let log = Arc::clone(&server.log);
        let script = Arc::new(script);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (log, script) = (Arc::clone(&log), Arc::clone(&script));
                // A client that goes away ends its connection, and that is no error of the server's.
                thread::spawn(move || serve(stream, &log, &*script));
            }
        });
        Ok(server)
    }

    /// What was done, in the order of completion, once there are at least `count` of it.
    ///
    /// # Errors
    /// When there are not, for 5 s.
    pub fn served(&self, count: usize) -> Result<Vec<Served>> {
        let deadline = Instant::now() + Duration::from_secs(5);
        loop {
            let log = self.log.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if log.len() >= count {
                return Ok(log);
            }
            ensure!(Instant::now() < deadline, "{} requests were served, not {count}", log.len());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// A new connection to it, that waits at most 60 s for a byte.
    ///
    /// # Errors
    /// When it can't be made.
    pub fn connect(&self) -> Result<TcpStream> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let stream = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_mins(2)))?;
        Ok(stream)
    }
}

fn serve(mut stream: TcpStream, log: &Mutex<Vec<Served>>, script: &dyn Fn(&str) -> Vec<Step>) -> Result<()> {
    stream.set_nodelay(true)?;
    let mut pending = Vec::new();
    while let Some(head) = read_head(&mut stream, &mut pending)? {
        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        read_body(&mut stream, &mut pending, &head)?;
        let mut served = Served { path, read_ns: now_ns()?, steps: Vec::new() };
        let mut open = true;
        let mut failed = None;
        for step in script(&served.path) {
            let begin = now_ns()?;
            match run(&mut stream, &step) {
                Ok(stays) => open = stays,
                Err(error) => failed = Some(error),
            }
            served.steps.push((begin, now_ns()?));
            if failed.is_some() {
                break;
            }
        }
        log.lock().unwrap_or_else(PoisonError::into_inner).push(served);
        if let Some(error) = failed {
            return Err(error.into());
        }
        if !open {
            return Ok(());
        }
    }
    Ok(())
}

fn run(stream: &mut TcpStream, step: &Step) -> io::Result<bool> {
    match step {
        Step::Wait(ms) => thread::sleep(Duration::from_millis(*ms)),
        Step::Until(set) => {
            while !set.load(Ordering::Acquire) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        Step::Write(bytes) => stream.write_all(bytes)?,
        Step::Pieces(pieces) => {
            let slices: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
            let length: usize = pieces.iter().map(Vec::len).sum();
            let written = stream.write_vectored(&slices)?;
            if written != length {
                return Err(io::Error::other("the pieces did not fit into one write"));
            }
        }
        Step::Bytewise(bytes) => {
            for byte in bytes {
                stream.write_all(&[*byte])?;
            }
        }
        Step::File(bytes) => send_file(stream, bytes)?,
        Step::Close => {
            stream.shutdown(Shutdown::Both)?;
            return Ok(false);
        }
        Step::AwaitClient => {
            let mut rest = [0; 64];
            // A reset ends it as well as a close does.
            while stream.read(&mut rest).is_ok_and(|count| count > 0) {}
            return Ok(false);
        }
    }
    Ok(true)
}

fn send_file(stream: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let mut file = tempfile::tempfile()?;
    file.write_all(bytes)?;
    let mut offset = 0;
    while let left @ 1.. = bytes.len() - usize::try_from(offset).unwrap_or(bytes.len()) {
        if sendfile(stream, &file, Some(&mut offset), left)? == 0 {
            return Err(io::Error::other("the file ended early"));
        }
    }
    Ok(())
}

/// Reads up to the end of a head; `None` where the client has closed.
fn read_head(stream: &mut TcpStream, pending: &mut Vec<u8>) -> Result<Option<String>> {
    loop {
        if let Some(end) = pending.windows(4).position(|window| window == b"\r\n\r\n") {
            let head: Vec<u8> = pending.drain(..end + 4).collect();
            return Ok(Some(String::from_utf8(head)?));
        }
        if !read_more(stream, pending)? {
            return Ok(None);
        }
    }
}

/// Reads the body that the head announces, and answers `Expect: 100-continue` before.
fn read_body(stream: &mut TcpStream, pending: &mut Vec<u8>, head: &str) -> Result<()> {
    let header = |name: &str| {
        head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        })
    };
    if header("expect").is_some() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    if header("transfer-encoding").is_some() {
        while !pending.ends_with(b"0\r\n\r\n") {
            ensure!(read_more(stream, pending)?, "the client closed in the middle of a body");
        }
        pending.clear();
    }
    let length = header("content-length").map_or(Ok(0), |value| value.parse::<usize>())?;
    while pending.len() < length {
        ensure!(read_more(stream, pending)?, "the client closed in the middle of a body");
    }
    pending.drain(..length);
    Ok(())
}

fn read_more(stream: &mut TcpStream, pending: &mut Vec<u8>) -> io::Result<bool> {
    let mut buffer = [0; 16_384];
    let count = stream.read(&mut buffer)?;
    pending.extend_from_slice(&buffer[..count]);
    Ok(count > 0)
}

/// Reads until `end` has come, and returns all of it.
///
/// # Errors
/// When the connection ends before.
pub fn read_until(stream: &mut TcpStream, end: &[u8]) -> Result<Vec<u8>> {
    let mut answer = Vec::new();
    while !answer.ends_with(end) {
        ensure!(read_more(stream, &mut answer)?, "closed after {:?}", String::from_utf8_lossy(&answer));
    }
    Ok(answer)
}
