//! Bytes from the kernel become typed records here and nowhere else.
//!
//! Head bytes are read in [`request`] and dropped there: only fields of the allow-list go on.

pub mod record;
pub mod request;
pub mod route;
