//! The HTTP/1.1 byte machine: where one direction of a connection is, told byte by byte.
//!
//! One [`Machine`] reads requests, another the responses to them. It frames bodies (Content-Length, chunked, until close), so
//! that the bytes of a body are never taken for a head; in the body of a stream it looks for the first event. The same code
//! runs in the kernel and in user space, where it is tested: `agent-ebpf/src/socket/scan.rs` walks it over what a system
//! call moved, one window at a time, and hops over what [`Machine::skippable`] says need not be looked at.
//!
//! What it does not do: it never looks for a request's end by time, and what is no HTTP/1.1 stops it ([`FAILED`]) rather than
//! be guessed at.

mod skim;
mod table;

use table::{
    ACTIONS, AFTER_CHUNK, BEGIN_RESPONSE, CLASSES, DATA_CHUNK, DATA_CLOSE, DATA_FIXED, LENGTH_RESET, NDJSON_START, NEXT_EVENT,
    NO_LINES, OPAQUE, SIZE_START, SSE_START, START_REQUEST, START_RESPONSE, TABLE, TRAILER_START,
};

/// Signal of [`Machine::step`]: the first byte of a message. A final response after interim ones (1xx) begins once more.
pub const BEGIN: u8 = 1;
/// Signal: the head of a request, or of a final response, is complete.
pub const HEAD: u8 = 1 << 1;
/// Signal: a stream's event; see [`Machine::begin_write`] for which are told.
pub const EVENT: u8 = 1 << 2;
/// Signal: the message is complete.
pub const END: u8 = 1 << 3;
/// Signal: from here on the connection is no HTTP (status 101, or a successful CONNECT); comes with [`HEAD`] and [`END`].
pub const UPGRADE: u8 = 1 << 4;
/// Signal: these bytes are no HTTP/1.1 here; [`Machine::failure`] says what they are. The machine stays where it is.
pub const FAILED: u8 = 1 << 7;

/// [`Machine::flags`]: it reads responses.
const RESPONSE: u16 = 1;
/// The message has a Content-Length.
const HAS_LENGTH: u16 = 1 << 1;
/// Its transfer coding is chunked.
const CHUNKED: u16 = 1 << 2;
/// Its content type is `text/event-stream`.
const SSE: u16 = 1 << 3;
/// Its content type is newline-delimited JSON.
const NDJSON: u16 = 1 << 4;
/// Its content is compressed.
const ENCODED: u16 = 1 << 5;
/// A request: its method is HEAD. A response: the method it answers is.
const TO_HEAD: u16 = 1 << 6;
/// The same for CONNECT.
const TO_CONNECT: u16 = 1 << 7;
/// What is known before a message begins.
const KEPT: u16 = RESPONSE;

/// No body is so long: a number that grows beyond it is an error, never an overflow.
const LONGEST: u64 = 1 << 56;
/// Stands for the length of a body that ends with the connection.
const ENDLESS: u64 = 1 << 62;

/// What stopped a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A TLS record where a request should begin.
    Tls,
    /// The preface of HTTP/2.
    Http2,
    /// Neither, or HTTP/1.1 that breaks its rules.
    Other,
}

/// How the end of a response's body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    None,
    /// By Content-Length.
    Length,
    /// By an empty chunk.
    Chunked,
    /// By the end of the connection.
    Close,
}

/// One direction of one connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Body bytes to come in this chunk or body; while a number is read: that number.
    remaining: u64,
    /// Body bytes of the message, those of the chunk at hand counted in full.
    announced: u64,
    /// Position in the automaton.
    state: u8,
    /// Position in the lines of a stream's body.
    line: u8,
    /// Status code of the response; 0 = not read.
    status: u16,
    /// What the head said.
    flags: u16,
    /// Always 0.
    padding: u16,
}

impl Machine {
    /// A machine that reads requests.
    #[must_use]
    #[inline(always)]
    pub const fn requests() -> Self {
        Self { remaining: 0, announced: 0, state: START_REQUEST, line: NO_LINES, status: 0, flags: 0, padding: 0 }
    }

    /// A machine that reads responses.
    #[must_use]
    #[inline(always)]
    pub const fn responses() -> Self {
        Self { remaining: 0, announced: 0, state: START_RESPONSE, line: NO_LINES, status: 0, flags: RESPONSE, padding: 0 }
    }

    /// Takes one byte and says what it completed: a set of [`BEGIN`], [`HEAD`], [`EVENT`], [`END`], [`UPGRADE`], [`FAILED`].
    ///
    /// After [`BEGIN`] of a response, [`Self::answer`] must be told what is answered before the next byte.
    #[must_use]
    #[inline(always)]
    pub fn step(&mut self, byte: u8) -> u8 {
        let class = CLASSES[byte as usize] & 63;
        if self.state >= DATA_CHUNK {
            return self.body_byte(class);
        }
        let next = TABLE[(self.state as usize) << 6 | class as usize];
        self.state = next;
        if next < ACTIONS { self.act(next, byte) } else { 0 }
    }

