//! Hooks of kernels that have `sock_recv_length` and `sock_send_length` (6.3 and later).
//!
//! They fire for sockets only, with the socket and the bytes moved. The system call that moved them is still in progress, so
//! its number and arguments are read from the registers the thread entered the kernel with: nothing is hooked at the entry of
//! any call, and calls that move no bytes of a socket pay nothing at all.

use aya_ebpf::{
    Global,
    helpers::generated::{bpf_get_current_task_btf, bpf_task_pt_regs},
    macros::raw_tracepoint,
    programs::RawTracePointContext,
};

use super::{
    call::{self, Call, UNKNOWN},
    state::{REQUESTS, RESPONSES},
};

#[unsafe(no_mangle)]
static REGS_NUMBER: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static REGS_RESULT: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static REGS_SECOND: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static REGS_THIRD: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static REGS_SEGMENT: Global<u32> = Global::new(0);

// include/linux/socket.h, part of the interface of recv(2).
const MSG_PEEK: u64 = 0x2;
const MSG_TRUNC: u64 = 0x20;
const MSG_ERRQUEUE: u64 = 0x2000;

/// What a thread's result register holds from the entry of a system call until its return: −ENOSYS.
const IN_PROGRESS: u64 = -38i64 as u64;
/// Code segment of 64-bit user code (arch/x86: __USER_CS); a 32-bit call has other numbers and registers.
const USER_64: u64 = 0x33;

/// The system call that the current thread is in. io_uring moves bytes at other times too: on the way out of a call, and on
/// threads of its own, which never are in one.
#[inline(always)]
fn current() -> Call {
    // SAFETY: helpers that take and give the current task.
    let regs = unsafe { bpf_task_pt_regs(bpf_get_current_task_btf()) } as u64;
    let unknown = Call { number: UNKNOWN, first: 0, second: 0 };
    if register(regs, &REGS_RESULT) != IN_PROGRESS || register(regs, &REGS_SEGMENT) & 0xffff != USER_64 {
        return unknown;
    }
    Call { number: register(regs, &REGS_NUMBER), first: register(regs, &REGS_SECOND), second: register(regs, &REGS_THIRD) }
}

/// One register. The verifier knows the type behind `regs` and checks the offset, so it is a plain load.
#[inline(always)]
fn register(regs: u64, offset: &Global<u32>) -> u64 {
    // SAFETY: as above.
    unsafe { core::ptr::read_volatile((regs + u64::from(offset.load())) as *const u64) }
}

#[raw_tracepoint(tracepoint = "sock_recv_length")]
fn sock_recv_length(ctx: RawTracePointContext) -> i32 {
    let bytes = ctx.arg::<u64>(1) as i32;
    let flags: u64 = ctx.arg(2);
    if bytes <= 0 || flags & (MSG_PEEK | MSG_ERRQUEUE) != 0 {
        return 0;
    }
    call::moved(REQUESTS, ctx.arg(0), bytes as u64, || {
        // Truncation throws bytes away unseen.
        if flags & MSG_TRUNC != 0 { Call { number: UNKNOWN, first: 0, second: 0 } } else { current() }
    });
    0
}

#[raw_tracepoint(tracepoint = "sock_send_length")]
fn sock_send_length(ctx: RawTracePointContext) -> i32 {
    let bytes = ctx.arg::<u64>(1) as i32;
    if bytes <= 0 {
        return 0;
    }
    call::moved(RESPONSES, ctx.arg(0), bytes as u64, current);
    0
}
