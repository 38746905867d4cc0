//! Routes: the allow-list that turns a path into a label.

use serde::Serialize;

/// One label value of `http_route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Route(pub &'static str);

/// What no entry of the list matches.
pub const OTHER: Route = Route("other");