    /// How many of the next bytes [`Self::step`] need not see: they may be told to [`Self::skip`] instead.
    #[must_use]
    #[inline(always)]
    pub const fn skippable(&self) -> u64 {
        if self.state >= DATA_CHUNK && self.line == NO_LINES { self.remaining } else { 0 }
    }

    /// Passes over `count` ≤ [`Self::skippable`] bytes. Returns signals as [`Self::step`] does: only [`END`] can come.
    #[must_use]
    #[inline(always)]
    pub const fn skip(&mut self, count: u64) -> u8 {
        if self.state >= DATA_CLOSE {
            // Endless: nothing is counted down, but the bytes are counted.
            self.announced = self.announced.saturating_add(count);
            return 0;
        }
        self.remaining = self.remaining.saturating_sub(count);
        if self.remaining == 0 { self.body_done() } else { 0 }
    }

    /// A response: is it to a HEAD request, to a CONNECT request? To be told after [`BEGIN`].
    #[inline(always)]
    pub const fn answer(&mut self, request: &RequestKind) {
        self.flags |= request.0;
    }

    /// A new write begins. In the body of a stream without chunks, its first byte then tells whether it carries an event;
    /// with chunks, each chunk's first byte does, from the first event on.
    #[inline(always)]
    pub const fn begin_write(&mut self) {
        if (self.state == DATA_FIXED || self.state == DATA_CLOSE) && self.line == NO_LINES && self.has_events() {
            self.line = NEXT_EVENT;
        }
    }

    /// Is it between two messages?
    #[must_use]
    #[inline(always)]
    pub const fn is_idle(&self) -> bool {
        self.state == START_REQUEST || self.state == START_RESPONSE
    }

    /// Does the end of the connection complete the message at hand?
    #[must_use]
    #[inline(always)]
    pub const fn ends_at_close(&self) -> bool {
        self.state == DATA_CLOSE
    }

    /// Why it stopped, after [`FAILED`].
    #[must_use]
    #[inline(always)]
    pub const fn failure(&self) -> Failure {
        match self.state {
            table::FAILED_TLS => Failure::Tls,
            table::FAILED_HTTP2 => Failure::Http2,
            _ => Failure::Other,
        }
    }

    /// Status code; 0 = not read.
    #[must_use]
    #[inline(always)]
    pub const fn status(&self) -> u16 {
        self.status
    }

    /// Body bytes seen so far, framing excluded.
    #[must_use]
    #[inline(always)]
    pub const fn body_bytes(&self) -> u64 {
        if self.state == DATA_CHUNK || self.state == DATA_FIXED {
            self.announced.saturating_sub(self.remaining)
        } else {
            self.announced
        }
    }

    /// Is the content type `text/event-stream`?
    #[must_use]
    #[inline(always)]
    pub const fn is_sse(&self) -> bool {
        self.flags & SSE != 0
    }

    /// Is the content type newline-delimited JSON?
    #[must_use]
    #[inline(always)]
    pub const fn is_ndjson(&self) -> bool {
        self.flags & NDJSON != 0
    }

    /// Is the content compressed?
    #[must_use]
    #[inline(always)]
    pub const fn is_encoded(&self) -> bool {
        self.flags & ENCODED != 0
    }

    /// A request: what a machine of responses must know of it.
    #[must_use]
    #[inline(always)]
    pub const fn kind(&self) -> RequestKind {
        RequestKind(self.flags & (TO_HEAD | TO_CONNECT))
    }

    /// How the body of the message ends, by its head; see RFC 9112, 6.3.
    #[must_use]
    #[inline(always)]
    pub const fn framing(&self) -> Framing {
        let response = self.flags & RESPONSE != 0;
        if response && (self.flags & TO_HEAD != 0 || self.status == 204 || self.status == 304) {
            Framing::None
        } else if self.flags & CHUNKED != 0 {
            Framing::Chunked
        } else if self.flags & HAS_LENGTH != 0 {
            if self.remaining == 0 { Framing::None } else { Framing::Length }
        } else if response {
            Framing::Close
        } else {
            Framing::None
        }
    }

    #[inline(always)]
    const fn has_events(&self) -> bool {
        self.flags & (SSE | NDJSON) != 0 && self.flags & ENCODED == 0
    }

    /// One byte of a body.
    #[inline(always)]
    fn body_byte(&mut self, class: u8) -> u8 {
        let next = TABLE[(self.line as usize) << 6 | class as usize];
        let mut signals = 0;
        if next == table::EVENT {
            self.line = NO_LINES;
            signals = EVENT;
        } else {
            self.line = next;
        }
        signals | self.skip(1)
    }

    /// The chunk, or the body of known length, is complete.
    #[inline(always)]
    const fn body_done(&mut self) -> u8 {
        if self.state == DATA_CHUNK {
            self.state = AFTER_CHUNK;
            return 0;
        }
        self.message_done()
    }

