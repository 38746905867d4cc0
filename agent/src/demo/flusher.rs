//! `demo-metrics`: a metrics writer as many nodes have one. Quiet, until it writes all it has to the disk at once.
//!
//! It writes past the page cache, from many threads: what fills up is the disk's queue, not the memory or the processors. A
//! tooth is then made of waiting for the disk, and of nothing else.

use std::{
    fmt::Write as _,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use super::{
    place::{Aligned, reopen_direct},
    truth::FlushSeen,
};
use crate::clock::monotonic_ns;

/// Bytes of one write: the text of one shard.
const SHARD: usize = 256 << 10;
/// Threads that write at the same time, each to a file of its own.
const WRITERS: u64 = 64;
/// What a flush writes at least.
const LEAST: u64 = SHARD as u64 * WRITERS;
/// What a flush writes at most, so that a fast disk is not worn by a demonstration.
const MOST: u64 = 512 << 20;
/// How long a flush should take: seen on a heatmap, and short beside the period.
const AIM: Duration = Duration::from_millis(400);

/// The writer, its files open. They have no name: when they are closed, they are gone.
pub(super) struct Flusher {
    files: Vec<File>,
    aim: Duration,
    bytes: u64,
    number: u64,
}

impl Flusher {
    pub(super) fn create(folder: &Path, period: Duration) -> io::Result<Self> {
        let files = (0..WRITERS).map(|_| reopen_direct(&tempfile::tempfile_in(folder)?)).collect::<io::Result<_>>()?;
        Ok(Self { files, aim: AIM.min(period / 4), bytes: LEAST, number: 0 })
    }

    /// Finds how much this disk takes in the time aimed at.
    pub(super) fn calibrate(&mut self) -> io::Result<u64> {
        loop {
            let bytes = self.bytes;
            // The first write of a size also allocates its blocks, so the second one counts, and sets the next size.
            self.write(bytes)?;
            self.flush()?;
            if self.bytes <= bytes || bytes >= MOST {
                return Ok(self.bytes);
            }
        }
    }

    /// One flush every period until the other end of `stop` is gone.
    pub(super) fn run(&mut self, period: Duration, stop: &Receiver<String>, mut seen: impl FnMut(FlushSeen)) -> io::Result<()> {
        let mut next = Instant::now() + period;
        while let Err(RecvTimeoutError::Timeout) = stop.recv_timeout(next.saturating_duration_since(Instant::now())) {
            seen(self.flush()?);
            next += period;
        }
        Ok(())
    }

    /// Writes and syncs, and follows the disk where it has become slower or faster.
    fn flush(&mut self) -> io::Result<FlushSeen> {
        let flush = self.write(self.bytes)?;
        let took = Duration::from_nanos(flush.end_ns - flush.start_ns);
        self.bytes = next_bytes(flush.bytes, took, self.aim);
        Ok(flush)
    }

    fn write(&mut self, bytes: u64) -> io::Result<FlushSeen> {
        self.number += 1;
        let text = text(self.number);
        let shards = bytes / LEAST;
        let start_ns = monotonic_ns();
        thread::scope(|scope| {
            let writers: Vec<_> =
                self.files.iter().map(|file| scope.spawn(|| write_shards(file, text.bytes(), shards))).collect();
            writers
                .into_iter()
                .try_for_each(|writer| writer.join().unwrap_or_else(|_| Err(io::Error::other("a writer panicked"))))
        })?;
        Ok(FlushSeen { start_ns, end_ns: monotonic_ns(), bytes: shards * LEAST })
    }
}

fn write_shards(file: &File, text: &[u8], shards: u64) -> io::Result<()> {
    (0..shards).try_for_each(|shard| file.write_all_at(text, shard * SHARD as u64))?;
    file.sync_data()
}

/// The size for the next flush: towards the time aimed at, by at most a factor of 3, in whole shards for each writer.
fn next_bytes(bytes: u64, took: Duration, aim: Duration) -> u64 {
    let factor = (aim.as_secs_f64() / took.as_secs_f64().max(1e-3)).clamp(1.0 / 3.0, 3.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "up to 1.5 GiB")]
    let wanted = (bytes as f64 * factor) as u64;
    (wanted / LEAST * LEAST).clamp(LEAST, MOST)
}

/// One shard's metrics as text, serialised anew for each flush; all shards of a flush are alike.
fn text(number: u64) -> Aligned {
    let mut text = String::with_capacity(SHARD + 128);
    let mut series = 0u64;
    while text.len() < SHARD {
        // Writing to a string can't fail.
        let _ = writeln!(text, "demo_requests_total{{series=\"{series}\",code=\"200\"}} {} {number}", series * number);
        series += 1;
    }
    let mut aligned = Aligned::new(SHARD);
    aligned.bytes_mut().copy_from_slice(&text.as_bytes()[..SHARD]);
    aligned
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_disk_within_their_bounds() {
        let aim = Duration::from_millis(400);
        assert_eq!(next_bytes(64 << 20, Duration::from_millis(400), aim), 64 << 20);
        assert_eq!(next_bytes(64 << 20, Duration::from_millis(200), aim), 128 << 20);
        assert_eq!(next_bytes(64 << 20, Duration::from_secs(8), aim), 16 << 20, "a third, in whole shards");
        assert_eq!(next_bytes(512 << 20, Duration::from_millis(10), aim), MOST);
        assert_eq!(next_bytes(16 << 20, Duration::from_secs(60), aim), LEAST);
        assert_eq!(next_bytes(16 << 20, Duration::ZERO, aim), 48 << 20);
    }

    #[test]
    fn a_shard_is_text_of_its_size_and_new_each_time() {
        assert!(text(1).bytes().starts_with(b"demo_requests_total{series=\"0\",code=\"200\"} 0 1\n"));
        assert_ne!(text(1).bytes(), text(2).bytes());
    }
}
