//! The automaton behind [`super::Machine`], as one table built at compile time.
//!
//! Bytes fall into 64 classes, states are numbers of one byte: the next state is `TABLE[state << 6 | class]`. States below
//! [`ACTIONS`] make something happen when they are entered (see `Machine::act`); states from [`DATA_CHUNK`] on are bodies,
//! where the table is walked by the line state instead.
//!
//! Source of the grammar: RFC 9112 (HTTP/1.1 framing), the HTML standard's chapter on server-sent events.

/// Byte → class, below 64.
pub(super) static CLASSES: [u8; 256] = classes();
/// `state << 6 | class` → state.
pub(super) static TABLE: [u8; 256 * 64] = MADE;
const MADE: [u8; 256 * 64] = table();

/// Where the automaton is after `text`, begun in `from`.
pub(super) const fn after(from: u8, text: &[u8]) -> u8 {
    let mut state = from;
    let mut i = 0;
    while i < text.len() {
        state = MADE[(state as usize) << 6 | class_of(text[i]) as usize];
        i += 1;
    }
    state
}

// Actions: what happens on entering these states is in `Machine::act`.
pub(super) const FAILED: u8 = 0;
pub(super) const FAILED_TLS: u8 = 1;
pub(super) const FAILED_HTTP2: u8 = 2;
/// First letter of a method; H, C and P lead to methods that matter.
pub(super) const BEGIN_OTHER: u8 = 3;
pub(super) const BEGIN_H: u8 = 4;
pub(super) const BEGIN_C: u8 = 5;
pub(super) const BEGIN_P: u8 = 6;
/// The H of a response's HTTP/1.1.
pub(super) const BEGIN_RESPONSE: u8 = 7;
pub(super) const IS_HEAD: u8 = 8;
pub(super) const IS_CONNECT: u8 = 9;
pub(super) const STATUS_1: u8 = 10;
pub(super) const STATUS_2: u8 = 11;
pub(super) const STATUS_3: u8 = 12;
pub(super) const LENGTH_RESET: u8 = 13;
pub(super) const LENGTH_DIGIT: u8 = 14;
pub(super) const CHUNKED_SET: u8 = 15;
pub(super) const CHUNKED_CLEAR: u8 = 16;
pub(super) const SSE_SET: u8 = 17;
pub(super) const NDJSON_SET: u8 = 18;
pub(super) const TYPE_CLEAR: u8 = 19;
pub(super) const ENCODED_SET: u8 = 20;
pub(super) const HEAD_END: u8 = 21;
pub(super) const SIZE_DIGIT: u8 = 22;
pub(super) const SIZE_END: u8 = 23;
pub(super) const MESSAGE_END: u8 = 24;
/// A line state: an event is there.
pub(super) const EVENT: u8 = 25;
/// States below it act on entry.
pub(super) const ACTIONS: u8 = 26;

pub(super) const START_REQUEST: u8 = 26;
pub(super) const START_RESPONSE: u8 = 27;
pub(super) const SIZE_START: u8 = 28;
pub(super) const AFTER_CHUNK: u8 = 29;
pub(super) const TRAILER_START: u8 = 30;
// Line states of a body.
pub(super) const SSE_START: u8 = 31;
pub(super) const NDJSON_START: u8 = 32;
/// The first event was seen; a new chunk or write begins, and its first byte tells whether it is one more.
pub(super) const NEXT_EVENT: u8 = 33;
/// Nothing more is looked for.
pub(super) const NO_LINES: u8 = 34;
/// Header lines that don't matter, up to their end.
pub(super) const HEADER_SKIP: u8 = 35;
pub(super) const HEADER_START: u8 = 36;
pub(super) const FIRST_FREE: u8 = 37;

/// Body states, from here on: a chunk's data, …
pub(super) const DATA_CHUNK: u8 = 252;
/// … a body of known length, …
pub(super) const DATA_FIXED: u8 = 253;
/// … a body that ends with the connection, …
pub(super) const DATA_CLOSE: u8 = 254;
/// … and what is no HTTP any more.
pub(super) const OPAQUE: u8 = 255;

