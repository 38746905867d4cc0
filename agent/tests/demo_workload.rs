//! The demo's workload, without the agent: real processes, real sockets, a real disk.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread::sleep,
    time::Duration,
};

use tailcomb::demo::{DemoError, Options, Workload, place, truth::Endpoint};

/// One workload at a time: they share the disk, and children are counted.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn options() -> Option<Options> {
    if let Err(error) = place::choose(None) {
        eprintln!("skipped: {error}");
        return None;
    }
    let program = Some(PathBuf::from(env!("CARGO_BIN_EXE_tailcomb")));
    Some(Options { period: Duration::from_secs(2), rate: 50.0, program, ..Options::default() })
}

fn comm(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|comm| comm.trim().to_owned())
}

/// Processes whose parent this one is.
fn children() -> Vec<PathBuf> {
    let own = std::process::id().to_string();
    let stat = |path: &Path| fs::read_to_string(path.join("stat")).unwrap_or_default();
    let is_child = |path: &Path| stat(path).rsplit(") ").next().is_some_and(|rest| rest.split(' ').nth(1) == Some(&own));
    fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path()).filter(|path| is_child(path)).collect()
}

#[test]
fn clients_are_answered_while_flushes_fill_the_disk() {
    let _alone = alone();
    let Some(options) = options() else { return };
    let mut running = Workload::start(&options).expect("workload");
    assert_eq!(comm(running.server_pid).as_deref(), Some("demo-server"));
    assert_eq!(running.counters().answered_in_all(), 0, "nothing is sent before it begins");
    running.begin().expect("load");
    sleep(Duration::from_secs(7));
    running.check().expect("all processes alive");
    let seen = running.stop().expect("clean end");

    assert_eq!(seen.failed_in_all(), 0, "{:?}", seen.failed);
    assert_eq!(seen.not_sent, 0);
    assert_eq!(seen.answered_in_all(), seen.requests.len() as u64);
    for endpoint in [Endpoint::Chat, Endpoint::Completion, Endpoint::Embedding] {
        assert!(seen.answered[&endpoint] > 20, "{:?}", seen.answered);
    }
    assert!(seen.answered[&Endpoint::Health] >= 3, "{:?}", seen.answered);
    assert!((2..=4).contains(&seen.flushes.len()), "{:?}", seen.flushes);
    for flush in &seen.flushes {
        assert!(flush.end_ns > flush.start_ns && flush.bytes >= 16 << 20, "{flush:?}");
    }
    for request in &seen.requests {
        assert!(request.end_ns > request.start_ns);
        assert_eq!(request.first_token_ns.is_some(), request.endpoint == Endpoint::Chat);
        assert!(request.first_token_ns.is_none_or(|token| token > request.start_ns && token < request.end_ns));
    }
    // The prefill has two bands: both must be there, with a gap between.
    let first: Vec<u64> =
        seen.requests.iter().filter_map(|seen| Some((seen.first_token_ns? - seen.start_ns) / 1_000_000)).collect();
    assert!(first.iter().any(|ms| *ms >= 250) && first.iter().any(|ms| *ms < 100), "{first:?}");
    assert!(children().is_empty(), "{:?}", children());
}

#[test]
fn a_server_that_is_killed_is_noticed_and_nothing_stays() {
    let _alone = alone();
    let Some(options) = options() else { return };
    let mut running = Workload::start(&options).expect("workload");
    running.begin().expect("load");
    let pid = i32::try_from(running.server_pid).expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("own child");
    sleep(Duration::from_millis(300));
    assert!(matches!(running.check(), Err(DemoError::Broken(_))));
    assert!(matches!(running.stop(), Err(DemoError::Broken(_))));
    assert!(children().is_empty(), "{:?}", children());
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    for (options, name) in [
        (Options { rate: f64::NAN, ..Options::default() }, "--rate"),
        (Options { rate: 0.0, ..Options::default() }, "--rate"),
        (Options { period: Duration::from_millis(10), ..Options::default() }, "--period"),
    ] {
        let error = Workload::start(&options).expect_err("out of range").to_string();
        assert!(error.starts_with(name), "{error}");
    }
}

#[test]
fn a_folder_without_a_disk_is_refused_with_the_remedy() {
    let options = Options { folder: Some("/proc".into()), ..Options::default() };
    let error = Workload::start(&options).expect_err("procfs is no disk").to_string();
    assert!(error.contains("--dir"), "{error}");
}
