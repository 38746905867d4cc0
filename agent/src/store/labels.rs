//! Label sets, typed, with the names and the order that the catalogue gives them.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use super::series::Fold;
use crate::{
    attribute::workload::Workload,
    decode::{
        request::{Mode, Outcome},
        route::{self, Route},
    },
};

/// Label names and values of one series.
pub type Pairs<'a> = Vec<(&'static str, Cow<'a, str>)>;

/// The value beyond the series budget.
pub const OTHER: &str = "other";
/// The value of what is not known.
pub const UNKNOWN: &str = "unknown";

/// A typed label set.
pub trait Labels {
    /// Its labels, in the catalogue's order.
    #[must_use]
    fn pairs(&self) -> Pairs<'_>;
}

/// Appends W.
fn push_workload<'a>(pairs: &mut Pairs<'a>, workload: &'a Workload) {
    pairs.push(("namespace", Cow::from(workload.namespace.as_str())));
    pairs.push(("pod", Cow::from(workload.pod.as_str())));
    pairs.push(("container", Cow::from(workload.container.as_str())));
    pairs.push(("workload", Cow::from(workload.workload.as_str())));
}

/// The workload beyond the budget.
fn other_workload() -> Arc<Workload> {
    Arc::new(Workload { workload: OTHER.to_owned(), ..Workload::default() })
}

/// The value of label `tailcomb_mode`.
#[must_use]
pub const fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Unary => "unary",
        Mode::Stream => "stream",
    }
}

/// The value of label `tailcomb_outcome`.
#[must_use]
pub const fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Complete => "complete",
        Outcome::Aborted => "aborted",
    }
}

/// Each workload once, so that label sets share it.
#[derive(Default)]
pub(super) struct Workloads(HashSet<Arc<Workload>>);

impl Workloads {
    /// The shared one that equals `workload`.
    pub(super) fn share(&mut self, workload: &Workload) -> Arc<Workload> {
        if let Some(known) = self.0.get(workload) {
            return Arc::clone(known);
        }
        let new = Arc::new(workload.clone());
        self.0.insert(Arc::clone(&new));
        new
    }

    /// Forgets those that no label set holds any more.
    pub(super) fn sweep(&mut self) {
        self.0.retain(|workload| Arc::strong_count(workload) > 1);
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Label `http_response_status_code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// No head was written: the label is empty.
    None,
    /// The code.
    Code(u16),
    /// No status code of HTTP (RFC 9110 §15 ends at 599), or beyond the budget.
    Other,
}

impl Status {
    /// Of an answer; `None` where no head was written.
    #[must_use]
    pub const fn of(status: Option<u16>) -> Self {
        match status {
            None => Self::None,
            Some(code @ 100..=599) => Self::Code(code),
            Some(_) => Self::Other,
        }
    }
}

/// Labels of `http_server_request_duration_seconds`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HttpLabels {
    /// `http_request_method`.
    pub method: &'static str,
    /// `http_response_status_code`.
    pub status: Status,
    /// `http_route`.
    pub route: Route,
    /// `error_type`; empty without an error.
    pub error_type: String,
    /// `tailcomb_mode`.
    pub mode: Mode,
    /// `tailcomb_outcome`.
    pub outcome: Outcome,
    /// W.
    pub workload: Arc<Workload>,
}

impl Labels for HttpLabels {
    fn pairs(&self) -> Pairs<'_> {
        let status = match self.status {
            Status::None => Cow::from(""),
            Status::Code(code) => Cow::from(code.to_string()),
            Status::Other => Cow::from(OTHER),
        };
        let mut pairs = vec![
            ("http_request_method", Cow::from(self.method)),
            ("http_response_status_code", status),
            ("http_route", Cow::from(self.route.name())),
            ("url_scheme", Cow::from("http")),
            ("error_type", Cow::from(self.error_type.as_str())),
            ("tailcomb_mode", Cow::from(mode_name(self.mode))),
            ("tailcomb_outcome", Cow::from(outcome_name(self.outcome))),
        ];
        push_workload(&mut pairs, &self.workload);
        pairs
    }
}

impl Fold for HttpLabels {
    fn fold(&self) -> Self {
        Self {
            method: "_OTHER",
            status: Status::Other,
            route: route::OTHER,
            error_type: if self.error_type.is_empty() { String::new() } else { OTHER.to_owned() },
            mode: self.mode,
            outcome: self.outcome,
            workload: other_workload(),
        }
    }
}

/// Labels of the `gen_ai_server_*` families.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GenAiLabels {
    /// `gen_ai_operation_name`.
    pub operation: &'static str,
    /// `gen_ai_provider_name`.
    pub provider: &'static str,
    /// `http_route`.
    pub route: Route,
    /// `error_type`; empty without an error.
    pub error_type: String,
    /// W.
    pub workload: Arc<Workload>,
}

impl Labels for GenAiLabels {
    fn pairs(&self) -> Pairs<'_> {
        let mut pairs = vec![
            ("gen_ai_operation_name", Cow::from(self.operation)),
            ("gen_ai_provider_name", Cow::from(self.provider)),
            // The model stands in the request's body, which is not read yet.
            ("gen_ai_request_model", Cow::from(UNKNOWN)),
            ("http_route", Cow::from(self.route.name())),
            ("error_type", Cow::from(self.error_type.as_str())),
        ];
        push_workload(&mut pairs, &self.workload);
        pairs
    }
}

impl Fold for GenAiLabels {
    fn fold(&self) -> Self {
        Self {
            operation: OTHER,
            provider: OTHER,
            route: route::OTHER,
            error_type: if self.error_type.is_empty() { String::new() } else { OTHER.to_owned() },
            workload: other_workload(),
        }
    }
}

/// Labels `http_route, tailcomb_mode` + W.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteLabels {
    /// `http_route`.
    pub route: Route,
    /// `tailcomb_mode`.
    pub mode: Mode,
    /// W.
    pub workload: Arc<Workload>,
}

impl Labels for RouteLabels {
    fn pairs(&self) -> Pairs<'_> {
        let mut pairs = vec![("http_route", Cow::from(self.route.name())), ("tailcomb_mode", Cow::from(mode_name(self.mode)))];
        push_workload(&mut pairs, &self.workload);
        pairs
    }
}

impl Fold for RouteLabels {
    fn fold(&self) -> Self {
        Self { route: route::OTHER, mode: self.mode, workload: other_workload() }
    }
}

/// Labels of `tailcomb_undecoded_total`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UndecodedLabels {
    /// `reason`.
    pub reason: &'static str,
    /// W.
    pub workload: Arc<Workload>,
}

impl Labels for UndecodedLabels {
    fn pairs(&self) -> Pairs<'_> {
        let mut pairs = vec![("reason", Cow::from(self.reason))];
        push_workload(&mut pairs, &self.workload);
        pairs
    }
}

impl Fold for UndecodedLabels {
    fn fold(&self) -> Self {
        Self { reason: self.reason, workload: other_workload() }
    }
}

/// Labels W alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WorkloadLabels(pub Arc<Workload>);

impl Labels for WorkloadLabels {
    fn pairs(&self) -> Pairs<'_> {
        let mut pairs = Vec::new();
        push_workload(&mut pairs, &self.0);
        pairs
    }
}

impl Fold for WorkloadLabels {
    fn fold(&self) -> Self {
        Self(other_workload())
    }
}
