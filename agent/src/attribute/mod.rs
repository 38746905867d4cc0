//! Whose it is: processes, workloads, devices, and which processes are targets.

pub mod device;
pub mod targets;
pub mod workload;
