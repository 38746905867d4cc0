//! Whose it is: processes, workloads, devices, and which processes are targets.

pub mod cgroup;
pub mod device;
pub mod engine;
pub mod measured;
pub mod node;
pub mod process;
pub mod scan;
pub mod targets;
pub mod workload;
