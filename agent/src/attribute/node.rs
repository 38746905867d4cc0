//! What a scan asks of the node, and `/proc` as the one that answers.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    os::unix::fs::MetadataExt,
    path::Path,
};

use super::{
    cgroup::Cgroups,
    process::{self, ProcessStat},
};

/// A listening TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Listener {
    /// Local port.
    pub port: u16,
    /// Number of the socket, as the links in `/proc/PID/fd` have it.
    pub inode: u64,
}

/// What a scan asks. An error for one process means that it is gone; the scan goes on without it.
pub trait Node {
    /// Every process.
    ///
    /// # Errors
    /// When `/proc` can't be listed at all.
    fn processes(&self) -> io::Result<Vec<u32>>;
    /// Identity, parent and name of a process.
    ///
    /// # Errors
    /// When it is gone.
    fn stat(&self, tgid: u32) -> io::Result<ProcessStat>;
    /// Words of its command line.
    ///
    /// # Errors
    /// When it is gone.
    fn command_line(&self, tgid: u32) -> io::Result<Vec<String>>;
    /// Its cgroups.
    ///
    /// # Errors
    /// When it is gone.
    fn cgroups(&self, tgid: u32) -> io::Result<Cgroups>;
    /// The id that the kernel has for a cgroup of v2, by its path; `None` where the tree is not to be seen.
    fn cgroup_id(&self, _unified: &str) -> Option<u64> {
        None
    }
    /// The number of its network namespace.
    ///
    /// # Errors
    /// When it is gone, or not to be seen (CAP_SYS_PTRACE).
    fn net_namespace(&self, tgid: u32) -> io::Result<u64>;
    /// Listening sockets, v4 and v6, of its network namespace.
    ///
    /// # Errors
    /// When it is gone.
    fn listeners(&self, tgid: u32) -> io::Result<Vec<Listener>>;
    /// Numbers of the sockets it holds.
    ///
    /// # Errors
    /// When it is gone, or not to be seen (CAP_SYS_PTRACE).
    fn sockets(&self, tgid: u32) -> io::Result<Vec<u64>>;
}

/// This machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcFs;

impl Node for ProcFs {
    fn processes(&self) -> io::Result<Vec<u32>> {
        let numbers = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(numbers.collect())
    }

    fn stat(&self, tgid: u32) -> io::Result<ProcessStat> {
        process::stat(tgid)
    }

    fn command_line(&self, tgid: u32) -> io::Result<Vec<String>> {
        process::command_line(tgid)
    }

    fn cgroups(&self, tgid: u32) -> io::Result<Cgroups> {
        Ok(Cgroups::parse(&String::from_utf8_lossy(&fs::read(process::path(tgid, "cgroup"))?)))
    }

    /// The id is the number of the folder's inode (fs/kernfs).
    fn cgroup_id(&self, unified: &str) -> Option<u64> {
        let mounts = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let mount = mounts.into_iter().find(|mount| Path::new(mount).join("cgroup.controllers").exists())?;
        fs::metadata(format!("{mount}{unified}")).ok().map(|folder| folder.ino())
    }

