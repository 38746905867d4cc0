//! The `socket` probe, user side: its row in the table, the ring buffer's reader, the maps that say who is measured.

use std::collections::BTreeSet;

use aya::{
    Ebpf,
    maps::{HashMap, MapData, MapError, RingBuf},
};

use super::table::{Attach, Need, Probe, Program, field, format};

/// Global: 1 measures every process.
pub const ALL: &str = "SOCKET_ALL";
/// Map: the ring buffer; its size in bytes is a power of two of at least 4096.
pub const RECORDS: &str = "RECORDS";
/// Map: the connections.
pub const CONNECTIONS: &str = "CONNECTIONS";
const TGIDS: &str = "TGIDS";
const PORTS: &str = "PORTS";

/// Value in the map `PORTS`: who listens there becomes a target.
const CLAIMS: u32 = 1;
/// Value in the map `TGIDS`: of that process only what is in `PORTS` is measured.
const PORTS_ONLY: u32 = 1;

/// The socket of a call.
const SOCK: &[Need] = &[
    field("SKC_FAMILY", &["sock.__sk_common.skc_family"]),
    field("SKC_NUM", &["sock.__sk_common.skc_num"]),
    field("SK_PROTOCOL", &["sock.sk_protocol"]),
    field("TCP_RCV_NXT", &["tcp_sock.rcv_nxt"]),
    field("TCP_COPIED_SEQ", &["tcp_sock.copied_seq"]),
    field("TCP_WRITE_SEQ", &["tcp_sock.write_seq"]),
    field("SKC_STATE", &["sock.__sk_common.skc_state"]),
];
/// The registers with which a thread entered the kernel.
const REGISTERS: &[Need] = &[
    SOCK[0],
    SOCK[1],
    SOCK[2],
    SOCK[3],
    SOCK[4],
    SOCK[5],
    SOCK[6],
    field("REGS_NUMBER", &["pt_regs.orig_ax"]),
    field("REGS_RESULT", &["pt_regs.ax"]),
    field("REGS_SECOND", &["pt_regs.si"]),
    field("REGS_THIRD", &["pt_regs.dx"]),
    field("REGS_SEGMENT", &["pt_regs.cs"]),
];
const SEGMENT: &[Need] = &[field("SKB_LEN", &["sk_buff.len"]), field("SKB_DATA", &["sk_buff.data"])];
const TASK: &[Need] = &[
    field("TASK_TGID", &["task_struct.tgid"]),
    field("TASK_SIGNAL", &["task_struct.signal"]),
    field("SIGNAL_LIVE", &["signal_struct.live.counter"]),
];
/// A call at its entry, and the way from its file descriptor to the socket. All calls have one layout; read's stands for it.
const ENTER: &[Need] = &[
    format("SYS_ENTER_NUMBER", "syscalls", "sys_enter_read", "__syscall_nr"),
    format("SYS_ENTER_FIRST", "syscalls", "sys_enter_read", "fd"),
    format("SYS_ENTER_SECOND", "syscalls", "sys_enter_read", "buf"),
    format("SYS_ENTER_THIRD", "syscalls", "sys_enter_read", "count"),
    format("SYS_ENTER_FOURTH", "syscalls", "sys_enter_recvfrom", "flags"),
    format("SYS_EXIT_RESULT", "syscalls", "sys_exit_read", "ret"),
    field("TASK_FILES", &["task_struct.files"]),
    field("FILES_FDT", &["files_struct.fdt"]),
    field("FDT_MAX_FDS", &["fdtable.max_fds"]),
    field("FDT_FD", &["fdtable.fd"]),
    field("FILE_PRIVATE_DATA", &["file.private_data"]),
    field("SOCKET_FILE", &["socket.file"]),
    field("SOCKET_SK", &["socket.sk"]),
];

const RECEIVED: &str = "sock_recv_length";
const SENT: &str = "sock_send_length";
const READY: &str = "sk_data_ready";

