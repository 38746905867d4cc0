//! Kernels without `sock_recv_length` and `sock_send_length` (before 6.3): the entry and the exit of the system calls.
//!
//! At entry the call of a target is kept by thread, with the socket behind its file descriptor; at exit, bytes that it moved
//! are looked at. Calls of other processes pay two look-ups.

use aya_ebpf::{
    EbpfContext as _, Global,
    helpers::{bpf_get_current_pid_tgid, generated::bpf_get_current_task},
    macros::{map, tracepoint},
    maps::HashMap,
    programs::TracePointContext,
};
use tailcomb_common::lost::SOCKET_MAP_FULL;

use super::{
    call::{self, Call, number},
    state::{REQUESTS, RESPONSES, is_target},
};
use crate::{kernel, lost};

#[unsafe(no_mangle)]
static SYS_ENTER_NUMBER: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SYS_ENTER_FIRST: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SYS_ENTER_SECOND: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SYS_ENTER_THIRD: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SYS_ENTER_FOURTH: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SYS_EXIT_RESULT: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static TASK_FILES: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILES_FDT: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FDT_MAX_FDS: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FDT_FD: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static FILE_PRIVATE_DATA: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SOCKET_FILE: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static SOCKET_SK: Global<u32> = Global::new(0);

// include/linux/socket.h, part of the interface of recv(2).
const MSG_PEEK: u64 = 0x2;
const MSG_TRUNC: u64 = 0x20;
const MSG_ERRQUEUE: u64 = 0x2000;

/// A call in progress.
#[repr(C)]
#[derive(Clone, Copy)]
struct Entered {
    sk: u64,
    number: u64,
    first: u64,
    second: u64,
    flags: u64,
}

/// Calls in progress, by thread.
#[map]
static CALLS: HashMap<u64, Entered> = HashMap::with_max_entries(16_384, 0);

/// One word of a classic tracepoint's record; by a helper, because 5.10 takes direct loads from a context at constant offsets
/// only.
#[inline(always)]
fn word(ctx: &TracePointContext, offset: &Global<u32>) -> u64 {
    kernel::read(ctx.as_ptr() as u64, offset).unwrap_or(0)
}

#[inline(always)]
fn enter(ctx: &TracePointContext, flags: impl FnOnce(u64) -> u64) -> i32 {
    let id = bpf_get_current_pid_tgid();
    if !is_target((id >> 32) as u32) {
        return 0;
    }
    let Some(sk) = socket(word(ctx, &SYS_ENTER_FIRST) as u32) else {
        return 0;
    };
    let number = word(ctx, &SYS_ENTER_NUMBER) & 0xffff_ffff;
    let entered =
        Entered { sk, number, first: word(ctx, &SYS_ENTER_SECOND), second: word(ctx, &SYS_ENTER_THIRD), flags: flags(number) };
    keep(id, &entered);
    0
}

#[inline(always)]
fn keep(thread: u64, entered: &Entered) {
    if CALLS.insert(thread, entered, 0).is_err() {
        lost::count(SOCKET_MAP_FULL);
    }
}

/// Entry of splice: from the descriptor that is its first argument, to that which is its third. Its `first` is the direction.
#[tracepoint]
fn socket_enter_splice(ctx: TracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    if !is_target((id >> 32) as u32) {
        return 0;
    }
    let (sk, direction) = match socket(word(&ctx, &SYS_ENTER_THIRD) as u32) {
        Some(sk) => (sk, RESPONSES),
        None => match socket(word(&ctx, &SYS_ENTER_FIRST) as u32) {
            Some(sk) => (sk, REQUESTS),
            None => return 0,
        },
    };
    keep(id, &Entered { sk, number: number::SPLICE, first: direction, second: 0, flags: 0 });
    0
}

/// Entry of read, readv, recvmsg, write, writev, sendto, sendmsg, sendfile.
#[tracepoint]
fn socket_enter(ctx: TracePointContext) -> i32 {
    enter(&ctx, |number| if number == number::RECVMSG { word(&ctx, &SYS_ENTER_THIRD) } else { 0 })
}

/// Entry of recvfrom, whose flags are the fourth argument: the records of the others end before.
#[tracepoint]
fn socket_enter_recvfrom(ctx: TracePointContext) -> i32 {
    enter(&ctx, |_| word(&ctx, &SYS_ENTER_FOURTH))
}

/// Exit of all of them.
#[tracepoint]
fn socket_exit(ctx: TracePointContext) -> i32 {
    let id = bpf_get_current_pid_tgid();
    if !is_target((id >> 32) as u32) {
        return 0;
    }
    let Some(entered) = CALLS.get_ptr(id) else { return 0 };
    // SAFETY: the entry is this thread's own.
    let entered = unsafe { *entered };
    // It is there.
    let _ = CALLS.remove(id);
    let bytes = word(&ctx, &SYS_EXIT_RESULT) as i64;
    if bytes <= 0 || entered.flags & (MSG_PEEK | MSG_ERRQUEUE) != 0 {
        return 0;
    }
    let direction = match entered.number {
        number::READ | number::READV | number::RECVFROM | number::RECVMSG => REQUESTS,
        number::SPLICE => entered.first,
        _ => RESPONSES,
    };
    let number = if entered.flags & MSG_TRUNC != 0 { call::UNKNOWN } else { entered.number };
    call::moved(direction, entered.sk, bytes as u64, || Call { number, first: entered.first, second: entered.second });
    0
}

/// The socket behind a file descriptor of the current process: a file is a socket's when the socket says so.
#[inline(always)]
fn socket(descriptor: u32) -> Option<u64> {
    // SAFETY: a helper without arguments.
    let task = unsafe { bpf_get_current_task() };
    let files: u64 = kernel::read(task, &TASK_FILES)?;
    let table: u64 = kernel::read(files, &FILES_FDT)?;
    if descriptor >= kernel::read::<u32>(table, &FDT_MAX_FDS)? {
        return None;
    }
    let array: u64 = kernel::read(table, &FDT_FD)?;
    let file: u64 = kernel::read_at(array + u64::from(descriptor) * 8)?;
    let socket: u64 = kernel::read(file, &FILE_PRIVATE_DATA)?;
    let owner: u64 = kernel::read(socket, &SOCKET_FILE)?;
    if file == 0 || owner != file {
        return None;
    }
    kernel::read(socket, &SOCKET_SK)
}
