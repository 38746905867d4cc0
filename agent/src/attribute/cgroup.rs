//! `/proc/PID/cgroup`: where a process stands, and which systemd unit that is.
//!
//! Lines are `hierarchy:controllers:path` (cgroups(7)); `0::path` is cgroup v2. A hybrid machine has both kinds, and systemd
//! keeps its own tree under `name=systemd`.

/// The cgroups of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cgroups {
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    controllers: String,
    path: String,
}

impl Cgroups {
    /// Parses the file; lines that are none are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let line = |line: &str| {
            let mut fields = line.splitn(3, ':');
            fields.next()?.parse::<u32>().ok()?;
            let controllers = fields.next()?.to_owned();
            let path = fields.next()?;
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            path.starts_with('/').then(|| Line { controllers, path: outside(path).to_owned() })
        };
        Self { lines: text.lines().filter_map(line).collect() }
    }

    /// The path to show: systemd's tree where there is one, else v2's, else the deepest of v1.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        let systemd = self.lines.iter().find(|line| line.controllers == "name=systemd");
        let unified = self.lines.iter().find(|line| line.controllers.is_empty());
        let named = [systemd, unified].into_iter().flatten().map(|line| line.path.as_str());
        let deepest = || self.lines.iter().map(|line| line.path.as_str()).max_by_key(|path| path.matches('/').count());
        named.into_iter().find(|path| *path != "/").or_else(deepest)
    }

    /// The path in cgroup v2.
    #[must_use]
    pub fn unified(&self) -> Option<&str> {
        self.lines.iter().find(|line| line.controllers.is_empty()).map(|line| line.path.as_str())
    }

    /// Does the process stand in `path` or below it, in any hierarchy?
    #[must_use]
    pub fn is_within(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.lines.iter().any(|line| line.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
    }

    /// The systemd service it belongs to, innermost first: `nginx.service`. `None`: in no service, or in a container that a
    /// service runs (whose unit says nothing about it).
    #[must_use]
    pub fn unit(&self) -> Option<&str> {
        unit(self.path()?)
    }
}

/// A path seen from another cgroup namespace begins with `/..` for each level above its root; those say nothing.
fn outside(path: &str) -> &str {
    let mut rest = path;
    while let Some(shorter) = rest.strip_prefix("/..").filter(|rest| rest.is_empty() || rest.starts_with('/')) {
        rest = shorter;
    }
    if rest.is_empty() { "/" } else { rest }
}

fn unit(path: &str) -> Option<&str> {
    let mut inner = path.rsplit('/');
    // What lies below a service is its own (delegated) unless it is another unit or a container.
    let found = inner.by_ref().take_while(|part| !is_container(part) && !part.ends_with(".scope"));
    let service = found.filter(|part| part.len() > ".service".len()).find(|part| part.ends_with(".service"))?;
    // A user's manager is not what the user runs in scopes and slices of it.
    if is_user_manager(service) && !path.ends_with(service) {
        return None;
    }
    Some(service)
}

fn is_user_manager(unit: &str) -> bool {
    unit.strip_prefix("user@").and_then(|rest| rest.strip_suffix(".service")).is_some_and(|uid| uid.parse::<u32>().is_ok())
}

