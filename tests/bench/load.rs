//! A load of unary requests at a set rate: a server in a process of its own, clients with keep-alive connections.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{\"choices\": [{}]}";
/// As long as the OpenAI clients' heads.
const REQUEST: &str = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nAccept: application/json\r\n\
    User-Agent: OpenAI/Python 1.0.0\r\nX-Stainless-Lang: python\r\nX-Stainless-Package-Version: 1.0.0\r\nX-Stainless-OS: Linux\r\n\
    X-Stainless-Arch: x64\r\nX-Stainless-Runtime: CPython\r\nX-Stainless-Runtime-Version: 3.11.7\r\nAuthorization: Bearer x\r\n\
    X-Stainless-Async: false\r\nX-Stainless-Retry-Count: 0\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\n\
    Content-Type: application/json\r\nContent-Length: 62\r\n\r\n\
    {\"model\":\"tiny\",\"prompt\":\"hello there\",\"max_tokens\":16,\"n\":1 }";

/// Bytes of its head.
pub(crate) const HEAD_BYTES: usize = REQUEST.len() - 62;

/// The server's process; it ends with this value.
pub(crate) struct Server {
    child: Child,
    /// Where it listens.
    pub port: u16,
}

impl Server {
    /// Starts this program again as the server.
    pub(crate) fn start() -> Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let child = Command::new(std::env::current_exe()?).args(["--serve", &port.to_string()]).stdin(Stdio::null()).spawn()?;
        let server = Self { child, port };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(Instant::now() < end, "the load's server did not come up");
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Answers every request with the same few bytes, a thread a connection, until killed.
pub(crate) fn serve(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    for stream in listener.incoming() {
        let stream = stream?;
        thread::spawn(move || answer(stream));
    }
    Ok(())
}

fn answer(mut stream: TcpStream) -> Option<()> {
    let mut bytes = [0u8; 4096];
    stream.set_nodelay(true).ok()?;
    // Every request is one send of known length, far below the buffer.
    let mut pending = 0;
    loop {
        let read = stream.read(&mut bytes).ok().filter(|read| *read > 0)?;
        pending += read;
        while pending >= REQUEST.len() {
            stream.write_all(ANSWER).ok()?;
            pending -= REQUEST.len();
        }
    }
}

/// Sends `rate` requests a second (infinite: one after the other) over `connections` for `span`; how many were answered.
pub(crate) fn drive(port: u16, connections: u32, rate: f64, span: Duration) -> Result<u64> {
    let pause = Duration::from_secs_f64(f64::from(connections) / rate);
    let threads: Vec<_> = (0..connections)
        .map(|number| {
            thread::spawn(move || -> Result<u64> {
                let mut stream = TcpStream::connect(("127.0.0.1", port))?;
                stream.set_nodelay(true)?;
                let mut reader = BufReader::new(stream.try_clone()?);
                let begun = Instant::now() + pause * number / connections;
                let mut answered: u32 = 0;
                loop {
                    let due = begun + pause * answered;
                    if due.max(Instant::now()).duration_since(begun) >= span {
                        return Ok(answered.into());
                    }
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    stream.write_all(REQUEST.as_bytes())?;
                    read_answer(&mut reader)?;
                    answered += 1;
                }
            })
        })
        .collect();
    let mut answered = 0;
    for thread in threads {
        answered += thread.join().map_err(|_| anyhow::anyhow!("a client thread panicked"))??;
    }
    Ok(answered)
}

fn read_answer(reader: &mut impl BufRead) -> Result<()> {
    let mut bytes = vec![0u8; ANSWER.len()];
    reader.read_exact(&mut bytes).context("the server closed the connection")
}
