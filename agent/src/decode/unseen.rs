//! What belongs to a request that is counted, and can't be seen.

use serde::Serialize;
use tailcomb_common::socket::{ENCODED, NDJSON, SSE, UPGRADED};

/// What of a request, or behind it, was not seen though it was there: a reason of `tailcomb_undecoded_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Unseen {
    /// The rest of the connection: after a status 101 or a successful CONNECT it is no HTTP.
    Upgraded,
    /// The events of a stream: it is compressed, so it has no time to first token.
    Encoded,
}

impl Unseen {
    /// Label `reason` of `tailcomb_undecoded_total`.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Upgraded => "upgraded",
            Self::Encoded => "encoded",
        }
    }

    /// By the flags of a request's record.
    pub(super) const fn of(flags: u32) -> Option<Self> {
        if flags & UPGRADED != 0 {
            Some(Self::Upgraded)
        } else if flags & ENCODED != 0 && flags & (SSE | NDJSON) != 0 {
            Some(Self::Encoded)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use tailcomb_common::socket::ABORTED;

    use super::*;

    #[test]
    fn what_is_not_seen_has_its_reason() {
        for (flags, reason) in [
            (0, None),
            (SSE, None),
            (ENCODED, None),
            (SSE | ENCODED, Some("encoded")),
            (NDJSON | ENCODED | ABORTED, Some("encoded")),
            (UPGRADED, Some("upgraded")),
        ] {
            assert_eq!(Unseen::of(flags).map(Unseen::reason), reason, "{flags:#b}");
        }
    }
}
