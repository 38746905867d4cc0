//! Layouts from this kernel's BTF: field offsets, enum values, positions of tracepoint arguments.
//!
//! `btf-rs` parses; the walk along a path like `tcp_sock.rcv_nxt` through anonymous members and embedded structs is ours.
//! Source of the format: the kernel's Documentation/bpf/btf.rst.

use std::path::Path;

use btf_rs::{Backend, Btf, BtfType, Type};

/// Where the kernel shows its own BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Type information of one kernel.
pub struct Layout {
    btf: Btf,
}

/// Why a layout can't be had.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file is missing or is no BTF.
    #[error("no type information in {path}: {why}; tailcomb needs a kernel built with CONFIG_DEBUG_INFO_BTF=y")]
    Unreadable {
        /// The file asked for.
        path: String,
        /// What failed.
        why: String,
    },
}

impl Layout {
    /// Reads the running kernel's BTF.
    ///
    /// # Errors
    /// [`LayoutError::Unreadable`] where `/sys/kernel/btf/vmlinux` is missing or broken.
    pub fn of_running_kernel() -> Result<Self, LayoutError> {
        Self::from_file(Path::new(VMLINUX))
    }

    /// Reads BTF from a file.
    ///
    /// # Errors
    /// [`LayoutError::Unreadable`].
    pub fn from_file(path: &Path) -> Result<Self, LayoutError> {
        let unreadable = |why: String| LayoutError::Unreadable { path: path.display().to_string(), why };
        // Mapped, it takes no memory of ours; newer kernels allow that.
        let btf = Btf::from_file_with_backend(path, Backend::Mmap)
            .or_else(|_| Btf::from_file(path))
            .map_err(|error| unreadable(error.to_string()))?;
        Ok(Self { btf })
    }

    /// Offset in bytes of the field that `path` names: `"struct.field.field…"`. Anonymous members are looked through; a
    /// field that is a struct or union may be stepped into, one behind a pointer may not.
    #[must_use]
    pub fn offset(&self, path: &str) -> Option<u32> {
        let (container, fields) = path.split_once('.')?;
        let types = self.btf.resolve_types_by_name(container).ok()?;
        types.into_iter().find_map(|candidate| {
            let mut current = candidate;
            let mut bits = 0;
            for field in fields.split('.') {
                let (offset, member_type) = self.member(&current, field)?;
                bits += offset;
                current = member_type;
            }
            (bits % 8 == 0).then_some(bits / 8)
        })
    }

    /// Size in bytes of a struct or union.
    #[must_use]
    pub fn size(&self, name: &str) -> Option<u32> {
        self.btf.resolve_types_by_name(name).ok()?.into_iter().find_map(|candidate| match candidate {
            Type::Struct(of) | Type::Union(of) => u32::try_from(of.size()).ok(),
            _ => None,
        })
    }

    /// Value of one enumerator of the enum called `name`.
    #[must_use]
    pub fn enumerator(&self, name: &str, enumerator: &str) -> Option<u32> {
        self.btf.resolve_types_by_name(name).ok()?.into_iter().find_map(|candidate| match candidate {
            Type::Enum(of) => of.members.iter().find(|member| self.is_called(*member, enumerator)).map(btf_rs::EnumMember::val),
            Type::Enum64(of) => of
                .members
                .iter()
                .find(|member| self.is_called(*member, enumerator))
                .and_then(|member| u32::try_from(member.val()).ok()),
            _ => None,
        })
    }

    /// Is there a tracepoint of that name?
    #[must_use]
    pub fn has_tracepoint(&self, tracepoint: &str) -> bool {
        self.tracepoint_arguments(tracepoint).is_some()
    }

    /// Position (from 0) of the tracepoint's first argument that points to `struct type_name`.
    #[must_use]
    pub fn argument(&self, tracepoint: &str, type_name: &str) -> Option<u32> {
        let position = self.tracepoint_arguments(tracepoint)?.iter().position(|argument| argument == type_name)?;
        u32::try_from(position).ok()
    }

