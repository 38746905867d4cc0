//! The labels W of the contract: `namespace, pod, container, workload`.

use serde::Serialize;

/// Who answered a request or owns an I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Workload {
    /// Kubernetes namespace; empty outside.
    pub namespace: String,
    /// Pod; empty outside Kubernetes.
    pub pod: String,
    /// Container; empty outside Kubernetes.
    pub container: String,
    /// `namespace/pod/container`, else the systemd unit, else the process name.
    pub workload: String,
}
