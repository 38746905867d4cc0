//! What became of a program and of a probe, in words a user can act on.

use serde::Serialize;

/// What became of one program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum Verdict {
    /// Attached.
    Ok,
    /// This kernel or these privileges don't have what it needs.
    Unsupported {
        /// What is missing.
        reason: String,
        /// What the reader can do.
        remedy: String,
    },
    /// It should have worked.
    Broken {
        /// What failed.
        reason: String,
        /// What the reader can do.
        remedy: String,
    },
    /// Not needed here: another program does its work.
    NotApplicable {
        /// Which one.
        reason: String,
    },
}

impl Verdict {
    /// Attached?
    #[must_use]
    pub const fn is_ok(&self) -> bool {
        matches!(self, Self::Ok)
    }

    /// Does it stand in the way of its probe?
    #[must_use]
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Unsupported { .. } | Self::Broken { .. })
    }

    /// The word of the table: `ok`, `unsupported`, `broken`, `not applicable`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unsupported { .. } => "unsupported",
            Self::Broken { .. } => "broken",
            Self::NotApplicable { .. } => "not applicable",
        }
    }
}

/// One program with its verdict.
#[derive(Clone, Debug, Serialize)]
pub struct ProgramVerdict {
    /// Name of the program, as the kernel shows it.
    pub program: &'static str,
    /// What it hooks.
    pub hooks: Vec<String>,
    /// The probe does not stand without it.
    pub core: bool,
    /// What became of it.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// One probe with its programs' verdicts.
#[derive(Clone, Debug, Serialize)]
pub struct ProbeVerdict {
    /// The probe's stem.
    pub probe: &'static str,
    /// `check --strict` fails without it.
    pub required: bool,
    /// All of its core programs are attached.
    pub attached: bool,
    /// Its programs, in the table's order.
    pub programs: Vec<ProgramVerdict>,
}

impl ProbeVerdict {
    /// The reason and remedy of the first core program that is missing.
    #[must_use]
    pub fn missing(&self) -> Option<(&str, &str)> {
        self.programs.iter().filter(|program| program.core).find_map(|program| match &program.verdict {
            Verdict::Unsupported { reason, remedy } | Verdict::Broken { reason, remedy } => {
                Some((reason.as_str(), remedy.as_str()))
            }
            Verdict::Ok | Verdict::NotApplicable { .. } => None,
        })
    }
}