    /// The struct names that a tracepoint's arguments point to (`""` for what is no pointer to a named struct), in order.
    #[must_use]
    pub fn tracepoint_arguments(&self, tracepoint: &str) -> Option<Vec<String>> {
        let types = self.btf.resolve_types_by_name(&format!("btf_trace_{tracepoint}")).ok()?;
        let typedef = types.into_iter().find_map(|candidate| match candidate {
            Type::Typedef(typedef) => Some(typedef),
            _ => None,
        })?;
        let Type::Ptr(pointer) = self.btf.resolve_chained_type(&typedef).ok()? else { return None };
        let Type::FuncProto(proto) = self.btf.resolve_chained_type(&pointer).ok()? else { return None };
        // The first parameter is the tracepoint's own `void *__data`.
        Some(proto.parameters.iter().skip(1).map(|parameter| self.pointee(parameter).unwrap_or_default()).collect())
    }

    /// Name of the struct that a parameter points to.
    fn pointee(&self, parameter: &dyn BtfType) -> Option<String> {
        let Type::Ptr(pointer) = self.plain(self.btf.resolve_chained_type(parameter).ok()?)? else { return None };
        match self.plain(self.btf.resolve_chained_type(&pointer).ok()?)? {
            Type::Struct(of) | Type::Union(of) => self.btf.resolve_name(&of).ok(),
            Type::Fwd(of) => self.btf.resolve_name(&of).ok(),
            _ => None,
        }
    }

    /// Strips qualifiers, tags and typedefs.
    fn plain(&self, mut of: Type) -> Option<Type> {
        loop {
            of = match &of {
                Type::Typedef(inner) => self.btf.resolve_chained_type(inner).ok()?,
                Type::Volatile(inner) | Type::Const(inner) | Type::Restrict(inner) => {
                    self.btf.resolve_chained_type(inner).ok()?
                }
                Type::TypeTag(inner) => self.btf.resolve_chained_type(inner).ok()?,
                _ => return Some(of),
            };
        }
    }

    /// Offset in bits and type of a member, looked for through anonymous members too.
    fn member(&self, container: &Type, name: &str) -> Option<(u32, Type)> {
        let (Type::Struct(of) | Type::Union(of)) = container else { return None };
        for member in &of.members {
            let member_name = self.btf.resolve_name(member).unwrap_or_default();
            if member_name == name {
                let member_type = self.plain(self.btf.resolve_chained_type(member).ok()?)?;
                return Some((member.bit_offset(), member_type));
            }
            if member_name.is_empty() {
                let anonymous = self.plain(self.btf.resolve_chained_type(member).ok()?)?;
                if let Some((offset, member_type)) = self.member(&anonymous, name) {
                    return Some((member.bit_offset() + offset, member_type));
                }
            }
        }
        None
    }

    fn is_called(&self, of: &dyn BtfType, name: &str) -> bool {
        self.btf.resolve_name(of).is_ok_and(|found| found == name)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// BTF of a C file that stands beside it.
    fn fixture(name: &str) -> Layout {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/btf").join(name);
        Layout::from_file(&path).expect("a fixture of the repository")
    }

    #[test]
    fn d08_the_request_is_found_among_one_argument_and_among_two() {
        // The queue went from the arguments in 5.11, and in 5.10.137 too: no version number tells.
        for (name, position, arguments) in
            [("one_argument.btf", 0, vec!["request"]), ("two_arguments.btf", 1, vec!["request_queue", "request"])]
        {
            let layout = fixture(name);
            assert_eq!(layout.tracepoint_arguments("block_rq_issue").expect("it is there"), arguments);
            assert_eq!(layout.argument("block_rq_issue", "request"), Some(position), "{name}");
            assert_eq!(layout.argument("block_rq_issue", "bio"), None, "{name}");
            assert!(!layout.has_tracepoint("block_io_start"), "{name}");
        }
    }

    #[test]
    fn fields_are_found_by_name_and_missing_ones_are_missing() {
        let layout = fixture("two_arguments.btf");
        assert_eq!(layout.offset("request.cmd_flags"), Some(8));
        assert_eq!(layout.offset("request.rq_disk"), None);
        assert_eq!(layout.offset("request.q.id"), None, "a pointer is not stepped through");
        assert_eq!(layout.size("request"), Some(16));
    }

    #[test]
    fn what_is_no_btf_is_refused_with_the_remedy() {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let Err(error) = Layout::from_file(&path) else { panic!("a text file was taken for BTF") };
        assert!(error.to_string().contains("CONFIG_DEBUG_INFO_BTF=y"), "{error}");
    }
}