const fn program(name: &'static str, attach: Attach, needs: &'static [Need], unless: Option<&'static str>) -> Program {
    Program { name, attach, needs, one_of: &[], unless, core: true }
}

/// The probe's row in the table.
pub(crate) const PROBE: Probe = Probe {
    name: "socket",
    required: true,
    shows: "HTTP/1.1 requests: duration, time to first token, waits",
    programs: &[
        program("tcp_destroy_sock", Attach::Raw("tcp_destroy_sock"), SOCK, None),
        program("inet_sock_set_state", Attach::Raw("inet_sock_set_state"), SOCK, None),
        program("sched_process_fork", Attach::Raw("sched_process_fork"), TASK, None),
        program("sched_process_exit", Attach::Raw("sched_process_exit"), TASK, None),
        program("sk_data_ready", Attach::NewerRaw(READY), SOCK, None),
        program("tcp_probe", Attach::Raw("tcp_probe"), SEGMENT, Some(READY)),
        program("sock_recv_length", Attach::NewerRaw(RECEIVED), REGISTERS, None),
        program("sock_send_length", Attach::NewerRaw(SENT), REGISTERS, None),
        program(
            "socket_exit",
            Attach::Classic(&[
                ("syscalls", "sys_exit_read"),
                ("syscalls", "sys_exit_readv"),
                ("syscalls", "sys_exit_recvfrom"),
                ("syscalls", "sys_exit_recvmsg"),
                ("syscalls", "sys_exit_write"),
                ("syscalls", "sys_exit_writev"),
                ("syscalls", "sys_exit_sendto"),
                ("syscalls", "sys_exit_sendmsg"),
                ("syscalls", "sys_exit_sendfile64"),
                ("syscalls", "sys_exit_splice"),
            ]),
            SOCK,
            Some(RECEIVED),
        ),
        program(
            "socket_enter",
            Attach::Classic(&[
                ("syscalls", "sys_enter_read"),
                ("syscalls", "sys_enter_readv"),
                ("syscalls", "sys_enter_recvmsg"),
                ("syscalls", "sys_enter_write"),
                ("syscalls", "sys_enter_writev"),
                ("syscalls", "sys_enter_sendto"),
                ("syscalls", "sys_enter_sendmsg"),
                ("syscalls", "sys_enter_sendfile64"),
            ]),
            ENTER,
            Some(RECEIVED),
        ),
        program("socket_enter_splice", Attach::Classic(&[("syscalls", "sys_enter_splice")]), ENTER, Some(RECEIVED)),
        program("socket_enter_recvfrom", Attach::Classic(&[("syscalls", "sys_enter_recvfrom")]), ENTER, Some(RECEIVED)),
    ],
};

/// What went wrong with the probe's maps.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The object and the agent are not of one build.
    #[error("the eBPF object has no map {0}: build the agent and the object from one checkout")]
    NoMap(&'static str),
    /// The kernel refused.
    #[error("map {map}: {source}")]
    Map {
        /// The map.
        map: &'static str,
        /// The kernel's answer.
        #[source]
        source: MapError,
    },
}

/// What one [`SocketProbe::drain`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// Records handed over.
    pub records: usize,
    /// The budget was used up: there may be more.
    pub more: bool,
}

/// The probe's maps.
pub struct SocketProbe {
    records: RingBuf<MapData>,
    targets: TargetMaps,
}

impl SocketProbe {
    /// Takes the probe's maps out of the loaded object.
    ///
    /// # Errors
    /// [`SocketError`] when the object does not have them.
    pub fn new(ebpf: &mut Ebpf) -> Result<Self, SocketError> {
        let map = ebpf.take_map(RECORDS).ok_or(SocketError::NoMap(RECORDS))?;
        let records = RingBuf::try_from(map).map_err(|source| SocketError::Map { map: RECORDS, source })?;
        let targets = TargetMaps { processes: hash(ebpf, TGIDS)?, ports: hash(ebpf, PORTS)? };
        Ok(Self { records, targets })
    }

