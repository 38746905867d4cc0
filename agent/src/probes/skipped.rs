//! Runs of our programs that the kernel skipped.
//!
//! A program that is running on a CPU is not started a second time there, say by an interrupt in its middle: the kernel skips
//! that run and counts it (`recursion_misses`, since 5.12). Each such run may have been a sample, so they are exported as lost.
//! Source: kernel/bpf/syscall.c, `bpf_prog_show_fdinfo`.

use std::{
    collections::BTreeMap,
    fs,
    os::fd::{AsFd, AsRawFd},
};

use aya::Ebpf;

use super::table::PROBES;

/// Label `reason` of `tailcomb_lost_total`.
pub const REASON: &str = "recursion";

/// Skipped runs by probe since its load; a probe of which this kernel does not tell is missing.
#[must_use]
pub fn read(ebpf: &Ebpf) -> BTreeMap<&'static str, u64> {
    let mut skipped = BTreeMap::new();
    for probe in PROBES {
        for program in probe.programs {
            let Some(descriptor) = ebpf.program(program.name).and_then(|program| program.fd().ok()) else { continue };
            let path = format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd());
            let Some(runs) = fs::read_to_string(path).ok().and_then(|text| parse(&text)) else { continue };
            *skipped.entry(probe.name).or_default() += runs;
        }
    }
    skipped
}

/// The figure in the text of an `fdinfo` file.
fn parse(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_found_and_its_absence_is_no_zero() {
        let text = "pos:\t0\nflags:\t02000002\nprog_type:\t26\nrun_cnt:\t0\nrecursion_misses:\t17\nverified_insns:\t12\n";
        assert_eq!(parse(text), Some(17));
        assert_eq!(parse("pos:\t0\nprog_type:\t26\n"), None);
        assert_eq!(parse("recursion_misses:\tmany\n"), None);
    }
}
