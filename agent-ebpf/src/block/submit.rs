//! The way of a bio into a request.
//!
//! Kernels with `block_io_start` (6.5 and later) show the new request and its bio in the submitting task. Older ones show only
//! the bio there (`block_getrq`); the request that carries it is first seen when it is inserted or issued.

use aya_ebpf::{
    Global,
    helpers::bpf_ktime_get_ns,
    macros::{btf_tracepoint, map},
    maps::LruHashMap,
    programs::BtfTracePointContext,
};
use tailcomb_common::{
    block::{MAX_BIOS, StartedBio, series},
    lost::BLOCK_MAP_FULL,
};

use super::{
    count,
    layout::{Bio, Kind, Request, argument},
    request, task,
};
use crate::{kernel::ABSENT, lost};

#[unsafe(no_mangle)]
static BIO_QUEUE_BIO: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static GETRQ_BIO: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static IO_START_RQ: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static RQ_INSERT_RQ: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static BACKMERGE_BIO: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static FRONTMERGE_BIO: Global<u32> = Global::new(ABSENT);
/// 1 where the kernel has `block_io_start`.
#[unsafe(no_mangle)]
static HAS_IO_START: Global<u32> = Global::new(0);

/// Bios that got a request which was not seen yet, by address; used only where there is no `block_io_start`. Entries stay.
#[map]
static BLOCK_BIO: LruHashMap<u64, StartedBio> = LruHashMap::with_max_entries(MAX_BIOS, 0);

/// How many bios in front of the first one are looked through: each was merged to the front of the request before it was seen.
const FRONT_MERGES: u32 = 8;

fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[btf_tracepoint(function = "block_bio_queue")]
fn block_bio_queue(ctx: BtfTracePointContext) -> i32 {
    task::queued(Bio(argument(&ctx, &BIO_QUEUE_BIO)), now());
    0
}

/// A request is born, with its first bio.
#[btf_tracepoint(function = "block_io_start")]
fn block_io_start(ctx: BtfTracePointContext) -> i32 {
    let request = Request(argument(&ctx, &IO_START_RQ));
    let Kind::Data(operation) = request.kind() else { return 0 };
    let now = now();
    let bio = request.bio();
    let queue_ns = if bio.is_null() { 0 } else { task::take(bio) };
    request::begin(request, operation, StartedBio { queue_ns, start_ns: now });
    0
}

/// A request is born, but only its bio is shown.
#[btf_tracepoint(function = "block_getrq")]
fn block_getrq(ctx: BtfTracePointContext) -> i32 {
    let bio = Bio(argument(&ctx, &GETRQ_BIO));
    let started = StartedBio { queue_ns: task::take(bio), start_ns: now() };
    let address = bio.address();
    if let Some(known) = BLOCK_BIO.get_ptr_mut(&address) {
        // SAFETY: a bio gets a request once, in one task.
        unsafe { *known = started };
    } else if BLOCK_BIO.insert(&address, &started, 0).is_err() {
        lost::count(BLOCK_MAP_FULL);
    }
    0
}

/// Where a scheduler holds a request back, this is the first that is seen of it.
#[btf_tracepoint(function = "block_rq_insert")]
fn block_rq_insert(ctx: BtfTracePointContext) -> i32 {
    let request = Request(argument(&ctx, &RQ_INSERT_RQ));
    if let Kind::Data(operation) = request.kind() {
        first_seen(request, operation);
    }
    0
}

/// Begins the request if its bio has got one that was not seen yet. Does nothing where `block_io_start` did it.
#[inline(always)]
pub(super) fn first_seen(request: Request, operation: u8) {
    if HAS_IO_START.load() != 0 {
        return;
    }
    let mut bio = request.bio();
    let mut looked_at = 0;
    while looked_at <= FRONT_MERGES && !bio.is_null() {
        let address = bio.address();
        if let Some(known) = BLOCK_BIO.get_ptr_mut(&address) {
            // SAFETY: the request is in the hands of one CPU while it is inserted or issued.
            let known = unsafe { &mut *known };
            if known.start_ns != 0 {
                let started = *known;
                known.start_ns = 0;
                request::begin(request, operation, started);
                return;
            }
        }
        bio = bio.next();
        looked_at += 1;
    }
}

/// The bio of a request that ends before it was seen must not lend its stamps to what its memory is used for next.
#[inline(always)]
pub(super) fn forget(bio: Bio) {
    if HAS_IO_START.load() == 0
        && let Some(known) = BLOCK_BIO.get_ptr_mut(&bio.address())
    {
        // SAFETY: one word, written by the task that holds the bio.
        unsafe { (*known).start_ns = 0 };
    }
}

#[btf_tracepoint(function = "block_bio_backmerge")]
fn block_bio_backmerge(ctx: BtfTracePointContext) -> i32 {
    merged(Bio(argument(&ctx, &BACKMERGE_BIO)))
}

#[btf_tracepoint(function = "block_bio_frontmerge")]
fn block_bio_frontmerge(ctx: BtfTracePointContext) -> i32 {
    let bio = Bio(argument(&ctx, &FRONTMERGE_BIO));
    forget(bio);
    merged(bio)
}

#[inline(always)]
fn merged(bio: Bio) -> i32 {
    task::forget(bio);
    if let Kind::Data(operation) = bio.kind()
        && let Some(device) = bio.device()
        && let Some((_, counters)) = count::find(series(device, operation))
    {
        // SAFETY: a value of BLOCK_COUNT.
        unsafe { count::add(&raw mut (*counters).merges, 1) };
    }
    0
}
