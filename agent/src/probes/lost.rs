//! Reads what the programs counted as lost.

use aya::{
    Ebpf,
    maps::{MapError, PerCpuArray},
};
use tailcomb_common::lost::REASONS;

/// Why the counters can't be read.
#[derive(Debug, thiserror::Error)]
#[error("reading the map LOST: {0}; build the agent and the object from one checkout")]
pub struct LostError(#[from] MapError);

/// Samples lost since the load, by position in [`REASONS`], all CPUs added up.
///
/// # Errors
/// [`LostError`] where the object has no such map, or the kernel refuses.
pub fn read(ebpf: &Ebpf) -> Result<[u64; REASONS.len()], LostError> {
    let map = ebpf.map("LOST").ok_or_else(|| MapError::InvalidName { name: "LOST".to_owned() })?;
    let map: PerCpuArray<_, u64> = PerCpuArray::try_from(map)?;
    let mut lost = [0; REASONS.len()];
    for (position, sum) in (0..).zip(&mut lost) {
        *sum = map.get(&position, 0)?.iter().sum();
    }
    Ok(lost)
}
