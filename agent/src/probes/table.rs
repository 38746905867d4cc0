//! The one table of probes: every program, what it hooks, what it needs of the kernel.
//!
//! A need names a global of the eBPF object and says where this kernel's value for it comes from. A program whose needs are
//! not met is not loaded, and its verdict says which.

/// Where the value of a global comes from.
#[derive(Clone, Copy, Debug)]
pub enum Source {
    /// Offset of a field, `struct.field.field`; the first of these that exists.
    Field(&'static [&'static str]),
    /// Value of an enumerator: `(enum, enumerator)`; the first that exists.
    Enumerator(&'static [(&'static str, &'static str)]),
    /// Position of the argument of a tracepoint that points to `struct type_name`.
    Argument {
        /// The tracepoint.
        tracepoint: &'static str,
        /// The struct.
        type_name: &'static str,
    },
    /// Offset of a field in a classic tracepoint's record, from tracefs.
    Format {
        /// Category of the tracepoint.
        category: &'static str,
        /// Its name.
        name: &'static str,
        /// The field.
        field: &'static str,
    },
    /// 1 where the tracepoint exists, else 0.
    HasTracepoint(&'static str),
}

/// One global of the eBPF object.
#[derive(Clone, Copy, Debug)]
pub struct Need {
    /// The global's symbol, a `Global<u32>`.
    pub global: &'static str,
    /// Where its value comes from.
    pub source: Source,
    /// May be missing: the global is then [`ABSENT`] and the program copes.
    pub optional: bool,
}

/// Value of an optional global that this kernel does not have.
pub const ABSENT: u32 = u32::MAX;

/// What a program hooks.
#[derive(Clone, Copy, Debug)]
pub enum Attach {
    /// A tracepoint with typed arguments (`tp_btf`).
    Btf(&'static str),
    /// A raw tracepoint.
    Raw(&'static str),
    /// A raw tracepoint that older kernels lack, where other programs of the table do its work: missing, it is not applicable.
    NewerRaw(&'static str),
    /// Classic tracepoints, `(category, name)`: one body on all of them.
    Classic(&'static [(&'static str, &'static str)]),
}

/// One eBPF program.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name in the object.
    pub name: &'static str,
    /// What it hooks.
    pub attach: Attach,
    /// What it needs.
    pub needs: &'static [Need],
    /// Of which at least one must exist, besides: names of optional globals.
    pub one_of: &'static [&'static str],
    /// Not needed where this tracepoint exists: another program uses it.
    pub unless: Option<&'static str>,
    /// The probe does not stand without it.
    pub core: bool,
}

/// One probe.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// Its stem: the name it has in every room.
    pub name: &'static str,
    /// `check --strict` and readiness want it.
    pub required: bool,
    /// What it shows, in one line.
    pub shows: &'static str,
    /// Its programs, in the order in which they are attached.
    pub programs: &'static [Program],
}

/// All probes, the required ones first.
pub const PROBES: &[Probe] = &[super::block::PROBE, super::socket::PROBE];

/// A field that must be there.
pub(crate) const fn field(global: &'static str, paths: &'static [&'static str]) -> Need {
    Need { global, source: Source::Field(paths), optional: false }
}

/// A field that may be missing.
pub(crate) const fn optional_field(global: &'static str, paths: &'static [&'static str]) -> Need {
    Need { global, source: Source::Field(paths), optional: true }
}

/// A field in the record of a classic tracepoint.
pub(crate) const fn format(global: &'static str, category: &'static str, name: &'static str, field: &'static str) -> Need {
    Need { global, source: Source::Format { category, name, field }, optional: false }
}

/// The position of a tracepoint's argument.
pub(crate) const fn argument(global: &'static str, tracepoint: &'static str, type_name: &'static str) -> Need {
    Need { global, source: Source::Argument { tracepoint, type_name }, optional: false }
}