    fn net_namespace(&self, tgid: u32) -> io::Result<u64> {
        let link = fs::read_link(process::path(tgid, "ns/net"))?;
        bracketed(&link.to_string_lossy(), "net:").ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn listeners(&self, tgid: u32) -> io::Result<Vec<Listener>> {
        let mut found = Vec::new();
        for (file, statistics, family) in [("net/tcp", "net/sockstat", "TCP:"), ("net/tcp6", "net/sockstat6", "TCP6:")] {
            match File::open(process::path(tgid, file)) {
                Ok(file) => {
                    let statistics = fs::read_to_string(process::path(tgid, statistics)).unwrap_or_default();
                    let most = in_use(&statistics, family).unwrap_or(usize::MAX);
                    // Three lines: a full buffer ends the kernel's search behind the listening sockets.
                    found.extend(read_listeners(BufReader::with_capacity(450, file), most)?);
                }
                // A kernel without IPv6 has no tcp6; that of a process that is gone is missing too, and tcp was read before.
                Err(error) if file == "net/tcp6" && error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    fn sockets(&self, tgid: u32) -> io::Result<Vec<u64>> {
        let links = fs::read_dir(process::path(tgid, "fd"))?.filter_map(|entry| {
            let link = fs::read_link(entry.ok()?.path()).ok()?;
            bracketed(link.to_str()?, "socket:")
        });
        Ok(links.collect())
    }
}

/// The number in `socket:[4711]`.
fn bracketed(link: &str, kind: &str) -> Option<u64> {
    link.strip_prefix(kind)?.strip_prefix('[')?.strip_suffix(']')?.parse().ok()
}

/// Sockets of a family (`TCP:`, `TCP6:`) that a network namespace has, from its `sockstat` or `sockstat6`.
fn in_use(statistics: &str, family: &str) -> Option<usize> {
    let words = statistics.lines().find_map(|line| line.strip_prefix(family))?;
    words.trim_start().strip_prefix("inuse ")?.split_ascii_whitespace().next()?.parse().ok()
}

/// Reads `/proc/PID/net/tcp{,6}` up to its first socket that does not listen, or until as many are found as there are sockets: the
/// kernel walks its listening sockets first (net/ipv4/tcp_ipv4.c, `tcp_get_idx`), and behind them there may be a hundred
/// thousand connections. Where there is none it takes 2 ms to find that out, in its table for those of all namespaces.
fn read_listeners(mut file: impl BufRead, most: usize) -> io::Result<Vec<Listener>> {
    let mut found = Vec::new();
    if most == 0 {
        return Ok(found);
    }
    let mut line = String::new();
    file.read_line(&mut line)?;
    loop {
        line.clear();
        if file.read_line(&mut line)? == 0 {
            return Ok(found);
        }
        match listener(&line) {
            Some(listener) => found.push(listener),
            None => return Ok(found),
        }
        if found.len() >= most {
            return Ok(found);
        }
    }
}

/// One line, if its socket is in state LISTEN (0A).
fn listener(line: &str) -> Option<Listener> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    if fields.nth(1)? != "0A" {
        return None;
    }
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    Some(Listener { port, inode: fields.nth(5)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use proptest::prelude::*;

    use super::*;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[test]
    fn listening_sockets_come_first_and_the_rest_is_not_read() {
        let text = format!(
            "{HEAD}   0: 0100007F:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0\n   \
             1: 00000000:0050 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0 100 0 0 10 0\n   \
             2: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 13 1 0 20 4 30 10 -1\n   \
             3: 0100007F:1F41 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 14 1 0 100 0 0 10 0\n"
        );
        let found = read_listeners(text.as_bytes(), usize::MAX).expect("memory");
        assert_eq!(found, [Listener { port: 8_000, inode: 4_711 }, Listener { port: 80, inode: 12 }]);
        let first = read_listeners(text.as_bytes(), 1).expect("memory");
        assert_eq!(first, [Listener { port: 8_000, inode: 4_711 }]);
        assert_eq!(read_listeners(text.as_bytes(), 0).expect("memory"), []);
    }

    #[test]
    fn how_many_sockets_there_are_is_told_by_family() {
        let text = "sockets: used 16\nTCP: inuse 12 orphan 0 tw 34 alloc 13 mem 46\nUDP: inuse 7 mem 0\n";
        assert_eq!(in_use(text, "TCP:"), Some(12));
        assert_eq!(in_use("TCP6: inuse 0\nUDP6: inuse 1\n", "TCP6:"), Some(0));
        assert_eq!(in_use("UDP6: inuse 1\n", "TCP6:"), None);
        assert_eq!(in_use("", "TCP:"), None);
    }

    #[test]
    fn addresses_of_v6_are_read() {
        let line = "   0: 00000000000000000000000001000000:1F90 00000000000000000000000000000000:0000 0A 00000000:00000000 \
                    00:00000000 00000000     0        0 99 1 0 100 0 0 10 0\n";
        assert_eq!(listener(line), Some(Listener { port: 8_080, inode: 99 }));
    }

    #[test]
    fn links_that_are_no_sockets_are_none() {
        assert_eq!(bracketed("socket:[4711]", "socket:"), Some(4_711));
        for link in ["pipe:[4711]", "/dev/null", "socket:[x]", "socket:[1", "socket:", "anon_inode:[eventpoll]"] {
            assert_eq!(bracketed(link, "socket:"), None, "{link}");
        }
    }

    /// The order that [`read_listeners`] relies on, on the running kernel: with a connection there, a later listener is found.
    #[test]
    fn a_real_listener_is_found_behind_connections() {
        let first = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = first.local_addr().expect("bound");
        let connections: Vec<_> = (0..20).map(|_| TcpStream::connect(address).expect("loopback")).collect();
        let second = TcpListener::bind("127.0.0.1:0").expect("loopback");
        // A machine without IPv6 has no such listener to find.
        let third = TcpListener::bind("[::1]:0").ok();
        let this = std::process::id();
        let found = ProcFs.listeners(this).expect("procfs");
        let held = ProcFs.sockets(this).expect("procfs");
        for listener in [&first, &second].into_iter().chain(&third) {
            let port = listener.local_addr().expect("bound").port();
            let mine = found.iter().find(|found| found.port == port && held.contains(&found.inode));
            assert!(mine.is_some(), "port {port} is not in {found:?}");
        }
        drop(connections);
    }

    #[test]
    fn a_process_that_is_gone_is_an_error_everywhere() {
        let gone = u32::MAX;
        assert!(ProcFs.stat(gone).is_err() && ProcFs.command_line(gone).is_err() && ProcFs.cgroups(gone).is_err());
        assert!(ProcFs.net_namespace(gone).is_err() && ProcFs.listeners(gone).is_err() && ProcFs.sockets(gone).is_err());
    }

    proptest! {
        #[test]
        fn any_line_is_a_listener_or_none(line in "\\PC{0,160}") {
            let _ = listener(&line);
        }
    }
}
