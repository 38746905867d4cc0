//! Bad input and missing privileges: one clear message with cause and remedy, the right exit code, nothing left behind.

use std::{
    fs,
    net::TcpListener,
    os::unix::process::CommandExt,
    process::{Command, Output, Stdio},
};

use anyhow::{Context, Result, ensure};
use aya::programs::loaded_programs;
use tailcomb::{kernel::btf::Layout, probes::table::PROBES};
use tailcomb_tests::{
    agent::binary,
    case::{Case, Need},
};

pub(crate) const CASES: &[Case] = &[
    Case { name: "r27_without_root_one_message_names_the_capabilities", needs: SETPRIV, run: without_root },
    Case { name: "r27_each_dropped_capability_is_named", needs: SETPRIV, run: each_dropped_capability_is_named },
    Case { name: "r27_without_btf_one_message_names_it", needs: UNSHARE, run: without_btf },
    Case { name: "r27_without_tracefs_and_without_the_right_to_mount_it", needs: UNSHARE, run: without_tracefs },
    Case { name: "r27_tracefs_is_mounted_when_missing_and_not_left_behind", needs: UNSHARE, run: tracefs_comes_and_goes },
    Case { name: "a_taken_port_is_named", needs: &[Need::Kernel], run: taken_port },
    Case {
        name: "output_that_can_not_be_written_is_an_error_and_no_crash",
        needs: &[Need::Kernel, Need::Path("/dev/full")],
        run: output_can_not_be_written,
    },
    Case { name: "an_environment_that_is_no_text_harms_nobody_else", needs: &[], run: strange_environment },
    Case { name: "bad_configuration_exits_2_and_says_where", needs: &[], run: bad_configuration },
    Case { name: "what_run_refuses_print_config_refuses_too", needs: &[], run: print_config_refuses },
    Case { name: "a_variable_that_is_no_setting_is_warned_of", needs: &[], run: unknown_variables },
    Case { name: "a_cause_is_said_once", needs: &[], run: cause_once },
];

const SETPRIV: &[Need] = &[Need::Kernel, Need::Tool("setpriv")];
const UNSHARE: &[Need] = &[Need::Kernel, Need::Tool("unshare"), Need::Tool("setpriv")];

/// What a failed run must look like.
fn expect(output: &Output, code: i32, words: &[&str]) -> Result<()> {
    let error = String::from_utf8_lossy(&output.stderr);
    let all = format!("{error}{}", String::from_utf8_lossy(&output.stdout));
    ensure!(output.status.code() == Some(code), "exit {:?} instead of {code}: {all}", output.status);
    for word in words {
        ensure!(all.contains(word), "no word of `{word}` in: {all}");
    }
    ensure!(!all.contains("panicked"), "it panicked: {all}");
    ensure!(error.lines().filter(|line| line.starts_with("tailcomb: ")).count() <= 1, "more than one error: {error}");
    Ok(())
}

