//! The one cast: bytes of a ring-buffer record → a typed record.