    /// Hands over at most `budget` records, oldest first. The kernel wakes nobody: call it every 20 to 50 ms, and again at
    /// once, after yielding, while it says `more`.
    pub fn drain(&mut self, budget: usize, mut on_record: impl FnMut(&[u8])) -> Drained {
        let mut drained = Drained::default();
        while drained.records < budget {
            let Some(record) = self.records.next() else { return drained };
            on_record(&record);
            drained.records += 1;
        }
        drained.more = true;
        drained
    }

    /// Who is measured.
    pub fn targets(&mut self) -> &mut TargetMaps {
        &mut self.targets
    }
}

fn hash(ebpf: &mut Ebpf, name: &'static str) -> Result<HashMap<MapData, u32, u32>, SocketError> {
    let map = ebpf.take_map(name).ok_or(SocketError::NoMap(name))?;
    HashMap::try_from(map).map_err(|source| SocketError::Map { map: name, source })
}

/// The processes and ports that are measured. The kernel adds to both by itself: child processes of targets, processes that
/// listen on claimed ports, and ports on which targets begin to listen; and it removes processes that end.
pub struct TargetMaps {
    processes: HashMap<MapData, u32, u32>,
    ports: HashMap<MapData, u32, u32>,
}

impl TargetMaps {
    /// Measures a process from now on, and the children it makes: on every port, or on those alone that are added.
    ///
    /// # Errors
    /// [`SocketError::Map`] when the map is full.
    pub fn add_process(&mut self, tgid: u32, every_port: bool) -> Result<(), SocketError> {
        let value = if every_port { 0 } else { PORTS_ONLY };
        self.processes.insert(tgid, value, 0).map_err(|source| SocketError::Map { map: TGIDS, source })
    }

    /// Measures a process no longer; one that is not there is no error.
    ///
    /// # Errors
    /// [`SocketError::Map`].
    pub fn remove_process(&mut self, tgid: u32) -> Result<(), SocketError> {
        absent_is_fine(self.processes.remove(&tgid), TGIDS)
    }

    /// The processes that are measured, those included that the kernel added.
    ///
    /// # Errors
    /// [`SocketError::Map`].
    pub fn processes(&self) -> Result<BTreeSet<u32>, SocketError> {
        self.processes.keys().collect::<Result<_, _>>().map_err(|source| SocketError::Map { map: TGIDS, source })
    }

    /// A target listens on that port, or may: connections to it are seen from their establishment on. `claims`: who listens
    /// on it becomes a target by itself.
    ///
    /// # Errors
    /// [`SocketError::Map`] when the map is full.
    pub fn add_port(&mut self, port: u16, claims: bool) -> Result<(), SocketError> {
        let value = if claims { CLAIMS } else { 0 };
        self.ports.insert(u32::from(port), value, 0).map_err(|source| SocketError::Map { map: PORTS, source })
    }

    /// No target listens on that port any more; one that is not there is no error.
    ///
    /// # Errors
    /// [`SocketError::Map`].
    pub fn remove_port(&mut self, port: u16) -> Result<(), SocketError> {
        absent_is_fine(self.ports.remove(&u32::from(port)), PORTS)
    }

    /// The ports, those included that the kernel added.
    ///
    /// # Errors
    /// [`SocketError::Map`].
    pub fn ports(&self) -> Result<BTreeSet<u16>, SocketError> {
        let ports = self.ports.keys().map(|port| port.map(|port| u16::try_from(port).unwrap_or_default()));
        ports.collect::<Result<_, _>>().map_err(|source| SocketError::Map { map: PORTS, source })
    }
}

fn absent_is_fine(result: Result<(), MapError>, map: &'static str) -> Result<(), SocketError> {
    match result {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error)) if error.io_error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(source) => Err(SocketError::Map { map, source }),
    }
}
