//! The life of a request, from its birth to its last completion.

use aya_ebpf::{
    Global,
    helpers::bpf_ktime_get_ns,
    macros::{btf_tracepoint, map},
    maps::LruHashMap,
    programs::BtfTracePointContext,
};
use tailcomb_common::{
    block::{
        ACTIVE, Count, DEVICE, DEVICE_WIDE, FAILED, FLUSH, MAX_REQUESTS, NO_SLOT, QUEUE, REQUEUED, RequestState, SELF_TEST,
        SUBMIT_WAIT, StartedBio, TOTAL, series,
    },
    lost::{BLOCK_MAP_FULL, BLOCK_NEGATIVE, BLOCK_UNMATCHED, BLOCK_UNSEEN_END},
};

use super::{
    count,
    layout::{Kind, Request, argument, outcome},
    selftest, submit,
};
use crate::{kernel::ABSENT, lost};

#[unsafe(no_mangle)]
static RQ_ISSUE_RQ: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static RQ_REQUEUE_RQ: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static RQ_COMPLETE_RQ: Global<u32> = Global::new(ABSENT);
#[unsafe(no_mangle)]
static RQ_MERGE_RQ: Global<u32> = Global::new(ABSENT);

/// By the request's address: the kernel has one for each tag and uses it again and again. So entries stay, and are made only
/// the first time a tag is used; those of devices that are gone are evicted.
#[map]
static BLOCK_REQUEST: LruHashMap<u64, RequestState> = LruHashMap::with_max_entries(MAX_REQUESTS, 0);

fn now() -> u64 {
    // SAFETY: the helper has no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

#[inline(always)]
fn state(request: Request) -> Option<&'static mut RequestState> {
    // SAFETY: a request is in the hands of one CPU at a time: between birth, issue and completion the kernel hands it over.
    BLOCK_REQUEST.get_ptr_mut(&request.address()).map(|state| unsafe { &mut *state })
}

/// The request is born.
#[inline(always)]
pub(super) fn begin(request: Request, operation: u8, started: StartedBio) {
    let Some(device) = request.device() else { return };
    let flags = if selftest::describe(request, device, operation) { ACTIVE | SELF_TEST } else { ACTIVE };
    let StartedBio { queue_ns, start_ns } = started;
    keep(request, RequestState { queue_ns, start_ns, issue_ns: 0, device, operation, flags, slot: NO_SLOT });
}

/// Stores a new state and counts its start.
#[inline(always)]
fn keep(request: Request, mut new: RequestState) {
    let place = count::find(series(new.device, new.operation));
    new.slot = place.map_or(NO_SLOT, |(slot, _)| slot as u16);
    if let Some(old) = state(request) {
        if old.flags & ACTIVE != 0 {
            // The memory is used for another, so its end was not shown: without this, it would be in flight for ever.
            vanish(old);
            lost::count(BLOCK_UNSEEN_END);
        }
        *old = new;
    } else if BLOCK_REQUEST.insert(&request.address(), &new, 0).is_err() {
        lost::count(BLOCK_MAP_FULL);
        return;
    }
    if let Some((_, counters)) = place {
        // SAFETY: a value of BLOCK_COUNT.
        unsafe { count::add(&raw mut (*counters).started, 1) };
    }
}

/// Where the request is counted.
#[inline(always)]
fn counters(state: &RequestState) -> Option<*mut Count> {
    count::counters(u32::from(state.slot), series(state.device, state.operation))
}

#[inline(always)]
fn vanish(state: &mut RequestState) {
    state.flags = 0;
    if let Some(counters) = counters(state) {
        // SAFETY: a value of BLOCK_COUNT.
        unsafe { count::add(&raw mut (*counters).vanished, 1) };
    }
}

#[btf_tracepoint(function = "block_rq_issue")]
fn block_rq_issue(ctx: BtfTracePointContext) -> i32 {
    let request = Request(argument(&ctx, &RQ_ISSUE_RQ));
    match request.kind() {
        Kind::Passthrough => {}
        Kind::Flush => issue_flush(request),
        Kind::Data(operation) => {
            submit::first_seen(request, operation);
            if let Some(state) = state(request)
                && state.flags & ACTIVE != 0
            {
                // The first issue counts: what comes after a requeue is the device's time too.
                if state.issue_ns == 0 {
                    state.issue_ns = now();
                }
                state.flags &= !REQUEUED;
            }
        }
    }
    0
}

/// A FLUSH request is born when it is issued: nobody queues it, the flush machinery has one for each hardware queue.
#[inline(always)]
fn issue_flush(request: Request) {
    if let Some(state) = state(request)
        && state.flags & (ACTIVE | REQUEUED) == ACTIVE | REQUEUED
    {
        state.flags &= !REQUEUED;
        return;
    }
    let Some(device) = request.device() else { return };
    let now = now();
    keep(request, RequestState { issue_ns: now, device, operation: DEVICE_WIDE, flags: ACTIVE, ..RequestState::default() });
}

