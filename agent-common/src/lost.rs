//! Samples that were seen and not counted: position in the per-CPU map `LOST`, with the labels they are exported under.

/// `(stage, reason)` of `tailcomb_lost_total`, by position in the map `LOST`.
pub const REASONS: [(&str, &str); 7] = [
    ("block", "unmatched"),
    ("block", "negative"),
    ("block", "map_full"),
    ("socket", "ring_full"),
    ("socket", "map_full"),
    ("socket", "negative"),
    ("block", "unseen_end"),
];

/// A completion of a request whose start was not seen (it began before the probe, or its state was evicted).
pub const BLOCK_UNMATCHED: u32 = 0;
/// An end before its start.
pub const BLOCK_NEGATIVE: u32 = 1;
/// No room in a map for a new device, operation or request.
pub const BLOCK_MAP_FULL: u32 = 2;
/// The ring buffer had no room for a record. What is not decoded is not lost but undecoded, and has its own records.
pub const SOCKET_RING_FULL: u32 = 3;
/// No room in a map for a new connection, request, thread or process.
pub const SOCKET_MAP_FULL: u32 = 4;
/// An end before its start.
pub const SOCKET_NEGATIVE: u32 = 5;
/// A request of which no end was seen before its memory was used for another.
pub const BLOCK_UNSEEN_END: u32 = 6;
