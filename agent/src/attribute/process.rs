//! What `/proc` says about one process.

use std::{fs, io, path::PathBuf};

/// One process: a pid alone is given again after its end, with the start time it is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId {
    /// Thread group id, in the agent's pid namespace.
    pub tgid: u32,
    /// Start, in clock ticks since boot (field `starttime` of proc_pid_stat(5)).
    pub start: u64,
}

/// Flag of a thread of the kernel (include/linux/sched.h).
const PF_KTHREAD: u32 = 0x0020_0000;

/// What is read of `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// Which process.
    pub id: ProcessId,
    /// Its parent's pid; 0 for the first ones.
    pub parent: u32,
    /// Command name of its first thread, at most 15 characters.
    pub name: String,
    /// Is it a thread of the kernel?
    pub is_kernel: bool,
    /// Where its arguments stand in its memory: another place after each `exec`. `None`: not to be seen (CAP_SYS_PTRACE).
    pub arguments: Option<u64>,
}

/// A file of `/proc/PID`.
#[must_use]
pub fn path(tgid: u32, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{tgid}/{file}"))
}

/// Reads `/proc/PID/stat`.
///
/// # Errors
/// When there is no such process (any more); it is `NotFound` then.
pub fn stat(tgid: u32) -> io::Result<ProcessStat> {
    parse_stat(&fs::read(path(tgid, "stat"))?)
}

/// Parses `/proc/PID/stat`. (`procfs` does too, but slices what it has not looked at, and panics on half a file.)
///
/// # Errors
/// `InvalidData` when it is no such file.
pub fn parse_stat(bytes: &[u8]) -> io::Result<ProcessStat> {
    let parse = || {
        // The name may hold anything, blanks and parentheses too: it ends at the last of these.
        let text = String::from_utf8_lossy(bytes);
        let (head, rest) = text.rsplit_once(") ")?;
        let (pid, name) = head.split_once(" (")?;
        let mut fields = rest.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let flags: u32 = fields.nth(4)?.parse().ok()?;
        let start = fields.nth(12)?.parse().ok()?;
        let arguments = fields.nth(25).and_then(|address| address.parse().ok()).filter(|address| *address != 0);
        let id = ProcessId { tgid: pid.parse().ok()?, start };
        Some(ProcessStat { id, parent, name: name.to_owned(), is_kernel: flags & PF_KTHREAD != 0, arguments })
    };
    parse().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not in the form of /proc/PID/stat"))
}

/// The words of `/proc/PID/cmdline`; none for a kernel thread or a process that is ending.
///
/// # Errors
/// When there is no such process (any more).
pub fn command_line(tgid: u32) -> io::Result<Vec<String>> {
    Ok(split_command_line(&fs::read(path(tgid, "cmdline"))?))
}

/// Splits the bytes of `/proc/PID/cmdline`.
#[must_use]
pub fn split_command_line(bytes: &[u8]) -> Vec<String> {
    let words = bytes.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let mut words: Vec<String> = words.collect();
    // A title set over the arguments leaves NULs behind it; empty arguments in between are arguments.
    while words.last().is_some_and(String::is_empty) {
        words.pop();
    }
    words
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STAT: &str = " S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 100 200 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn names_with_blanks_and_parentheses() {
        for name in ["nginx", "tmux: server", "a) R 2 (b", "((", ""] {
            let stat = parse_stat(format!("7 ({name}){STAT}").as_bytes()).expect(name);
            let id = ProcessId { tgid: 7, start: 4_711 };
            assert_eq!(stat, ProcessStat { id, parent: 1, name: name.to_owned(), is_kernel: false, arguments: None });
        }
        let (before, _) = STAT.rsplit_once(" 0 0 0 0 0\n").expect("a stat");
        let with_arguments = format!("7 (a){before} 140721 140800 0 0 0\n");
        assert_eq!(parse_stat(with_arguments.as_bytes()).expect("a stat").arguments, Some(140_721));
        let kernel = STAT.replace("4194560", "69238880");
        assert!(parse_stat(format!("7 (kworker/0:0){kernel}").as_bytes()).expect("a stat").is_kernel);
    }

    #[test]
    fn what_is_no_stat_is_an_error() {
        for text in ["", "7", "7 (a)", "7 (a) ", "(a) S 1", "7 a) S", "x (a) S 1 2", "7 (a) S 1 7"] {
            assert!(parse_stat(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn this_process_is_found_by_name_and_start() {
        let this = stat(std::process::id()).expect("this process");
        assert_eq!(this.id.tgid, std::process::id());
        assert!(this.arguments.is_some(), "its own arguments are to be seen");
        assert!(this.id.start > 0 && this.parent > 0 && !this.name.is_empty());
        assert_eq!(stat(u32::MAX).map_err(|error| error.kind()), Err(io::ErrorKind::NotFound));
    }

    #[test]
    fn command_lines_are_split_at_nul() {
        assert_eq!(split_command_line(b"vllm\0serve\0a b\0"), ["vllm", "serve", "a b"]);
        assert_eq!(split_command_line(b"a\0\0b\0"), ["a", "", "b"]);
        assert_eq!(split_command_line(b"VLLM::EngineCore\0\0\0\0"), ["VLLM::EngineCore"]);
        assert_eq!(split_command_line(b""), [""; 0]);
        assert_eq!(split_command_line(b"\xff\0"), ["\u{fffd}"]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_stat_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse_stat(&bytes);
            let _ = split_command_line(&bytes);
        }

        #[test]
        fn any_text_near_a_stat_is_a_stat_or_an_error(text in "[0-9 ()a-z-]{0,60}") {
            let _ = parse_stat(text.as_bytes());
        }
    }
}