#[btf_tracepoint(function = "block_rq_requeue")]
fn block_rq_requeue(ctx: BtfTracePointContext) -> i32 {
    let request = Request(argument(&ctx, &RQ_REQUEUE_RQ));
    if let Some(state) = state(request)
        && state.flags & ACTIVE != 0
    {
        state.flags |= REQUEUED;
        if let Some(counters) = counters(state) {
            // SAFETY: a value of BLOCK_COUNT.
            unsafe { count::add(&raw mut (*counters).requeues, 1) };
        }
    }
    0
}

/// The request was merged into another, which completes for both.
#[btf_tracepoint(function = "block_rq_merge")]
fn block_rq_merge(ctx: BtfTracePointContext) -> i32 {
    let request = Request(argument(&ctx, &RQ_MERGE_RQ));
    let bio = request.bio();
    if !bio.is_null() {
        submit::forget(bio);
    }
    if let Some(state) = state(request)
        && state.flags & ACTIVE != 0
    {
        vanish(state);
    }
    0
}

/// Bytes of a request completed. Runs in whatever task was interrupted.
#[btf_tracepoint(function = "block_rq_complete")]
fn block_rq_complete(ctx: BtfTracePointContext) -> i32 {
    let request = Request(argument(&ctx, &RQ_COMPLETE_RQ));
    let (failed, bytes) = outcome(&ctx, &RQ_COMPLETE_RQ);
    let kind = request.kind();
    if kind == Kind::Passthrough {
        return 0;
    }
    let Some(state) = state(request).filter(|state| state.flags & ACTIVE != 0) else {
        // A durable write completes a second time, with 0 bytes, after the flush that follows it: that was counted already.
        if bytes != 0 || kind == Kind::Flush {
            lost::count(BLOCK_UNMATCHED);
        }
        return 0;
    };
    let now = now();
    let Some(counters) = counters(state) else {
        // Its device is gone and forgotten; where there was no room for the series, that was counted at its start.
        if state.slot != NO_SLOT {
            lost::count(BLOCK_UNMATCHED);
        }
        state.flags = 0;
        return 0;
    };
    // SAFETY: a value of BLOCK_COUNT.
    unsafe {
        if bytes < request.bytes() {
            count::add(&raw mut (*counters).partial, 1);
            count::add(&raw mut (*counters).bytes, u64::from(bytes));
            state.flags |= if failed { FAILED } else { 0 };
            return 0;
        }
        if failed || state.flags & FAILED != 0 {
            count::add(&raw mut (*counters).errors, 1);
        }
        if state.issue_ns == 0 && bytes == 0 {
            // An empty flush: its work was done by a FLUSH request, it never went to the device itself.
            count::add(&raw mut (*counters).vanished, 1);
            state.flags = 0;
            return 0;
        }
    }
    let done = *state;
    state.flags = 0;
    selftest::completed(&done);
    sample(&done, now);
    // Last, because the reader looks at the histograms again when `completed` moved: they must be complete by then.
    // SAFETY: a value of BLOCK_COUNT.
    unsafe {
        count::add(&raw mut (*counters).bytes, u64::from(bytes));
        count::add(&raw mut (*counters).completed, 1);
    }
    0
}

/// Counts the phases of a request that completed at `now`.
#[inline(always)]
fn sample(done: &RequestState, now: u64) {
    let RequestState { queue_ns, start_ns, issue_ns, .. } = *done;
    if now < issue_ns || issue_ns < start_ns || start_ns < queue_ns {
        // Also a request that failed before it was issued, which has no time on the device: issue_ns is 0.
        lost::count(if issue_ns == 0 { BLOCK_UNMATCHED } else { BLOCK_NEGATIVE });
        return;
    }
    let Some(histograms) = count::histograms(u32::from(done.slot)) else { return };
    // SAFETY: `histograms` is a value of BLOCK_LATENCY, and these are phases.
    unsafe {
        if done.operation == DEVICE_WIDE {
            count::record(histograms, FLUSH, now - issue_ns);
            return;
        }
        count::record(histograms, DEVICE, now - issue_ns);
        count::record(histograms, QUEUE, issue_ns - start_ns);
        if queue_ns == 0 {
            // Not queued by a bio that was seen: it has no submit wait and no total, which is not the same as none.
            lost::count(BLOCK_UNMATCHED);
            return;
        }
        count::record(histograms, SUBMIT_WAIT, start_ns - queue_ns);
        count::record(histograms, TOTAL, now - queue_ns);
    }
}
