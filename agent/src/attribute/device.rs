//! Block devices by number: name and layer, from sysfs.

use serde::Serialize;

/// Does a device stand on another?
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// No: a disk. Sums over leaves count each byte once.
    Leaf,
    /// Yes: loop, device-mapper, md.
    Stacked,
}

/// A whole disk, as sysfs names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Device {
    /// `vda`, `nvme0n1`, `loop0`, …
    pub name: String,
    /// Leaf or stacked.
    pub layer: Layer,
}