// Classes 0 … 25 are the letters, upper case folded in, except D, A and T: SSE field names are case-sensitive.
const UPPER_A: u8 = 26;
const UPPER_D: u8 = 27;
const UPPER_T: u8 = 28;
const ONE: u8 = 29;
/// The digits but 1.
const DIGIT: u8 = 30;
const SPACE: u8 = 31;
const TAB: u8 = 32;
const CR: u8 = 33;
const LF: u8 = 34;
const COLON: u8 = 35;
const SEMICOLON: u8 = 36;
const COMMA: u8 = 37;
const SLASH: u8 = 38;
const DOT: u8 = 39;
const MINUS: u8 = 40;
const STAR: u8 = 41;
/// First byte of a TLS handshake record; a control character otherwise.
const TLS: u8 = 42;
const CONTROL: u8 = 43;
// The byte order mark.
const BOM_1: u8 = 44;
const BOM_2: u8 = 45;
const BOM_3: u8 = 46;
const OTHER: u8 = 47;
const CLASS_COUNT: u8 = 48;
const _: () = assert!(CLASS_COUNT <= 64, "a class has six bits");

const fn class_of(byte: u8) -> u8 {
    match byte {
        b'A' => UPPER_A,
        b'D' => UPPER_D,
        b'T' => UPPER_T,
        b'a'..=b'z' => byte - b'a',
        byte if byte.is_ascii_uppercase() => byte - b'A',
        b'1' => ONE,
        b'0' | b'2'..=b'9' => DIGIT,
        b' ' => SPACE,
        b'\t' => TAB,
        b'\r' => CR,
        b'\n' => LF,
        b':' => COLON,
        b';' => SEMICOLON,
        b',' => COMMA,
        b'/' => SLASH,
        b'.' => DOT,
        b'-' => MINUS,
        b'*' => STAR,
        0x16 => TLS,
        byte if byte < b' ' => CONTROL,
        0xef => BOM_1,
        0xbb => BOM_2,
        0xbf => BOM_3,
        _ => OTHER,
    }
}

const fn classes() -> [u8; 256] {
    let mut classes = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        #[expect(clippy::cast_possible_truncation, reason = "byte < 256")]
        {
            classes[byte] = class_of(byte as u8);
        }
        byte += 1;
    }
    classes
}

struct Builder {
    table: [u8; 256 * 64],
    free: u8,
}

impl Builder {
    /// One transition by class.
    const fn on(&mut self, from: u8, class: u8, to: u8) {
        self.table[(from as usize) << 6 | class as usize] = to;
    }

    /// One transition by character, in either case.
    const fn on_char(&mut self, from: u8, character: u8, to: u8) {
        self.on(from, class_of(character.to_ascii_lowercase()), to);
        self.on(from, class_of(character.to_ascii_uppercase()), to);
    }

    const fn get(&self, from: u8, character: u8) -> u8 {
        self.table[(from as usize) << 6 | class_of(character) as usize]
    }

    /// Every class leads to `to`.
    const fn all(&mut self, from: u8, to: u8) {
        let mut class = 0;
        while class < 64 {
            self.on(from, class, to);
            class += 1;
        }
    }

    const fn digits(&mut self, from: u8, to: u8) {
        self.on(from, ONE, to);
        self.on(from, DIGIT, to);
    }

    const fn letters(&mut self, from: u8, to: u8) {
        let mut letter = b'a';
        while letter <= b'z' {
            self.on_char(from, letter, to);
            letter += 1;
        }
    }

    const fn blanks(&mut self, from: u8, to: u8) {
        self.on(from, SPACE, to);
        self.on(from, TAB, to);
    }

    /// A state in which every byte but those set afterwards leads to `otherwise`.
    const fn state(&mut self, otherwise: u8) -> u8 {
        let state = self.free;
        assert!(state < DATA_CHUNK, "the automaton has no state left");
        self.free += 1;
        self.all(state, otherwise);
        state
    }

