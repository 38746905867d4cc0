//! What makes a machine cheap: several bytes at once, where looking at each would say nothing.

use super::{
    Machine,
    table::{
        BEGIN_RESPONSE, DATA_CHUNK, DATA_CLOSE, FIRST_FREE, HEADER_SKIP, HEADER_START, LENGTH_RESET, SSE_START, START_REQUEST,
        START_RESPONSE, after,
    },
};

// States that whole words are passed from or to.

/// In a request's target.
const TARGET: u8 = after(START_REQUEST, b"GET /");
/// A request's target is complete.
const BEFORE_VERSION: u8 = after(START_REQUEST, b"GET / ");
/// A request's version is.
const VERSION_END: u8 = after(START_REQUEST, b"GET / HTTP/1.1");
/// Before the status.
const BEFORE_STATUS: u8 = after(START_RESPONSE, b"HTTP/1.1 ");
/// In the name of a header that may matter …
const NAME_CONTENT: u8 = after(HEADER_START, b"content-");
/// … and in that of the other.
const NAME_TRANSFER: u8 = after(HEADER_START, b"transfer");
/// In a media type that may matter …
const MEDIA_AP: u8 = after(HEADER_START, b"content-type: ap");
/// … a few bytes further.
const MEDIA_APPLICATIO: u8 = after(MEDIA_AP, b"plicatio");
/// In a line of a stream that is no event, up to its end.
const LINE_SKIP: u8 = after(SSE_START, b":");
const _: () = assert!(
    TARGET >= FIRST_FREE
        && BEFORE_VERSION >= FIRST_FREE
        && VERSION_END >= FIRST_FREE
        && BEFORE_STATUS >= FIRST_FREE
        && NAME_CONTENT >= FIRST_FREE
        && NAME_TRANSFER >= FIRST_FREE
        && MEDIA_APPLICATIO >= FIRST_FREE
        && LINE_SKIP >= FIRST_FREE
        && after(HEADER_START, b"content-length: ") == LENGTH_RESET,
    "a word leads elsewhere"
);

/// One in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Eight characters as [`Machine::skim`] gets them.
const fn word(characters: &[u8; 8]) -> u64 {
    u64::from_le_bytes(*characters)
}

/// CR LF, as they lie in eight bytes.
const LINE_END: u64 = 0x0a0d;

/// How many of eight bytes come before the first that is less than `limit` ≤ 0x80. (Of the differences' borrows only those
/// above a byte that is less can be wrong, and the first one alone is looked at; bytes from 0x80 on are taken out.)
#[inline(always)]
const fn until_below(eight: u64, limit: u64) -> u64 {
    let below = eight.wrapping_sub(ONES * limit) & !eight & (ONES * 0x80);
    if below == 0 {
        return 8;
    }
    // Ones in all bytes up to the first that is less, that one included; then they are added up in the topmost byte.
    let up_to = (below ^ below.wrapping_sub(1)) & ONES;
    (up_to.wrapping_mul(ONES) >> 56) - 1
}

impl Machine {
    /// Passes over the first bytes of `eight` (the next bytes, the first in the lowest place), as far as [`Self::step`] would say
    /// nothing to any of them, and returns how many those are: 0 to 8.
    ///
    /// This is what makes heads cheap: a look-up of the automaton for each byte would touch a cache line for each state. Header
    /// lines that can't matter are told by their first bytes and passed up to their end; words that most heads have are passed
    /// whole.
    #[must_use]
    #[inline(always)]
    pub const fn skim(&mut self, eight: u64) -> u64 {
        if self.state >= DATA_CHUNK {
            // A line of a stream that is no event. The body's last byte is left to `step`, which may say END.
            if self.line != LINE_SKIP || self.remaining <= 8 {
                return 0;
            }
            let count = until_below(eight, 0x20);
            if self.state == DATA_CLOSE {
                self.announced = self.announced.saturating_add(count);
            } else {
                self.remaining = self.remaining.wrapping_sub(count);
            }
            return count;
        }
        // Letters in lower case; what becomes a letter's neighbour only makes a line that does not matter be looked at.
        let folded = eight | (ONES * 0x20);
        match self.state {
            HEADER_SKIP => {
                let count = until_below(eight, 0x20);
                if count <= 6 && (eight >> (count * 8)) & 0xffff == LINE_END {
                    self.state = HEADER_START;
                    return count + 2;
                }
                count
            }
            TARGET => until_below(eight, 0x21),
            HEADER_START => {
                let count = until_below(eight, 0x20);
                if folded == word(b"content-") {
                    return self.pass(count, NAME_CONTENT);
                }
                if folded == word(b"transfer") {
                    return self.pass(count, NAME_TRANSFER);
                }
                if count == 0 || eight & 0xff == b':' as u64 {
                    return 0;
                }
                self.state = HEADER_SKIP;
                count
            }
            NAME_CONTENT => {
                let count = until_below(eight, 0x20);
                if folded == word(b"length: ") && count == 8 {
                    self.length_begins();
                    return self.pass(count, LENGTH_RESET);
                }
                if folded == word(b"type: ap") { self.pass(count, MEDIA_AP) } else { 0 }
            }
            MEDIA_AP if folded == word(b"plicatio") => self.pass(until_below(eight, 0x20), MEDIA_APPLICATIO),
            BEFORE_VERSION if eight == word(b"HTTP/1.1") => self.pass(8, VERSION_END),
            BEGIN_RESPONSE if eight == word(b"TTP/1.1 ") => self.pass(8, BEFORE_STATUS),
            _ => 0,
        }
    }

    /// Passes over a word of eight bytes that leads to `state`; over nothing where not all of them are its own.
    #[inline(always)]
    const fn pass(&mut self, count: u64, state: u8) -> u64 {
        if count < 8 {
            return 0;
        }
        self.state = state;
        8
    }
}