    #[inline(always)]
    const fn message_done(&mut self) -> u8 {
        self.state = if self.flags & RESPONSE != 0 { START_RESPONSE } else { START_REQUEST };
        self.line = NO_LINES;
        END
    }

    /// What happens on entering `state`.
    #[inline(always)]
    const fn act(&mut self, state: u8, byte: u8) -> u8 {
        match state {
            table::BEGIN_OTHER..=BEGIN_RESPONSE => {
                self.flags &= KEPT;
                self.status = 0;
                self.remaining = 0;
                self.announced = 0;
                return BEGIN;
            }
            table::IS_HEAD => self.flags |= TO_HEAD,
            table::IS_CONNECT => self.flags |= TO_CONNECT,
            table::STATUS_1..=table::STATUS_3 => self.status = self.status.wrapping_mul(10).wrapping_add((byte & 15) as u16),
            LENGTH_RESET => self.length_begins(),
            table::LENGTH_DIGIT => return self.digit(10, byte & 15),
            table::SIZE_DIGIT => {
                // 0-9 are 0x30 …, letters 0x41 … and 0x61 …: bit 6 tells them apart.
                let letter = (byte >> 6) & 1;
                return self.digit(16, (byte & 15) + letter * 9);
            }
            table::CHUNKED_SET => self.flags |= CHUNKED,
            table::CHUNKED_CLEAR => self.flags &= !CHUNKED,
            table::SSE_SET => self.flags |= SSE,
            table::NDJSON_SET => self.flags |= NDJSON,
            table::TYPE_CLEAR => self.flags &= !(SSE | NDJSON),
            table::ENCODED_SET => self.flags |= ENCODED,
            table::HEAD_END => return self.head_done(),
            table::SIZE_END => self.chunk_begins(),
            table::MESSAGE_END => return self.message_done(),
            _ => return FAILED,
        }
        0
    }

    /// The value of Content-Length follows.
    #[inline(always)]
    const fn length_begins(&mut self) {
        self.remaining = 0;
        self.flags |= HAS_LENGTH;
    }

    /// One more digit of the number in `remaining`.
    #[inline(always)]
    const fn digit(&mut self, base: u64, digit: u8) -> u8 {
        self.remaining = self.remaining.wrapping_mul(base).wrapping_add(digit as u64);
        if self.remaining > LONGEST {
            self.state = table::FAILED;
            return FAILED;
        }
        0
    }

    #[inline(always)]
    const fn head_done(&mut self) -> u8 {
        if self.flags & RESPONSE != 0 {
            if self.status == 101 || (self.flags & TO_CONNECT != 0 && self.status / 100 == 2) {
                self.state = OPAQUE;
                self.remaining = ENDLESS;
                return HEAD | END | UPGRADE;
            }
            if self.status < 100 {
                self.state = table::FAILED;
                return FAILED;
            }
            if self.status < 200 {
                self.state = START_RESPONSE;
                return 0;
            }
        }
        if self.has_events() {
            self.line = if self.flags & SSE != 0 { SSE_START } else { NDJSON_START };
        }
        match self.framing() {
            Framing::None => {
                // Content-Length may describe a body that does not come.
                self.remaining = 0;
                HEAD | self.message_done()
            }
            Framing::Length => {
                self.announced = self.remaining;
                self.state = DATA_FIXED;
                HEAD
            }
            Framing::Chunked => {
                self.remaining = 0;
                self.state = SIZE_START;
                HEAD
            }
            Framing::Close => {
                self.remaining = ENDLESS;
                self.state = DATA_CLOSE;
                HEAD
            }
        }
    }

    #[inline(always)]
    const fn chunk_begins(&mut self) {
        if self.remaining == 0 {
            self.state = TRAILER_START;
            return;
        }
        self.announced = self.announced.saturating_add(self.remaining);
        self.state = DATA_CHUNK;
        if self.line == NO_LINES && self.has_events() {
            self.line = NEXT_EVENT;
        }
    }
}

/// What a response depends on in its request: whether its method is HEAD or CONNECT.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestKind(pub u16);

impl RequestKind {
    /// It in one byte.
    #[must_use]
    #[inline(always)]
    pub const fn to_byte(self) -> u8 {
        (self.0 >> KIND_SHIFT) as u8
    }

    /// It again.
    #[must_use]
    #[inline(always)]
    pub const fn from_byte(byte: u8) -> Self {
        Self((byte as u16) << KIND_SHIFT)
    }
}

/// Position of the lowest flag of a [`RequestKind`].
const KIND_SHIFT: u32 = TO_HEAD.trailing_zeros();
const _: () = assert!((TO_HEAD | TO_CONNECT) >> KIND_SHIFT < 256, "a kind does not fit into its byte");

const _: () = assert!(core::mem::size_of::<Machine>() == 24, "kept small: the kernel has two of them for each connection");

#[cfg(test)]
mod tests;