    /// A state inside a header line whose rest leads to `otherwise` until its end.
    const fn line_state(&mut self, otherwise: u8) -> u8 {
        let state = self.state(otherwise);
        self.line(state, otherwise);
        state
    }

    /// Rules of every state inside a header line: its end leads to the next line, control characters to failure.
    const fn line(&mut self, state: u8, otherwise: u8) {
        self.all(state, otherwise);
        self.on(state, CONTROL, FAILED);
        self.on(state, TLS, FAILED);
        self.on(state, LF, HEADER_START);
    }

    /// Follows `word` from `from`, making the states that are missing like `like`; its last character leads to `last`.
    const fn word(&mut self, from: u8, word: &[u8], like: u8, last: u8) {
        let mut state = from;
        let mut i = 0;
        while i + 1 < word.len() {
            let next = self.get(state, word[i]);
            let known = next >= FIRST_FREE && next != like && next != self.get(like, b'?');
            state = if known {
                next
            } else {
                let made = self.state(FAILED);
                self.copy(like, made);
                self.on_char(state, word[i], made);
                made
            };
            i += 1;
        }
        self.on_char(state, word[i], last);
    }

    const fn copy(&mut self, from: u8, to: u8) {
        let mut class = 0;
        while class < 64 {
            self.table[(to as usize) << 6 | class] = self.table[(from as usize) << 6 | class];
            class += 1;
        }
    }
}

const fn table() -> [u8; 256 * 64] {
    let mut b = Builder { table: [FAILED; 256 * 64], free: FIRST_FREE };
    b.all(FAILED_TLS, FAILED_TLS);
    b.all(FAILED_HTTP2, FAILED_HTTP2);
    b.line(HEADER_SKIP, HEADER_SKIP);
    request_line(&mut b);
    status_line(&mut b);
    headers(&mut b);
    chunks(&mut b);
    lines(&mut b);
    b.table
}

const fn request_line(b: &mut Builder) {
    let before_target = b.state(FAILED);
    let target = b.state(FAILED);
    let before_version = b.state(FAILED);
    let version = b.state(FAILED);
    let line_end = b.state(FAILED);

    // A server ignores empty lines before a request (RFC 9112, 2.2).
    b.on(START_REQUEST, CR, START_REQUEST);
    b.on(START_REQUEST, LF, START_REQUEST);
    b.on(START_REQUEST, TLS, FAILED_TLS);
    b.letters(START_REQUEST, BEGIN_OTHER);
    b.on_char(START_REQUEST, b'H', BEGIN_H);
    b.on_char(START_REQUEST, b'C', BEGIN_C);
    b.on_char(START_REQUEST, b'P', BEGIN_P);

    let method = b.state(FAILED);
    b.letters(method, method);
    b.digits(method, method);
    b.on(method, MINUS, method);
    b.on(method, OTHER, method);
    b.on(method, SPACE, before_target);
    b.copy(method, BEGIN_OTHER);
    b.copy(method, BEGIN_H);
    b.copy(method, BEGIN_C);
    b.copy(method, BEGIN_P);
    b.word(BEGIN_H, b"EAD ", method, IS_HEAD);
    b.word(BEGIN_C, b"ONNECT ", method, IS_CONNECT);
    let preface = b.state(FAILED);
    b.word(BEGIN_P, b"RI ", method, preface);

    visible(b, before_target, target);
    b.copy(before_target, IS_HEAD);
    b.copy(before_target, IS_CONNECT);
    b.copy(before_target, preface);
    b.on(preface, STAR, FAILED_HTTP2);
    visible(b, target, target);
    b.on(target, SPACE, before_version);

    // HTTP/0.9 has no version; nothing serves it.
    let strict = b.state(FAILED);
    b.word(before_version, b"HTTP/1.", strict, version);
    b.digits(version, line_end);
    b.on(line_end, SPACE, line_end);
    b.on(line_end, LF, HEADER_START);
    let carriage = b.state(FAILED);
    b.on(carriage, LF, HEADER_START);
    b.on(line_end, CR, carriage);
}

