//! Which bio a task queued, and when: pairs `block_bio_queue` with the birth of the request, in the same task.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::map, maps::LruHashMap};
use tailcomb_common::{
    block::{MAX_TASKS, OLDER_BIOS, QueuedBio, TaskBios},
    lost::BLOCK_MAP_FULL,
};

use super::layout::Bio;
use crate::lost;

/// By thread id. Entries stay, so that an I/O costs look-ups only; threads that are gone are evicted.
#[map]
static BLOCK_TASK: LruHashMap<u32, TaskBios> = LruHashMap::with_max_entries(MAX_TASKS, 0);

fn thread() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// Remembers that this task queued `bio` at `now`.
#[inline(always)]
pub(super) fn queued(bio: Bio, now: u64) {
    let thread = thread();
    let queued = QueuedBio { bio: bio.address(), queue_ns: now };
    let Some(task) = BLOCK_TASK.get_ptr_mut(&thread) else {
        let first = TaskBios { newest: queued, ..TaskBios::default() };
        if BLOCK_TASK.insert(&thread, &first, 0).is_err() {
            lost::count(BLOCK_MAP_FULL);
        }
        return;
    };
    // SAFETY: the entry is this thread's own.
    let task = unsafe { &mut *task };
    if task.newest.bio != 0 {
        // Not a request yet: this task is inside the submission to a stacked device (or that bio was merged or ended).
        task.older[task.next as usize & (OLDER_BIOS - 1)] = task.newest;
        task.next = task.next.wrapping_add(1);
    }
    task.newest = queued;
}

/// When the bio that becomes a request now was queued; 0 = not seen.
///
/// The newest one is looked at first, so that an entry that was left behind (its bio ended without a request and its memory
/// was used again) can't win over the true one.
#[inline(always)]
pub(super) fn take(bio: Bio) -> u64 {
    let Some(task) = BLOCK_TASK.get_ptr_mut(&thread()) else { return 0 };
    // SAFETY: the entry is this thread's own.
    let task = unsafe { &mut *task };
    let address = bio.address();
    if task.newest.bio == address {
        task.newest.bio = 0;
        return task.newest.queue_ns;
    }
    // A bio that was split off was never queued itself: it points to the one it was split from, which still has to come.
    let parent = bio.private();
    if parent != 0 && task.newest.bio == parent {
        return task.newest.queue_ns;
    }
    let mut age = 1;
    while age <= OLDER_BIOS as u64 {
        let older = &mut task.older[task.next.wrapping_sub(age) as usize & (OLDER_BIOS - 1)];
        if older.bio == address {
            older.bio = 0;
            return older.queue_ns;
        }
        if parent != 0 && older.bio == parent {
            return older.queue_ns;
        }
        age += 1;
    }
    0
}

/// Forgets a bio that was merged into a request of another.
#[inline(always)]
pub(super) fn forget(bio: Bio) {
    if let Some(task) = BLOCK_TASK.get_ptr_mut(&thread()) {
        // SAFETY: the entry is this thread's own.
        let task = unsafe { &mut *task };
        if task.newest.bio == bio.address() {
            task.newest.bio = 0;
        }
    }
}