/// Programs of ours that this process id left in the kernel; others may run beside this test.
fn nothing_left(before: usize) -> Result<()> {
    // The kernel frees programs a moment after their last holder has gone.
    for _ in 0..50 {
        if ours_in_kernel() <= before {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    anyhow::bail!("{} programs are left in the kernel, {before} were there before", ours_in_kernel())
}

fn ours_in_kernel() -> usize {
    let names: Vec<&str> = PROBES.iter().flat_map(|probe| probe.programs).map(|program| program.name).collect();
    loaded_programs().flatten().filter(|info| info.name_as_str().is_some_and(|name| names.contains(&name))).count()
}

/// The binary where an unprivileged user can reach it.
fn reachable_binary() -> Result<(tempfile::TempDir, std::path::PathBuf)> {
    let folder = tempfile::tempdir_in("/tmp")?;
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let path = folder.path().join("tailcomb");
    fs::copy(binary()?, &path)?;
    Ok((folder, path))
}

fn without_root() -> Result<()> {
    let (_folder, path) = reachable_binary()?;
    for command in [vec!["check"], vec!["run", "--listen", "127.0.0.1:0"]] {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"])
            .arg(&path)
            .args(command)
            .current_dir("/")
            .output()?;
        expect(&output, 1, &["CAP_BPF and CAP_PERFMON missing", "run as root"])?;
    }
    Ok(())
}

fn each_dropped_capability_is_named() -> Result<()> {
    let before = ours_in_kernel();
    for (drop, named) in [("-sys_admin,-bpf", "CAP_BPF missing"), ("-sys_admin,-perfmon", "CAP_PERFMON missing")] {
        let output =
            Command::new("setpriv").arg(format!("--bounding-set={drop}")).arg("--").arg(binary()?).arg("check").output()?;
        expect(&output, 1, &[named, "run as root, or grant CAP_BPF and CAP_PERFMON", "Nothing can be measured here."])?;
    }
    // Without these it measures less, which is no error.
    for (drop, named) in [
        ("-sys_ptrace", "warning: CAP_SYS_PTRACE missing: "),
        ("-dac_read_search,-dac_override", "warning: CAP_DAC_READ_SEARCH missing: "),
    ] {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={drop}")).arg("--").arg(binary()?).args(["check", "--strict"]);
        expect(&command.output()?, 0, &[named, "`port:` target", "All required probes work on this kernel."])?;
        let json: serde_json::Value = serde_json::from_slice(&command.arg("--json").output()?.stdout)?;
        ensure!(json["ok"] == true && json["warnings"].as_array().is_some_and(|warnings| warnings.len() == 1), "{json}");
    }
    nothing_left(before)
}

/// Runs a shell line in a mount namespace of its own.
fn in_private_mounts(script: &str) -> Result<Output> {
    let binary = binary()?;
    let binary = binary.to_str().context("the binary's path is text")?;
    Ok(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-ec", script, "sh", binary]).output()?)
}

fn without_btf() -> Result<()> {
    let before = ours_in_kernel();
    let output = in_private_mounts("mount --bind /dev/null /sys/kernel/btf/vmlinux; exec \"$1\" check --strict")?;
    expect(&output, 1, &["no type information in /sys/kernel/btf/vmlinux", "CONFIG_DEBUG_INFO_BTF=y"])?;
    nothing_left(before)
}

/// Hides a tracefs that may be mounted already.
const NO_TRACEFS: &str = "umount /sys/kernel/tracing 2>/dev/null || true; umount /sys/kernel/debug 2>/dev/null || true; ";

/// Only the socket probe of kernels before 6.3 hooks classic tracepoints; elsewhere nothing is missing without tracefs.
fn without_tracefs() -> Result<()> {
    let before = ours_in_kernel();
    let output = in_private_mounts(&format!("{NO_TRACEFS} exec setpriv --bounding-set=-sys_admin -- \"$1\" check --strict"))?;
    if Layout::of_running_kernel()?.has_tracepoint("sock_recv_length") {
        expect(&output, 0, &["block (required): works", "socket (required): works"])?;
    } else {
        expect(
            &output,
            1,
            &["tracefs is not mounted", "mount -t tracefs tracefs /sys/kernel/tracing", "block (required): works"],
        )?;
    }
    nothing_left(before)
}

fn tracefs_comes_and_goes() -> Result<()> {
    let output =
        in_private_mounts(&format!("{NO_TRACEFS} \"$1\" check --strict; if grep ' tracefs ' /proc/mounts; then exit 9; fi"))?;
    expect(&output, 0, &["socket (required): works"])
}

fn taken_port() -> Result<()> {
    let before = ours_in_kernel();
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let output = Command::new(binary()?).args(["run", "--listen", &address]).stdin(Stdio::null()).output()?;
    expect(&output, 1, &[&address, "--listen"])?;
    nothing_left(before)
}

fn bad_configuration() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tailcomb.toml");
    let run = |config: &str| Command::new(binary()?).args(["run", "--config", config]).output().context("running the agent");
    let path = file.to_str().context("a temporary path is text")?;

    fs::write(&file, "listen = \"127.0.0.1:0\"\ntarget = [\"auto\"]\n")?;
    expect(&run(path)?, 2, &["line 2", "unknown field `target`", "did you mean `targets`?"])?;
    fs::write(&file, "targets = [\"prt:80\"]\n")?;
    expect(&run(path)?, 2, &["targets", "prt:80", "port:"])?;
    fs::write(&file, [0xff, 0xfe, 0x00])?;
    expect(&run(path)?, 2, &[path])?;
    expect(&run("/nonexistent/tailcomb.toml")?, 2, &["/nonexistent/tailcomb.toml"])?;
    expect(&run(folder.path().to_str().context("a temporary path is text")?)?, 2, &["config file"])?;
    let mut unknown = Command::new(binary()?);
    unknown.arg("run").arg("--no-such-flag").arg0("tailcomb");
    expect(&unknown.output()?, 2, &["--no-such-flag"])
}

fn print_config_refuses() -> Result<()> {
    for (arguments, words) in [
        (["--log-level", "zzz"], ["flag --log-level: `zzz`", "off, error, warn, info, debug or trace"]),
        (["--log-level", "info,tailcomb=loud"], ["`tailcomb=loud`", "info,tailcomb::export=debug"]),
        (["--listen", ":80"], ["flag --listen: `:80`", "0.0.0.0:80"]),
        (["--target", "prt:80"], ["flag --target: ", "port:"]),
        (["--allowed-host", "http://node-7/"], ["flag --allowed-host: ", "without scheme"]),
        (["--max-overhead", "7"], ["flag --max-overhead: 7", "between"]),
        (["--ring-buffer-mib", "3"], ["flag --ring-buffer-mib: 3", "power of two"]),
        (["--series-budget", "1"], ["flag --series-budget: 1", "between"]),
    ] {
        for print in [&["--print-config"][..], &[]] {
            let output = Command::new(binary()?).arg("run").args(print).args(arguments).stdin(Stdio::null()).output()?;
            expect(&output, 2, &words).with_context(|| format!("{print:?} {arguments:?}"))?;
        }
    }
    for (arguments, words) in [(["--listen", ":80"], "0.0.0.0:80"), (["--duration", "0s"], "--duration 0s: must be 1s to 30m")] {
        expect(&Command::new(binary()?).arg("demo").args(arguments).stdin(Stdio::null()).output()?, 2, &[words])?;
    }
    Ok(())
}

fn unknown_variables() -> Result<()> {
    let mut run = Command::new(binary()?);
    // This test has variables of its own, which are none of the agent's.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TAILCOMB_")) {
        run.env_remove(name);
    }
    run.args(["run", "--print-config"]);
    run.env("TAILCOMB_SERVICE_HOST", "10.0.0.1").env("TAILCOMB_SERVICE_PORT", "9809").env("TAILCOMB_PORT", "tcp://10.0.0.1:9809");
    run.env("TAILCOMB_PORT_9809_TCP_ADDR", "10.0.0.1");
    let output = run.output()?;
    expect(&output, 0, &["listen"])?;
    ensure!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = run.env("TAILCOMB_TARGET", "port:8000").output()?;
    expect(&output, 0, &["WARN", "`TAILCOMB_TARGET`, did you mean `TAILCOMB_TARGETS`?"])?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tailcomb.toml");
    fs::write(&file, "series_budget = 77\n")?;
    expect(&run.env("TAILCOMB_CONFIG", &file).output()?, 0, &["series_budget = 77"])
}

fn cause_once() -> Result<()> {
    let output = Command::new(binary()?).args(["run", "--config", "/nonexistent/tailcomb.toml"]).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(error.matches("No such file").count() == 1, "{error}");
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("tailcomb.toml");
    fs::write(&file, "\n\nmax_overhead = 7.0\n")?;
    let output = Command::new(binary()?).args(["run", "--config"]).arg(&file).output()?;
    expect(&output, 2, &[&format!("config file {}, line 3: max_overhead: 7 is not between", file.display())])?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(error.matches("max_overhead").count() == 1, "{error}");
    Ok(())
}

fn output_can_not_be_written() -> Result<()> {
    let full = || -> Result<Stdio> { Ok(fs::File::options().write(true).open("/dev/full")?.into()) };
    for arguments in [["check", "--strict"], ["run", "--print-config"]] {
        let output = Command::new(binary()?).args(arguments).stdout(full()?).stderr(Stdio::piped()).output()?;
        expect(&output, 1, &["writing to standard output"])?;
    }
    // Neither the log nor the error can be written; the port is taken, so it ends by itself.
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let status = Command::new(binary()?).args(["run", "--listen", &address]).stderr(full()?).status()?;
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

fn strange_environment() -> Result<()> {
    let bytes = || <std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(b"\xff").to_owned();
    let run = |variable: &str| {
        Command::new(binary()?).args(["run", "--print-config"]).env(variable, bytes()).output().context("running the agent")
    };
    expect(&run("FOO")?, 0, &["listen"])?;
    expect(&run("TAILCOMB_LISTEN")?, 2, &["TAILCOMB_LISTEN", "UTF-8"])
}