/// Everything visible leads from `from` to `to`, and bytes above ASCII too: servers take them in targets.
const fn visible(b: &mut Builder, from: u8, to: u8) {
    let mut class = 0;
    while class < CLASS_COUNT {
        if !matches!(class, SPACE | TAB | CR | LF | CONTROL | TLS) {
            b.on(from, class, to);
        }
        class += 1;
    }
}

const fn status_line(b: &mut Builder) {
    let version = b.state(FAILED);
    let before_status = b.state(FAILED);
    let strict = b.state(FAILED);
    b.on_char(START_RESPONSE, b'H', BEGIN_RESPONSE);
    b.word(BEGIN_RESPONSE, b"TTP/1.", strict, version);
    b.digits(version, before_status);
    let first = b.state(FAILED);
    b.on(before_status, SPACE, first);
    b.digits(first, STATUS_1);
    b.digits(STATUS_1, STATUS_2);
    b.digits(STATUS_2, STATUS_3);
    b.on(STATUS_3, LF, HEADER_START);
    b.on(STATUS_3, SPACE, HEADER_SKIP);
    let carriage = b.state(FAILED);
    b.on(carriage, LF, HEADER_START);
    b.on(STATUS_3, CR, carriage);
}

const fn headers(b: &mut Builder) {
    b.line(HEADER_START, HEADER_SKIP);
    b.on(HEADER_START, COLON, FAILED);
    b.on(HEADER_START, LF, HEAD_END);
    let carriage = b.state(FAILED);
    b.on(carriage, LF, HEAD_END);
    b.on(HEADER_START, CR, carriage);

    b.word(HEADER_START, b"content-length:", HEADER_SKIP, LENGTH_RESET);
    b.blanks(LENGTH_RESET, LENGTH_RESET);
    b.digits(LENGTH_RESET, LENGTH_DIGIT);
    b.digits(LENGTH_DIGIT, LENGTH_DIGIT);
    let after_length = b.state(FAILED);
    b.blanks(after_length, after_length);
    b.on(after_length, CR, after_length);
    b.on(after_length, LF, HEADER_START);
    b.blanks(LENGTH_DIGIT, after_length);
    b.on(LENGTH_DIGIT, CR, after_length);
    b.on(LENGTH_DIGIT, LF, HEADER_START);

    let coding = b.state(FAILED);
    let other_coding = b.line_state(FAILED);
    b.line(other_coding, other_coding);
    b.on(other_coding, COMMA, coding);
    b.copy(other_coding, coding);
    b.blanks(coding, coding);
    b.word(HEADER_START, b"transfer-encoding:", HEADER_SKIP, coding);
    b.word(coding, b"chunked", other_coding, CHUNKED_SET);
    b.line(CHUNKED_SET, CHUNKED_CLEAR);
    b.blanks(CHUNKED_SET, other_coding);
    b.on(CHUNKED_SET, CR, other_coding);
    b.on(CHUNKED_SET, SEMICOLON, other_coding);
    b.on(CHUNKED_SET, COMMA, coding);
    b.copy(other_coding, CHUNKED_CLEAR);

    let media = b.line_state(HEADER_SKIP);
    b.blanks(media, media);
    b.word(HEADER_START, b"content-type:", HEADER_SKIP, media);
    b.word(media, b"text/event-stream", HEADER_SKIP, SSE_SET);
    b.word(media, b"application/x-ndjson", HEADER_SKIP, NDJSON_SET);
    b.word(media, b"application/ndjson", HEADER_SKIP, NDJSON_SET);
    b.word(media, b"application/jsonl", HEADER_SKIP, NDJSON_SET);
    b.line(SSE_SET, TYPE_CLEAR);
    b.blanks(SSE_SET, HEADER_SKIP);
    b.on(SSE_SET, CR, HEADER_SKIP);
    b.on(SSE_SET, SEMICOLON, HEADER_SKIP);
    b.on(SSE_SET, COMMA, HEADER_SKIP);
    b.copy(SSE_SET, NDJSON_SET);
    b.copy(HEADER_SKIP, TYPE_CLEAR);

    let encoding = b.line_state(ENCODED_SET);
    b.blanks(encoding, encoding);
    b.on(encoding, CR, encoding);
    b.word(HEADER_START, b"content-encoding:", HEADER_SKIP, encoding);
    let encoded = b.line_state(ENCODED_SET);
    let identity = b.line_state(ENCODED_SET);
    b.blanks(identity, HEADER_SKIP);
    b.on(identity, CR, HEADER_SKIP);
    b.word(encoding, b"identity", encoded, identity);
    b.copy(HEADER_SKIP, ENCODED_SET);
}

