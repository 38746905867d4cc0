//! The server's index: a file read past the page cache, block after block, each block naming the next.
//!
//! A walk is a chain of reads of which none can start before the last one's answer is there, as in a graph index on disk: a
//! request waits for the sum of its reads. Where a walk goes depends on the request alone, so a client can check it.

use std::{
    fs::File,
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
};

use super::place::{Aligned, reopen_direct};

/// Bytes of one block, and of one read.
const BLOCK: usize = 16 << 10;
/// Blocks in the file: 64 MiB.
pub(super) const BLOCKS: u64 = 4096;

/// The index, open for direct reads.
#[derive(Debug)]
pub(super) struct Index {
    file: File,
}

impl Index {
    /// Writes the file and syncs it. It has no name: when it is closed, it is gone.
    ///
    /// # Errors
    /// What the filesystem says.
    pub(super) fn create(folder: &Path) -> io::Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        // Filled with noise: a disk that compresses or skips zeroes would not really read.
        let mut noise = fastrand::Rng::with_seed(BLOCKS);
        let mut block = vec![0u8; BLOCK];
        for number in 0..BLOCKS {
            noise.fill(&mut block);
            block[..8].copy_from_slice(&number.to_le_bytes());
            file.write_all(&block)?;
        }
        file.sync_all()?;
        Ok(Self { file: reopen_direct(&file)? })
    }

    /// Reads `steps` blocks, one after another, and gives back the numbers written in them.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn walk(&self, start: u64, steps: u32) -> io::Result<Vec<u64>> {
        let mut memory = Aligned::new(BLOCK);
        let block = memory.bytes_mut();
        let mut found = start;
        (0..steps)
            .map(|_| {
                self.file.read_exact_at(block, next(start, found) * BLOCK as u64)?;
                let number: [u8; 8] = block[..8].try_into().map_err(io::Error::other)?;
                found = u64::from_le_bytes(number);
                Ok(found)
            })
            .collect()
    }
}

/// The blocks that a walk must find.
pub(super) fn expected(start: u64, steps: u32) -> Vec<u64> {
    let mut found = start;
    (0..steps)
        .map(|_| {
            found = next(start, found);
            found
        })
        .collect()
}

/// The block after `found`, on the walk that began with `start`.
fn next(start: u64, found: u64) -> u64 {
    fastrand::Rng::with_seed(start.rotate_left(32) ^ found).u64(..BLOCKS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::place;

    #[test]
    fn a_walk_finds_the_blocks_it_must() {
        let Ok(place) = place::choose(None) else {
            eprintln!("skipped: no folder on a disk here");
            return;
        };
        let index = Index::create(&place.folder).expect("64 MiB on a disk");
        for start in [0, 1, u64::MAX] {
            assert_eq!(index.walk(start, 5).expect("reads"), expected(start, 5));
        }
    }

    #[test]
    fn walks_of_other_starts_go_elsewhere() {
        let walk = expected(7, 24);
        assert_eq!(walk.len(), 24);
        assert!(walk.iter().all(|block| *block < BLOCKS));
        assert_ne!(walk, expected(8, 24));
        let mut distinct = walk.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 12, "a walk that circles would read from the disk's cache: {walk:?}");
    }
}