/// Is this part of a path a container (Docker, containerd, CRI-O, Podman, LXC, Kubernetes)?
fn is_container(part: &str) -> bool {
    // Podman's `--cgroups=split` (quadlets): the container is what the unit runs, and the unit names it best.
    if part.starts_with("libpod-payload-") {
        return false;
    }
    let hex = part.split(['-', ':', '.']).any(|word| word.len() >= 32 && word.bytes().all(|byte| byte.is_ascii_hexdigit()));
    hex || part.starts_with("kubepods")
        || part.starts_with("lxc.payload")
        || part.starts_with("libpod-")
        || part.contains(":cri-")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "4f0c1a5e9b7d3c2846e1f0a9d8c7b6a5948372615f4e3d2c1b0a998877665544";

    fn of(text: &str) -> (Option<String>, Option<String>) {
        let cgroups = Cgroups::parse(&text.replace("ID", ID));
        (cgroups.path().map(str::to_owned), cgroups.unit().map(str::to_owned))
    }

    fn unit_of(path: &str) -> Option<String> {
        of(&format!("0::{path}\n")).1
    }

    #[test]
    fn services_of_cgroup_v2() {
        for (path, unit) in [
            ("/system.slice/nginx.service", Some("nginx.service")),
            ("/system.slice/system-vllm.slice/vllm@1.service", Some("vllm@1.service")),
            ("/system.slice/foo.service/worker/3", Some("foo.service")),
            ("/system.slice/dev-disk\\x2dcache.service", Some("dev-disk\\x2dcache.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-ollama.service", Some("app-ollama.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x@1.service", Some("app-x@1.service")),
            ("/user.slice/user-1000.slice/user@1000.service", Some("user@1000.service")),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-gnome-code-1234.scope", None),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", None),
            ("/user.slice/user-1000.slice/session-3.scope", None),
            ("/system.slice", None),
            ("/system.slice/.service", None),
            ("/machine.slice", None),
            ("/", None),
        ] {
            assert_eq!(unit_of(path).as_deref(), unit, "{path}");
        }
    }

    #[test]
    fn containers_are_not_their_runtimes_unit() {
        for path in [
            "/system.slice/docker-ID.scope",
            "/docker/ID",
            "/system.slice/docker.service/ID",
            "/system.slice/containerd.service/kubepods-besteffort-pod12.slice:cri-containerd:ID",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-ID.scope",
            "/kubepods/burstable/pod0f1e/ID",
            "/kubepods.slice/kubepods-pod1.slice/crio-ID.scope",
            "/machine.slice/libpod-ID.scope/container",
            "/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-ID.scope/container",
            "/lxc.payload.web1",
            "/system.slice/k3s.service/kubepods/besteffort/pod12",
        ] {
            assert_eq!(of(&format!("0::{path}\n")).1, None, "{path}");
        }
    }

    #[test]
    fn a_service_inside_a_container_and_a_quadlet_are_units() {
        assert_eq!(unit_of("/system.slice/docker-ID.scope/system.slice/mysql.service").as_deref(), Some("mysql.service"));
        assert_eq!(unit_of("/lxc.payload.web1/system.slice/nginx.service").as_deref(), Some("nginx.service"));
        assert_eq!(unit_of("/system.slice/vllm.service/libpod-payload-ID").as_deref(), Some("vllm.service"));
    }

    #[test]
    fn a_v1_machine_is_read_by_systemds_tree() {
        let text = "12:pids:/system.slice/tgi.service\n11:cpu,cpuacct:/system.slice/tgi.service\n10:memory:/other\n\
                    2:net_cls,net_prio:/\n1:name=systemd:/system.slice/tgi.service\n";
        assert_eq!(of(text), (Some("/system.slice/tgi.service".to_owned()), Some("tgi.service".to_owned())));
    }

    #[test]
    fn a_hybrid_machine_is_read_by_systemds_tree() {
        let text = "9:memory:/docker/ID\n1:name=systemd:/docker/ID\n0::/system.slice/containerd.service\n";
        assert_eq!(of(text), (Some(format!("/docker/{ID}")), None));
    }

    #[test]
    fn a_machine_without_systemd_shows_what_it_has() {
        let text = "9:name=systemd:/\n8:pids:/\n4:memory:/pool/ID\n1:cpu:/\n0::/\n";
        assert_eq!(of(text), (Some(format!("/pool/{ID}")), None));
        assert_eq!(of("0::/\n"), (Some("/".to_owned()), None));
        assert_eq!(of(""), (None, None));
    }

    #[test]
    fn paths_from_another_namespace_and_of_deleted_groups() {
        assert_eq!(unit_of("/../../system.slice/nginx.service").as_deref(), Some("nginx.service"));
        assert_eq!(of("0::/..\n").0.as_deref(), Some("/"));
        assert_eq!(of("0::/..a/b.service\n").1.as_deref(), Some("b.service"));
        assert_eq!(unit_of("/system.slice/gone.service (deleted)").as_deref(), Some("gone.service"));
    }

    #[test]
    fn a_subtree_ends_at_a_slash() {
        let cgroups = Cgroups::parse("4:memory:/pool/a\n0::/system.slice/nginx.service\n");
        for within in ["/system.slice", "/system.slice/", "/system.slice/nginx.service", "/pool", "/"] {
            assert!(cgroups.is_within(within), "{within}");
        }
        for outside in ["/system", "/system.slice/nginx", "/pool/a/b", "/nginx.service"] {
            assert!(!cgroups.is_within(outside), "{outside}");
        }
    }

    #[test]
    fn what_is_no_cgroup_file_gives_nothing() {
        for text in ["garbage", "::", "x::/a", "0:", "0::relative", "\0\0\0", "1:cpu"] {
            assert_eq!(of(text), (None, None), "{text:?}");
        }
    }
}