const fn chunks(b: &mut Builder) {
    let mut hex = b'a';
    while hex <= b'f' {
        b.on_char(SIZE_START, hex, SIZE_DIGIT);
        b.on_char(SIZE_DIGIT, hex, SIZE_DIGIT);
        hex += 1;
    }
    b.digits(SIZE_START, SIZE_DIGIT);
    b.digits(SIZE_DIGIT, SIZE_DIGIT);
    let extension = b.state(FAILED);
    b.all(extension, extension);
    b.on(extension, LF, SIZE_END);
    b.blanks(SIZE_DIGIT, extension);
    b.on(SIZE_DIGIT, SEMICOLON, extension);
    b.on(SIZE_DIGIT, LF, SIZE_END);
    let size_carriage = b.state(FAILED);
    b.on(size_carriage, LF, SIZE_END);
    b.on(SIZE_DIGIT, CR, size_carriage);

    let data_carriage = b.state(FAILED);
    b.on(data_carriage, LF, SIZE_START);
    b.on(AFTER_CHUNK, CR, data_carriage);
    b.on(AFTER_CHUNK, LF, SIZE_START);

    let trailer = b.state(FAILED);
    b.all(trailer, trailer);
    b.on(trailer, LF, TRAILER_START);
    b.all(TRAILER_START, trailer);
    b.on(TRAILER_START, LF, MESSAGE_END);
    let end_carriage = b.state(FAILED);
    b.on(end_carriage, LF, MESSAGE_END);
    b.on(TRAILER_START, CR, end_carriage);
}

const fn lines(b: &mut Builder) {
    let skip = b.state(FAILED);
    let line = b.state(skip);
    b.all(skip, skip);
    b.on(skip, CR, line);
    b.on(skip, LF, line);
    b.on(line, CR, line);
    b.on(line, LF, line);
    // Lower case only: to SSE, `Data` is a field of another name.
    let mut from = line;
    let mut i = 0;
    let field = b"data";
    while i < field.len() {
        let next = b.state(skip);
        b.on(next, CR, line);
        b.on(next, LF, line);
        b.on(from, class_of(field[i]), next);
        from = next;
        i += 1;
    }
    b.on(from, COLON, EVENT);
    // A line `data` without a colon is a field with an empty value.
    b.on(from, CR, EVENT);
    b.on(from, LF, EVENT);

    b.copy(line, SSE_START);
    let mark_1 = b.state(skip);
    let mark_2 = b.state(skip);
    b.on(SSE_START, BOM_1, mark_1);
    b.on(mark_1, BOM_2, mark_2);
    b.on(mark_2, BOM_3, line);

    b.all(NO_LINES, NO_LINES);
    b.all(EVENT, NO_LINES);
    b.all(NDJSON_START, EVENT);
    b.blanks(NDJSON_START, NDJSON_START);
    b.on(NDJSON_START, CR, NDJSON_START);
    b.on(NDJSON_START, LF, NDJSON_START);
    b.all(NEXT_EVENT, EVENT);
    b.on(NEXT_EVENT, CR, NEXT_EVENT);
    b.on(NEXT_EVENT, LF, NEXT_EVENT);
    b.on(NEXT_EVENT, COLON, NO_LINES);
}
