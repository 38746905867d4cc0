//! Connections and processes come and go.

use aya_ebpf::{
    Global,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use tailcomb_common::lost::SOCKET_MAP_FULL;

use super::{
    call, marks, position,
    state::{CLAIMS, CONNECTIONS, DEPTH, IGNORED, PIPELINED, PORTS, PORTS_ONLY, Place, RESPONSES, TGIDS, connection, measured},
};
use crate::{kernel, lost};

#[unsafe(no_mangle)]
static TASK_TGID: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_SIGNAL: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SIGNAL_LIVE: Global<u32> = Global::new(0);

// include/uapi/linux/bpf.h, BPF_TCP_*: the kernel checks at build time that they are its own.
const ESTABLISHED: u32 = 1;
const SYN_RECV: u32 = 3;
const FIN_WAIT1: u32 = 4;
const CLOSE: u32 = 7;
const LAST_ACK: u32 = 9;
const LISTEN: u32 = 10;

#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
fn inet_sock_set_state(ctx: RawTracePointContext) -> i32 {
    let sk: u64 = ctx.arg(0);
    let old = ctx.arg::<u64>(1) as u32;
    let new = ctx.arg::<u64>(2) as u32;
    // SAFETY: a helper without arguments.
    let now = || unsafe { bpf_ktime_get_ns() };
    if new == ESTABLISHED {
        // Only the server's side comes from SYN_RECV.
        if old == SYN_RECV {
            let port = call::local_port(sk);
            if call::is_measured(port)
                && let Some(connection) = call::create(sk, port, now())
            {
                connection.arrivals.begin(sk, now());
            }
        }
    } else if new == FIN_WAIT1 || new == LAST_ACK {
        // The server has closed, or sends nothing any more: nothing can be in progress behind that.
        if let Some(connection) = connection(sk)
            && connection.mode != IGNORED
        {
            marks::close(sk, now(), position::of(sk, RESPONSES), true);
        }
    } else if new == CLOSE {
        // A reset or a time-out. A call that moved its bytes before may not have been seen yet, so nothing is said before
        // the socket goes.
        if let Some(connection) = connection(sk) {
            connection.cut_ns = now();
            // Closing may change it later.
            connection.cut_at = u64::from(position::of(sk, RESPONSES));
        }
    } else if new == LISTEN {
        listen(call::local_port(sk));
    }
    0
}

/// The current process begins to listen.
#[inline(always)]
fn listen(port: u32) {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    // SAFETY: the value is one word.
    let value = PORTS.get_ptr(port).map(|value| unsafe { *value });
    if value == Some(CLAIMS) {
        target(tgid, PORTS_ONLY);
    } else if port != 0 && value.is_none() && measured(tgid) == Some(0) && PORTS.insert(port, 0, 0).is_err() {
        lost::count(SOCKET_MAP_FULL);
    }
}

#[inline(always)]
fn target(tgid: u32, value: u32) {
    if TGIDS.get_ptr(tgid).is_none() && TGIDS.insert(tgid, value, 0).is_err() {
        lost::count(SOCKET_MAP_FULL);
    }
}

/// The application has closed the socket and no call on it is left, or nobody ever accepted it.
#[raw_tracepoint(tracepoint = "tcp_destroy_sock")]
fn tcp_destroy_sock(ctx: RawTracePointContext) -> i32 {
    let sk: u64 = ctx.arg(0);
    if let Some(connection) = connection(sk) {
        if connection.mode != IGNORED {
            let (now, written) = if connection.cut_ns == 0 {
                // SAFETY: a helper without arguments.
                (unsafe { bpf_ktime_get_ns() }, position::of(sk, RESPONSES))
            } else {
                (connection.cut_ns, connection.cut_at as u32)
            };
            marks::close(sk, now, written, false);
        }
        if connection.pipelines != 0 {
            // What two directions at once may have left.
            for slot in 0..kernel::turns::<{ DEPTH as u64 }>() {
                // Hardly ever there.
                let _ = PIPELINED.remove(Place { sk, slot });
            }
        }
        // It is there: nobody else removes it.
        let _ = CONNECTIONS.remove(sk);
    }
    0
}

/// The child process of a target is one, for the same ports.
#[raw_tracepoint(tracepoint = "sched_process_fork")]
fn sched_process_fork(ctx: RawTracePointContext) -> i32 {
    let parent = (bpf_get_current_pid_tgid() >> 32) as u32;
    if let Some(value) = measured(parent)
        && let Some(child) = kernel::read::<u32>(ctx.arg(1), &TASK_TGID)
        && child != parent
    {
        target(child, value);
    }
    0
}

/// The last thread of a process ends: its number will be another's.
#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn sched_process_exit(ctx: RawTracePointContext) -> i32 {
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    if TGIDS.get_ptr(tgid).is_some()
        && let Some(signal) = kernel::read::<u64>(ctx.arg(0), &TASK_SIGNAL)
        && kernel::read::<i32>(signal, &SIGNAL_LIVE).is_some_and(|live| live <= 0)
    {
        // It is there.
        let _ = TGIDS.remove(tgid);
    }
    0
}
